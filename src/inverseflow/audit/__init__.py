"""Is a result believable? Without the truth: does what was removed behave like the declared noise?

1. The noise itself: the quietest blocks of x1, and its noise curve where the noise is white, against the declared
   noise. A model that is told too little noise explains the data perfectly, with the rest of the noise in its result;
   only these checks can see that.
2. The residual x1 - x0_hat against the residual of simulated data, x1' - denoise(x1') with x1' = noise(plausible x0),
   by intensity, by frequency and by rank; never against the noise, because a posterior mean's residual is smaller.
   Plausible is what has the recovered distribution: the map's result, not the mean's, which is too smooth.
3. Re-noising: noise(plausible x0) against x1, by frequency and by rank.
4. Structure: how the residual goes with the fine detail of the result, beside the same in simulated data.
5. Two passes over one plausible x0 with fresh noise: as a posterior mean, each should go with that x0 with slope 1 at
   every frequency; less, and noise gets through; more, and signal is lost.

The limits were calibrated on right and wrong cases (`benchmarks/audit_rates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from ..axes import to_batch
from ..errors import InputError
from ..estimate import NoiseEstimate
from ..io.image import Image
from ..masking import fill, missing
from ..noise import Noise, as_noise
from ..noise.base import stages
from .figures import figures
from .limits import ALONE, BEYOND, MEANING, WITH_DENOISER

__all__ = ["SAMPLES", "Audit", "Check", "audit", "figures", "judge", "middle"]

SMALLEST, FEWEST, SAMPLES, MOST_MISSING = 32, 96 * 96, 4, 0.5
LARGEST = {2: (512, 512), 3: (16, 192, 192)}
"""Pixels along y and x, and of all samples; samples, the share that may be missing, and pixels of planes and volumes:
less cannot be judged (of 64 x 64 pixels the truth itself fails half of the time), more says nothing new.
"""
VERDICTS = ("pass", "doubtful", "fail")


class Model(Protocol):
    """What the audit needs of a `Denoiser`."""

    @property
    def noise(self) -> Noise: ...
    @property
    def axes(self) -> str: ...
    @property
    def description(self) -> dict[str, Any]: ...
    def function(self, estimate: str | float | None = None) -> Callable[[Tensor], Tensor]: ...


@dataclass(frozen=True)
class Check:
    """One figure and the limits from which it is doubtful and from which it fails; 0 or less is perfect."""

    name: str
    value: float
    limits: tuple[float, float]
    meaning: str

    @property
    def verdict(self) -> str:
        return VERDICTS[sum(not self.value < limit for limit in self.limits)]  # NaN fails


@dataclass(frozen=True)
class Audit:
    """The verdict (pass, doubtful or fail) and the checks behind it."""

    verdict: str
    checks: tuple[Check, ...]

    @property
    def reasons(self) -> list[str]:
        """What is wrong, the worst first."""
        failing = [check for check in self.checks if check.verdict != "pass"]
        worst_first = sorted(failing, key=lambda c: -np.nan_to_num(c.value, nan=np.inf) / c.limits[0])
        return [check.meaning for check in worst_first]

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "checks": [{**vars(check), "verdict": check.verdict} for check in self.checks]}

    def __str__(self) -> str:
        return self.verdict if self.verdict == "pass" else f"{self.verdict}: {' '.join(self.reasons[:2])}"


def audit(
    noisy: Any,
    clean: Any,
    by: Model | Noise | NoiseEstimate | str | Callable[..., Any],
    *,
    axes: str | None = None,
    estimate: str | float | None = None,
    seed: int = 0,
) -> Audit:
    """Judge `clean`, the result of denoising `noisy`; both images (B, C, *S), or any order with `axes`. Without `axes`
    they may also be as the model's own data was; beside a bare noise, 2-D is YX.

    by   the `Denoiser` that made the result, or only the noise that it was made for (or its estimate), where another
         tool made it: then nothing can be simulated and fewer checks are possible
    """
    by = by.noise if isinstance(by, NoiseEstimate) else by
    model = cast(Model, by) if hasattr(by, "axes") else None
    noise, own = (as_noise(cast(Any, by)), "YX") if model is None else (model.noise, model.axes)
    own = next((image.axes for image in (noisy, clean) if isinstance(image, Image)), own)
    before, after = (_read(x, axes, own) for x in (noisy, clean))
    if before.shape != after.shape:
        shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
        raise InputError(f"The audit compares a noisy and a denoised image of one shape, not {shapes}.")
    if min(before.shape[-2:]) < SMALLEST:
        raise InputError(f"The audit needs images of at least {SMALLEST} x {SMALLEST} pixels.")
    noise.check_channels(before.shape[1])
    noise = _of_samples(noise, len(before))
    where = (slice(0, SAMPLES), slice(None), *middle(before.shape[2:]))
    before, after = before[where], after[where]
    if before[:, 0].numel() < FEWEST:
        raise InputError("The audit needs 96 x 96 pixels, or as many in several images; fewer do not tell enough.")
    gone = missing(before) | missing(after)
    if float(gone.float().mean()) > MOST_MISSING:
        raise InputError(f"More than {100 * MOST_MISSING:g} % of what the audit looks at is NaN; give other images.")
    mask = gone if bool(gone.any()) else None
    seen = before[~gone]
    if seen.min() == seen.max():
        raise InputError("The noisy image is constant where the audit looks at it; there is nothing to judge.")
    before, after = (fill(x.masked_fill(gone, torch.nan)) for x in (before, after))
    generator = torch.Generator().manual_seed(seed)
    if model is None:
        return judge(figures(before, after, noise, mask=mask, generator=generator), ALONE)
    plausible = model.function("flow")(before)
    found = figures(
        before,
        after,
        noise,
        denoise=model.function(estimate),
        calibrated=(model.description["estimate"] if estimate is None else estimate) in ("mean", 0),
        plausible=plausible,
        mask=mask,
        generator=generator,
    )
    return judge(found, WITH_DENOISER)


def _of_samples(noise: Noise, count: int) -> Noise:
    """The noise of the samples that are looked at, where it varies by sample."""
    values = [getattr(stage, name) for stage in stages(noise) for name in stage.parameters]
    rows = {len(value) for value in values if isinstance(value, Tensor) and value.ndim == 2} - {1}
    if rows - {count}:
        raise InputError(f"The noise is that of {max(rows)} samples, but there are {count}; give it for these.")
    return noise.select(torch.arange(min(count, SAMPLES))) if rows else noise


def _read(image: Any, axes: str | None, own: str) -> Tensor:
    """(B, C, *S); without `axes`, an array of as many is read as the Image beside it, or as `Denoiser.denoise` does."""
    if axes is None and not isinstance(image, Image) and np.ndim(image) == len(own):
        axes = own
    x, layout = to_batch(image, axes)
    if len(layout.spatial) < 2:
        raise InputError(
            f"The audit judges images, but data of shape {layout.shape} is read as {layout.axes}; if it is an image, "
            "pass axes, for example axes='YX'."
        )
    return x.float()


def judge(found: dict[str, float], limits: dict[str, float]) -> Audit:
    """Doubtful with one figure beyond its limit; a failure with one far beyond or with two."""
    checks = tuple(
        Check(name, value, (limits[name], BEYOND * limits[name]), MEANING[name]) for name, value in found.items()
    )
    beyond = [check for check in checks if check.verdict != "pass"]
    failed = len(beyond) > 1 or any(check.verdict == "fail" for check in beyond)
    return Audit(VERDICTS[bool(beyond) + failed], checks)


def middle(shape: Sequence[int]) -> tuple[slice, ...]:
    """The part of an image of this spatial shape that is judged."""
    sizes = [min(n, most) for n, most in zip(shape, LARGEST[len(shape)], strict=True)]
    return tuple(slice((n - k) // 2, (n - k) // 2 + k) for n, k in zip(shape, sizes, strict=True))
