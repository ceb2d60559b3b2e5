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
from .curve import TINY
from .families import FAMILIES, POWERS, Law, as_noise, choose, fit_family, plausible
from .kernel import power_of
from .planes import Source, as_series, as_sources, repeat_axis, slabs, views
from .result import NoiseEstimate
from .sentences import sentences
from .ties import find_ties

Array = np.ndarray[Any, Any]
DRAWS = 100
SYSTEMATIC = {"flat blocks": 0.02, "repeats": 0.005, "calibration": 0.005}
"""Relative error of the sd that resampling cannot show: texture in flat blocks, drift between repeats."""
LARGEST_LEAN = 0.05
KERNELS = ("auto", "measured", "parametric")


def estimate_noise(
    images: Any,
    *,
    axes: str | None = None,
    repeats: str | None = None,
    family: str = "auto",
    dims: int | None = None,
    kernel: str = "auto",
    mask: Any = None,
    dark: Any = None,
    flat: Any = None,
    seed: int = 0,
) -> NoiseEstimate:
    """The noise of an image, an array or tensor with `axes`, or a list of them, pooled.

    `repeats` names the axis whose frames show one view; by default T is tried, "" uses none. Images of one shape
    without T count as its frames where they show one view, or if "T" says so. `family` is "auto", "correlated" or one
    of gaussian, poisson, poissongaussian, gamma, signaldependent. `dims` says what will be denoised together: planes
    (2) or, by default where there is a Z, volumes (3); only the noise of volumes is correlated along Z. `kernel` is how
    correlation in the plane is described: as "measured", "parametric" by cos(omega r) exp(-r^2 / 2 a^2), or "auto", the
    second where it fits. `mask` is true where pixels may be used. `dark` and `flat` are stacks (T, Y, X) of calibration
    frames.
    """
    family = family.lower().replace("-", "").replace("_", "")
    if family not in ("auto", "correlated", *FAMILIES):
        raise InputError(f"There is no noise family {family!r}; choose auto, correlated, {', '.join(FAMILIES)}.")
    if kernel not in KERNELS:
        raise InputError(f"There is no kernel {kernel!r}; choose {', '.join(KERNELS)}.")
    sources = as_series(as_sources(images, axes), repeats, mask)
    counts = {source.size.get("C", 1) for source in sources}
    if len(counts) > 1:
        raise InputError(f"The images have {sorted(counts)} channels; give images with one number of channels.")
    repeated = [repeat_axis(source, repeats) for source in sources]
    volume = _volume(sources[0], repeated[0], dims)
    calibration = None if dark is None and flat is None else calibrate(dark, flat)
    asked = True if family == "correlated" else None
    measured = [
        measure_channel(
            [stack for _, stack in views(sources, repeated, c, mask)],
            list(slabs(sources, repeated, c, mask)) if volume else [],
            correlated=asked,
            strict=bool(repeats),
            kernel=kernel,
        )
        for c in range(counts.pop())
    ]
    found = [channel for channel in measured if channel is not None]
    if not found:
        raise InputError(
            "No block of these images shows any noise: they are saturated, masked, constant or free of noise; give "
            "images as the instrument wrote them."
        )
    deep = volume and any(source.size.get("Z", 1) > 1 for source in sources)
    return _conclude(measured, found, family, calibration, volume, deep, np.random.default_rng(seed))


def _conclude(
    measured: Sequence[Channel | None],
    found: Sequence[Channel],
    family: str,
    calibration: Calibration | None,
    volume: bool,
    deep: bool,
    rng: np.random.Generator,
) -> NoiseEstimate:
    ties = find_ties(found, volume)
    declared = family not in ("auto", "correlated")
    as_correlated = ties.kernel is not None and not declared
    powers = (1.0,) if as_correlated else POWERS
    names = (family,) if declared else FAMILIES
    candidates = [
        {law.family: law for law in laws if law and (declared or as_correlated or plausible(law, channel.levels))}
        for channel in found
        for laws in [[fit_family(name, *_bins(channel), powers) for name in names]]
    ]
    if not all(candidates):
        raise InputError(f"These images cannot have {family} noise: their signal is negative or has one level only.")
    coarse = any(channel.correlated and not channel.repeats for channel in found)
    best = choose(candidates, coarse=coarse)
    if calibration is not None:
        best = "poissongaussian"
    laws = [_law(best, _bins(channel), calibration, powers) for channel in found]
    method = "repeats" if all(channel.repeats for channel in found) else "flat blocks"
    method = method if calibration is None else "calibration"
    intervals = [
        _interval(law, channel, calibration, powers, SYSTEMATIC[method], rng)
        for law, channel in zip(laws, found, strict=True)
    ]
    sds = [np.sqrt(np.maximum(law.variance(channel.shown), TINY)) for law, channel in zip(laws, found, strict=True)]
    lean = float(np.mean([np.median(high / sd) - 1 for (_, high), sd in zip(intervals, sds, strict=True)]) / 2)
    lean = float(np.clip(lean, 0, LARGEST_LEAN))
    unsure = max(float(np.median((high - low) / sd)) / 2 for (low, high), sd in zip(intervals, sds, strict=True))
    kernel = ties.kernel if as_correlated else None
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
        spectrum=None if ties.correlation is None else power_of(ties.correlation),
        autocorrelation=ties.correlation,
        lag1=ties.lag1,
        shape=ties.shape if as_correlated else None,
        levels=tuple(channel.levels for channel in found),
        channels=tuple(number for number, channel in enumerate(measured) if channel is not None),
        calibration=calibration,
        warnings=sentences(measured, laws, candidates, best, family, ties, deep, calibration, unsure),
    )


def _volume(source: Source, repeated: str, dims: int | None) -> bool:
    if dims not in (None, 2, 3):
        raise InputError(f"dims={dims!r} must be 2 for planes or 3 for volumes.")
    if dims == 3 and "Z" not in source.axes:
        raise InputError(f"dims=3 needs a Z axis, but the axes are {source.axes!r}; use dims=2.")
    return dims == 3 or (dims is None and "Z" in source.axes and repeated != "Z")


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
        weight = freedom / np.maximum(variance, TINY) ** 2
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
    sd = np.sqrt(np.maximum(law.variance(channel.shown), TINY))
    tiles = channel.curve.sums.shape[1]
    logs = []
    for _ in range(DRAWS):
        bins = channel.curve.drawn(rng.multinomial(tiles, np.full(tiles, 1 / tiles)).astype(float))
        if len(bins[0]) >= min(2, len(channel.curve.level)):
            drawn = _law(law.family, bins, calibration, powers)
            logs.append(0.5 * np.log(np.maximum(drawn.variance(channel.shown), TINY)) - np.log(sd))
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
