"""The figures that the audit judges, each the worst of the channels; 0 is perfect, larger is worse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..estimate import estimate_noise
from ..masking import fill
from ..noise import Domain, Noise
from ..tensors import Generator
from . import measures
from .measures import Residual


@dataclass(frozen=True, eq=False)
class Gaps(Noise):
    """A noise whose draws miss the values that the data misses, filled in the same way."""

    noise: Noise
    mask: Tensor

    def select(self, index: Tensor) -> Gaps:
        return Gaps(self.noise.select(index), self.mask[index])

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return fill(self.noise.draw(x0, generator).masked_fill(self.mask, torch.nan))

    @property
    def domain(self) -> Domain:
        return self.noise.domain

    def project(self, x0: Tensor) -> Tensor:
        return self.noise.project(x0)

    def mean(self, x0: Tensor) -> Tensor:
        return self.noise.mean(x0)

    def std(self, x0: Tensor) -> Tensor:
        return self.noise.std(x0)


Denoise = Callable[[Tensor], Tensor]
WHITE = 0.1
"""Correlation of neighbours below which declared noise counts as white."""
FAINT = 0.25
"""Of the typical noise: where there is less, as in the dark, how much less makes no difference to a result."""


def figures(
    noisy: Tensor,
    clean: Tensor,
    noise: Noise,
    *,
    denoise: Denoise | None = None,
    calibrated: bool = True,
    plausible: Tensor | None = None,
    mask: Tensor | None = None,
    generator: Generator = None,
) -> dict[str, float]:
    """Of images (B, C, *S). Without `denoise` nothing can be simulated, and what is left is compared with the noise.

    `mask` is true where values are missing and were filled: the same is done to all that is simulated.

    `calibrated`: it gives posterior means. The map is none: it keeps the spread of clean data, right or wrong.
    """
    if mask is not None:
        noise = Gaps(noise, mask)
    plausible = noise.project(clean if plausible is None else plausible)
    for channel, size in enumerate(noise.std(plausible).unbind(1)):
        if not size.any():
            raise InputError(
                f"At the values that channel {channel} of the result has, the declared noise is 0 everywhere; give the "
                "result in the units of the noisy image, its offset included."
            )
    # A camera clips, and no noise model says so: what is simulated is kept within the range of what was seen.
    first, second = (noise.draw(plausible, generator).clamp(noisy.min(), noisy.max()) for _ in range(2))
    found = _declared_by_sample(noisy, plausible, noise, first, generator)
    found |= _renoised(noisy, first, plausible, noise)
    observed, pure = (measures.residuals(x1, x0, noise) for x1, x0 in ((noisy, clean), (first, plausible)))
    if denoise is None:
        return found | _worst([_beyond_noise(r, n) for r, n in zip(observed, pure, strict=True)])
    passes = (denoise(first), denoise(second))
    simulated = measures.residuals(first, passes[0], noise)
    found |= _worst([_unlike(*three) for three in zip(observed, simulated, pure, strict=True)])
    if not calibrated:
        return found
    return found | _worst([_slope(passes, plausible, first - plausible, c) for c in range(noisy.shape[1])])


def _slope(passes: tuple[Tensor, Tensor], truth: Tensor, noise: Tensor, channel: int) -> dict[str, float]:
    """A posterior mean x is calibrated: E[x0 | x] = x, so that x0 goes with x with slope 1 at every frequency."""
    x0 = measures.planes(truth, channel)
    both = [measures.planes(x, channel) for x in passes]
    shared = np.mean([measures.band_power(x, x0) for x in both], 0)
    power = np.mean([measures.band_power(x) for x in both], 0)
    floor = measures.NEGLIGIBLE * float(measures.band_power(measures.planes(noise, channel)).mean())
    slope = np.log((np.maximum(shared, 0) + floor) / (power + floor))
    return {"noise gets through": -float(slope.min()), "signal is lost": float(slope.max())}


def _declared_by_sample(
    noisy: Tensor, plausible: Tensor, noise: Noise, drawn: Tensor, generator: Generator
) -> dict[str, float]:
    """Samples are looked at one by one where the noise varies by sample: an estimate pools what it is given."""
    inner = noise.noise if isinstance(noise, Gaps) else noise
    if inner.select(torch.tensor([0])) == inner:
        return _declared(noisy, plausible, noise, drawn, generator)
    samples = torch.arange(len(noisy))[:, None]
    parts = [_declared(noisy[k], plausible[k], noise.select(k), drawn[k], generator) for k in samples]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _largest(part[name] for part in parts if name in part) for name in names}


def _declared(noisy: Tensor, plausible: Tensor, noise: Noise, drawn: Tensor, generator: Generator) -> dict[str, float]:
    """The noise that the image shows against the declared one."""
    found = {}
    z = measures.standardised(drawn, plausible, noise)[0]
    lag1 = [measures.neighbours(z, axis) for axis in (-2, -1)]
    white = max(abs(lag) for lag in lag1) < WHITE
    if not white:  # white noise is told from texture better by its curve
        middle = plausible.flatten(2).median(2).values.reshape(*plausible.shape[:2], *(1,) * (plausible.ndim - 2))
        quiet = measures.quiet_noise(noisy, noise, middle.expand(plausible.shape).contiguous(), generator)
        found = {"too little noise declared": _largest(quiet), "too much noise declared": _largest(-q for q in quiet)}
    try:
        known = noisy.masked_fill(noise.mask, np.nan) if isinstance(noise, Gaps) else noisy
        seen = estimate_noise(known.cpu().numpy(), axes="SCZYX" if noisy.ndim == 5 else "SCYX")
    except InputError:
        return found
    seen_lag1 = (0.0, 0.0) if seen.lag1 is None or seen.family != "correlated" else seen.lag1[-2:]
    found["other correlation declared"] = max(abs(a - b) for a, b in zip(lag1, seen_lag1, strict=True))
    if white and seen.family != "correlated":
        curves = zip(seen.channels, *map(np.atleast_2d, seen.std_curve), strict=True)
        found["other curve declared"] = _largest(_off(noisy, noise, *curve) for curve in curves)
    return found


def _off(noisy: Tensor, noise: Noise, channel: int, levels: measures.Array, sd: measures.Array) -> float:
    """Root mean square of log(seen sd / declared sd) over the pixels of a channel."""
    middle = 0.5 * (levels[1:] + levels[:-1])
    share = np.bincount(np.digitize(measures.smoothed(noisy, channel).ravel(), middle), minlength=len(levels))
    at = torch.zeros(len(levels), noisy.shape[1], *(1,) * (noisy.ndim - 2))
    at[:, channel] = torch.from_numpy(levels).float().reshape(-1, *at.shape[2:])
    at = noise.project(at)
    mean, declared = (f(at)[:, channel].flatten().double().numpy() for f in (noise.mean, noise.std))
    order = np.argsort(mean)
    declared = np.interp(levels, mean[order], declared[order])
    floor = FAINT * float(np.sqrt(np.average(declared**2, weights=share)))
    off = np.log(np.maximum(sd, floor) / np.maximum(declared, floor))
    return float(np.sqrt(np.average(off**2, weights=share)))


def _renoised(noisy: Tensor, drawn: Tensor, plausible: Tensor, noise: Noise) -> dict[str, float]:
    """noise(plausible x0) against x1: if the model is right, two draws of one law."""
    sd = measures.standardised(drawn, plausible, noise)[1]
    found = []
    for c in range(noisy.shape[1]):
        one, other = (measures.planes(x, c) for x in (noisy, drawn))
        floor = measures.NEGLIGIBLE * float(measures.band_power(measures.planes(drawn - plausible, c)).mean())
        shift = np.quantile(one, measures.QUANTILES) - np.quantile(other, measures.QUANTILES)
        size = measures.size_by_rank(other, measures.planes(sd, c))
        spectrum = measures.log_ratio(measures.band_power(one), measures.band_power(other), floor)
        found.append({"re-noised spectrum": spectrum, "re-noised values": float(np.abs(shift / size).max())})
    return _worst(found)


def _unlike(observed: Residual, simulated: Residual, pure: Residual) -> dict[str, float]:
    floor = measures.NEGLIGIBLE * float(pure.power.mean())
    shift = np.abs(observed.mean - simulated.mean).max()
    return {
        "residual by intensity": measures.log_ratio(observed.variance, simulated.variance, measures.NEGLIGIBLE),
        "residual mean": float(shift),
        "residual spectrum": measures.log_ratio(observed.power, simulated.power, floor),
        "residual values": float(np.abs(observed.quantiles - simulated.quantiles).max()),
        "structure in the residual": abs(observed.detail - simulated.detail),
    }


def _beyond_noise(observed: Residual, pure: Residual) -> dict[str, float]:
    """A good estimate removes less than the noise at every level and frequency, and most of it."""
    floor = measures.NEGLIGIBLE * float(pure.power.mean())
    ratios = np.concatenate([observed.variance / pure.variance, (observed.power + floor) / (pure.power + floor)])
    kept = observed.variance.mean() / pure.variance.mean()
    return {
        "more removed than noise": float(np.log(np.maximum(ratios, 1e-12)).max()),
        "hardly anything removed": -float(np.log(max(kept, 1e-12))),
        "residual mean": float(np.abs(observed.mean).max()),
    }


def _worst(channels: list[dict[str, float]]) -> dict[str, float]:
    return {name: _largest(channel[name] for channel in channels) for name in channels[0]}


def _largest(values: Iterable[float]) -> float:
    """NaN if one is, where `max` may lose it."""
    return float(np.max([*values]))
