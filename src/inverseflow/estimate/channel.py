"""One channel, measured: its noise curve and its spectrum, from repeated frames or from flat blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.ndimage import uniform_filter

from . import depth as dp
from . import spectrum as sp
from .blocks import Blocks, choose_stride, high_energy, join, measure_blocks
from .curve import Curve, measure_curve
from .depth import Depth
from .families import FAMILIES, choose, fit_family
from .kernel import SIDE
from .levels import Levels, find_levels, without_padding
from .planes import block_means, correlation
from .shape import fitted
from .spectrum import Spectrum

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]
"""The signal, and what the noise is measured on: the same plane, or the difference of two frames over sqrt 2."""
Periodograms = tuple[Array, Array, Array]
"""Level, periodogram and tile of 32 x 32 blocks."""
FEWEST_BLOCKS = 4
STILL_SHARE = 0.8
"""Frames in which fewer of the blocks agree show something that moves, not one view."""
BY_RANK = 0.1
COARSE = 0.15
"""Relative error of the variance at a level where it comes from 32 x 32 blocks, too large to be flat for certain."""


@dataclass(frozen=True)
class Channel:
    curve: Curve
    levels: Levels
    spectrum: Spectrum | None
    repeats: bool
    correlated: bool
    shown: Array
    """Signal levels, from the 1 % to the 99 % quantile of the blocks."""
    moved: bool = False
    depth: Depth | None = None
    """Correlation along z, where it was asked for."""


def measure_channel(
    stacks: Sequence[Array],
    slabs: Sequence[Array] = (),
    *,
    correlated: bool | None,
    strict: bool,
    kernel: str = "auto",
) -> Channel | None:
    """None where nothing can be measured: a constant channel, or one without a block clear of clipping and masks.

    `stacks` (R, Y, X) say everything but the correlation along z, which `slabs` (R, Z, Y, X) say. `correlated`: None to
    find out. `strict`: use the repeats even where much has moved between them. `kernel`: of correlated noise as
    flat blocks show it, "measured", "parametric" (see `shape`), or "auto" for the second where it fits.
    """
    levels, unit = find_levels(list(stacks)), _unit(stacks)
    inside, stacks, slabs = levels.times(1 / unit), _divided(stacks, unit), _divided(slabs, unit)
    channel = _measure_planes(stacks, inside, correlated, strict, kernel)
    if channel is None:
        return None
    depth = _depth(slabs, channel) if slabs else None
    return replace(channel, curve=channel.curve.in_units(unit), levels=levels, shown=channel.shown * unit, depth=depth)


def _unit(stacks: Sequence[Array]) -> float:
    """A power of two near the spread of the data: squares of its squares neither vanish nor overflow."""
    frames = [stack[0][np.isfinite(stack[0])] for stack in stacks]
    spread = max(float(frame.std(dtype=np.float64)) if frame.size else 0.0 for frame in frames)
    return float(2.0 ** np.round(np.log2(spread))) if spread else 1.0


def _divided(parts: Sequence[Array], unit: float) -> list[Array]:
    return [part / np.float32(unit) for part in parts]


def _measure_planes(
    stacks: Sequence[Array], levels: Levels, correlated: bool | None, strict: bool, kernel: str
) -> Channel | None:
    stacks = [np.stack([without_padding(frame) for frame in stack]) for stack in stacks]
    moved = False
    if max(len(stack) for stack in stacks) > 1:
        pairs = [pair for stack in stacks for pair in _differences(stack)]
        channel = _measure(pairs, levels, correlated, kernel, repeats=True)
        if strict or (channel is not None and channel.curve.flat >= STILL_SHARE):
            return channel
        moved = channel is not None
    singles = [(frame, frame) for stack in stacks for frame in stack]
    found = _measure(singles, levels, correlated, kernel, repeats=False)
    return None if found is None else replace(found, moved=moved)


def _depth(slabs: Sequence[Array], channel: Channel) -> Depth | None:
    curve, levels = channel.curve, channel.levels
    clear = [np.stack([[without_padding(plane) for plane in frame] for frame in slab]) for slab in slabs]
    if channel.repeats:
        volumes = [[_differences(slab[:, z]) for z in range(slab.shape[1])] for slab in clear]
        return dp.of_differences(
            [np.stack([_normalised(*pairs[0], levels, curve) for pairs in volume]) for volume in volumes if all(volume)]
        )
    if channel.spectrum is None:
        return None
    return dp.of_blocks([frame for slab in clear for frame in slab], levels, curve.smooth, channel.spectrum)


def _measure(
    pairs: Sequence[Pair], levels: Levels, correlated: bool | None, kernel: str, *, repeats: bool
) -> Channel | None:
    stride = choose_stride(sum(signal.size for signal, _ in pairs))
    parts = [measure_blocks(signal, noise, levels, stride) for signal, noise in pairs]
    parts = [part for part in parts if len(part)]
    if sum(map(len, parts)) < FEWEST_BLOCKS:
        return None
    blocks = join(parts)
    curve = measure_curve(blocks, levels)
    measured = None if repeats else _periodograms(pairs, levels, sp.TEST_BLOCKS)
    if measured:
        spectrum = sp.flat_spectrum(_in_units(measured, curve.smooth), sp.FIRST_ROUNDS, sp.FIRST_FLATTEST)
    else:
        spectrum = _of_differences(pairs, levels, curve) if repeats else None
    if correlated is None:
        correlated = spectrum is not None and not spectrum.white(textured=curve.textured)
    if correlated and spectrum is not None:
        every = _periodograms(pairs, levels, sp.MOST_BLOCKS) if measured else None
        curve, spectrum = _correlated_curve(every, kernel) if every else (curve.scaled(spectrum.scale), spectrum)
    elif spectrum is not None and measured and not curve.textured:
        curve = curve.scaled(1 / high_energy(*spectrum.sure_lag1))
    return Channel(curve, levels, spectrum, repeats, bool(correlated), _shown(blocks, curve))


def _correlated_curve(measured: Periodograms, kernel: str) -> tuple[Curve, Spectrum]:
    """Curve and spectrum of correlated noise, from 32 x 32 blocks alone: high frequencies may hold none of it.

    First as if the noise were alike at all levels; where the curve then says otherwise, again in units of it.
    """
    mean, power, tile = measured
    spectrum = sp.flat_spectrum(power)
    assert spectrum is not None  # there was one before
    blocks = sp.spectral_blocks(mean, power, tile, spectrum.windowed.ravel())
    curve = measure_curve(blocks, Levels(), flattest=BY_RANK).trusted(COARSE)
    bins = curve.level, curve.variance, curve.freedom
    laws = {name: law for name in FAMILIES if (law := fit_family(name, *bins, powers=(1.0,)))}
    law = laws[choose([laws], coarse=True)]
    floor = 0.05 * float(np.median(law.variance(mean)))
    spectrum = sp.flat_spectrum(_in_units(measured, lambda level: np.maximum(law.variance(level), floor))) or spectrum
    if kernel != "measured":
        spectrum = fitted(spectrum, always=kernel == "parametric")
    return curve.scaled(spectrum.scale), spectrum


def _shown(blocks: Blocks, curve: Curve) -> Array:
    low, high = np.clip(np.quantile(blocks.mean, [0.01, 0.99]), *curve.range)
    return np.linspace(float(low), float(high), 33)


def _periodograms(pairs: Sequence[Pair], levels: Levels, most: int) -> Periodograms | None:
    planes = [signal for signal, _ in pairs if min(signal.shape) >= SIDE]
    stride = max(SIDE // 2, int(np.sqrt(sum(plane.size for plane in planes) / most)))
    parts = [sp.periodograms(plane, levels, stride) for plane in planes]
    if sum(len(mean) for mean, _, _ in parts) < sp.FEWEST:
        return None
    tiles, shift = [], 0
    for _, _, tile in parts:
        tiles.append(tile + shift)
        shift += int(tile.max(initial=0)) + 1
    mean, power = (np.concatenate(part) for part in list(zip(*parts, strict=True))[:2])
    return mean, power, np.concatenate(tiles)


def _in_units(measured: Periodograms, variance: Callable[[Array], Array]) -> Array:
    mean, power, _ = measured
    return power / variance(mean).astype(np.float32)[:, None]


def _of_differences(pairs: Sequence[Pair], levels: Levels, curve: Curve) -> Spectrum | None:
    shape = pairs[0][0].shape
    frames = [_normalised(signal, noise, levels, curve) for signal, noise in pairs if signal.shape == shape]
    return sp.difference_spectrum(np.stack(frames))


def _normalised(signal: Array, noise: Array, levels: Levels, curve: Curve) -> Array:
    """A difference in units of the noise at each pixel's level; NaN where a pixel is clipped or masked."""
    known = np.where(np.isfinite(signal), signal, np.nanmean(signal))
    level = np.clip(uniform_filter(known, 5), curve.level.min(), curve.level.max())  # no weight to a guess
    result = noise / np.sqrt(curve.smooth(level.ravel()).reshape(level.shape))
    if levels.low is not None or levels.high is not None:
        result = np.where(levels.touched(signal), np.nan, result)
    return result


def _differences(stack: Array) -> list[Pair]:
    """Consecutive frames, brought to one brightness: bleaching and flicker are not noise."""
    pairs = []
    for first, second in itertools.pairwise(stack):
        a, b = block_means(first), block_means(second)
        good = np.isfinite(a) & np.isfinite(b)
        if not good.any():
            continue
        scale = 1.0
        if correlation(a, b) > 0.9 and good.sum() >= 16:
            scale = float(a[good].std() / b[good].std())
        matched = (second - b[good].mean()) * scale + a[good].mean()
        noise = (first - matched) / np.float32(np.sqrt(1 + scale**2))
        pairs.append(((first + matched) / 2, noise.astype(np.float32)))
    return pairs
