"""`estimate_noise`: from noisy images to the noise model they were made with.

Calibration frames say most, repeated frames of one view next, flat blocks of the images the least; the best that is
there is used. Then: is the noise white (`spectrum`), which law has its curve (`families`), how sure is it (a bootstrap
over images, or over 64 x 64 tiles of few images, and a part that no bootstrap sees: `SYSTEMATIC`).

The noise to train with leans high: halfway from the estimate to the upper end of the interval, at most 5 %. Assuming
20 % too little noise costs 3.4 dB, 20 % too much 0.07 dB.

Not to be seen in noisy images alone, and to be declared by whoever knows: a constant offset, the scale of Rayleigh
noise (it moves the mean), a Jacobi drift, and noise at frequencies that the image always fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .calibration import Calibration, calibrate
from .channel import Channel, measure_channel
from .families import FAMILIES, POWERS, Law, as_noise, choose, fit_family
from .planes import as_sources, repeat_axis, views
from .result import NoiseEstimate
from .sentences import sentences
from .spectrum import kernel_of, power_of, symmetric

Array = np.ndarray[Any, Any]
DRAWS = 100
SYSTEMATIC = {"flat blocks": 0.02, "repeats": 0.005, "calibration": 0.005}
"""Relative error of the sd that resampling cannot show: texture in flat blocks, drift between repeats."""
LARGEST_LEAN = 0.05


def estimate_noise(
    images: Any,
    *,
    axes: str | None = None,
    repeats: str | None = None,
    family: str = "auto",
    mask: Any = None,
    dark: Any = None,
    flat: Any = None,
    seed: int = 0,
) -> NoiseEstimate:
    """The noise of an image, an array or tensor with `axes`, or a list of them, pooled.

    `repeats` names the axis whose frames show one view; by default T is tried, "" uses none. `family` is "auto",
    "correlated" or one of gaussian, poisson, poissongaussian, gamma, signaldependent. `mask` is true where pixels may
    be used. `dark` and `flat` are stacks (T, Y, X) of calibration frames.
    """
    family = family.lower().replace("-", "").replace("_", "")
    if family not in ("auto", "correlated", *FAMILIES):
        raise InputError(f"There is no noise family {family!r}; choose auto, correlated, {', '.join(FAMILIES)}.")
    sources = as_sources(images, axes)
    counts = {source.size.get("C", 1) for source in sources}
    if len(counts) > 1:
        raise InputError(f"The images have {sorted(counts)} channels; give images with one number of channels.")
    repeated = [repeat_axis(source, repeats) for source in sources]
    calibration = None if dark is None and flat is None else calibrate(dark, flat)
    asked = True if family == "correlated" else None
    measured = [
        measure_channel(
            [stack for _, stack in views(sources, repeated, c, mask)], correlated=asked, strict=bool(repeats)
        )
        for c in range(counts.pop())
    ]
    found = [channel for channel in measured if channel is not None]
    if not found:
        raise InputError(
            "No block of these images shows any noise: they are saturated, masked, constant or free of noise; give "
            "images as the instrument wrote them."
        )
    return _conclude(measured, found, family, calibration, "Z" in sources[0].axes, np.random.default_rng(seed))


def _conclude(
    measured: Sequence[Channel | None],
    found: Sequence[Channel],
    family: str,
    calibration: Calibration | None,
    volume: bool,
    rng: np.random.Generator,
) -> NoiseEstimate:
    correlated = sum(channel.correlated for channel in found) * 2 > len(found)
    as_correlated = correlated and family in ("auto", "correlated")
    names = FAMILIES if family in ("auto", "correlated") else (family,)
    powers = (1.0,) if as_correlated else POWERS
    candidates = [
        {name: law for name in names if (law := fit_family(name, *_bins(channel), powers))} for channel in found
    ]
    if not all(candidates):
        raise InputError(f"These images cannot have {family} noise: their signal is negative or has one level only.")
    best = choose(candidates)
    if calibration is not None:
        best = "poissongaussian"
    laws = [_law(best, _bins(channel), calibration, powers) for channel in found]
    method = "repeats" if all(channel.repeats for channel in found) else "flat blocks"
    method = method if calibration is None else "calibration"
    intervals = [
        _interval(law, channel, calibration, powers, SYSTEMATIC[method], rng)
        for law, channel in zip(laws, found, strict=True)
    ]
    sds = [np.sqrt(np.maximum(law.variance(channel.shown), 1e-30)) for law, channel in zip(laws, found, strict=True)]
    lean = float(np.mean([np.median(high / sd) - 1 for (_, high), sd in zip(intervals, sds, strict=True)]) / 2)
    lean = float(np.clip(lean, 0, LARGEST_LEAN))
    unsure = max(float(np.median((high - low) / sd)) / 2 for (low, high), sd in zip(intervals, sds, strict=True))
    spectra = [channel.spectrum for channel in found if channel.spectrum is not None]
    correlation = symmetric(np.mean([s.correlation for s in spectra], axis=0)) if spectra else None
    kernel = None
    if as_correlated and correlation is not None:
        kernel = kernel_of(power_of(correlation))
        kernel = kernel[None] if volume else kernel
    known = correlated or method == "repeats"  # else texture is left in all but the high frequencies
    lags = [s.lag1 if known else s.high_lag1 for s in spectra]
    shared = _shared(laws, found, intervals, calibration, powers)
    per_channel = iter(laws)
    every = [shared] if shared else [next(per_channel) if c is not None else laws[0] for c in measured]
    return NoiseEstimate(
        noise=as_noise(every, lean, kernel),
        raw=as_noise(every, 0.0, kernel),
        lean=lean,
        family="correlated" if kernel is not None else best,
        method=method,
        scores={name: sum(c[name].score for c in candidates) for name in names if all(name in c for c in candidates)},
        std_curve=(_stack([channel.shown for channel in found]), _stack(sds)),
        interval=(_stack([low for low, _ in intervals]), _stack([high for _, high in intervals])),
        measured=tuple((channel.curve.level, np.sqrt(channel.curve.variance)) for channel in found),
        spectrum=power_of(correlation) if correlation is not None and known else None,
        autocorrelation=correlation if known else None,
        lag1=(float(np.mean([y for y, _ in lags])), float(np.mean([x for _, x in lags]))) if lags else None,
        levels=tuple(channel.levels for channel in found),
        calibration=calibration,
        warnings=sentences(measured, laws, candidates, best, family, correlated, calibration, unsure),
    )


def _bins(channel: Channel) -> tuple[Array, Array, Array]:
    return channel.curve.level, channel.curve.variance, channel.curve.freedom


def _law(
    family: str,
    bins: tuple[Array, Array, Array],
    calibration: Calibration | None,
    powers: Sequence[float],
) -> Law:
    """The law of a family through these bins; what calibration frames say is not fitted again."""
    level, variance, freedom = bins
    if calibration is None:
        law = fit_family(family, level, variance, freedom, powers)
        return law or Law("gaussian", {"b": float(np.mean(variance))}, 0.0, 1)
    b, offset, gain = calibration.sigma**2, calibration.black, calibration.gain
    if gain is None:
        light = np.maximum(level - offset, 1e-9 * (abs(offset) + 1))
        weight = freedom / np.maximum(variance, 1e-30) ** 2
        gain = float(np.sum(weight * light * np.maximum(variance - b, 0)) / np.sum(weight * light**2))
        gain = max(gain, 1e-9 * float(np.median(variance)) / float(np.median(light)))
    return Law("poissongaussian", {"a": gain, "b": b, "offset": offset}, 0.0, 3)


def _interval(
    law: Law,
    channel: Channel,
    calibration: Calibration | None,
    powers: Sequence[float],
    systematic: float,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """95 % for the sd at the levels shown."""
    sd = np.sqrt(np.maximum(law.variance(channel.shown), 1e-30))
    tiles = channel.curve.sums.shape[1]
    logs = []
    for _ in range(DRAWS):
        bins = channel.curve.drawn(rng.multinomial(tiles, np.full(tiles, 1 / tiles)).astype(float))
        if len(bins[0]) >= min(2, len(channel.curve.level)):
            drawn = _law(law.family, bins, calibration, powers)
            logs.append(0.5 * np.log(np.maximum(drawn.variance(channel.shown), 1e-30)) - np.log(sd))
    if tiles < 4 or len(logs) < DRAWS // 2:  # nothing to draw from: what the degrees of freedom alone say
        spread = np.full_like(sd, 1.96 / np.sqrt(2 * channel.curve.freedom.sum()))
        below, above = spread, spread
    else:
        low, high = np.quantile(np.stack(logs), [0.025, 0.975], axis=0)
        below, above = np.maximum(-low, 0), np.maximum(high, 0)
    of_scale = channel.spectrum.error / 2 if channel.correlated and channel.spectrum else 0.0
    other = 1.96 * np.hypot(systematic, of_scale)
    return sd * np.exp(-np.hypot(below, other)), sd * np.exp(np.hypot(above, other))


def _shared(
    laws: Sequence[Law],
    found: Sequence[Channel],
    intervals: Sequence[tuple[Array, Array]],
    calibration: Calibration | None,
    powers: Sequence[float],
) -> Law | None:
    """One law for all channels where every channel's interval holds it, at the median of the channel's levels."""
    if len(laws) == 1:
        return laws[0]
    level, variance, freedom = (np.concatenate(part) for part in zip(*map(_bins, found), strict=True))
    together = _law(laws[0].family, (level, variance, freedom), calibration, powers)
    inside = [
        np.all((low <= sd) & (sd <= high))
        for channel, (low, high) in zip(found, intervals, strict=True)
        for sd in [np.sqrt(together.variance(channel.shown))]
    ]
    return together if all(inside) else None


def _stack(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.stack(list(parts))
