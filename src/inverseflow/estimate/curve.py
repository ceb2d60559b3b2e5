"""The noise curve: variance against signal level, from the flat blocks of a set of images.

A block is called flat when its low-frequency energy, in units of the variance at its level, lies below the chi-squared
quantile `FLAT`. The variance at each level comes from the high frequencies of those blocks, the flat blocks from that
variance: a few rounds settle it, starting from the flattest blocks of every level. Curves are fitted to bins of equal
numbers of blocks by least squares in relative units with coefficients >= 0; what texture is left can only raise a bin,
so bins that lie above the curve pull less than bins below it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.stats import chi2

from .blocks import HIGHS, LOWS, Blocks
from .clipping import NEAREST, unclipped
from .levels import Levels

Array = np.ndarray[Any, Any]
FLAT = 0.5
FLATTEST = 0.05
FEWEST = 0.01
"""The share of the blocks that is used where hardly any is flat."""
STILL = 3.0
"""Blocks of a difference with more than so many times the median low-frequency energy of their level have moved."""
SMOOTHEST = 0.4
"""Of the blocks of a difference, the share with the least variation of the signal itself: in the others the noise of
many levels is mixed.
"""
SLACK = 0.03
"""Relative error of a bin's variance that is not statistical: texture, compression, vignetting."""
BINS = (2, 24)
BLOCKS_PER_BIN = 64
ROUNDS = 8
BEYOND = 1.5
"""A bin this many standard deviations above the curve begins to lose weight."""
HARDLY_FLAT, NOWHERE_FLAT = 0.02, 0.002
ALIKE = 1.7
"""Blocks that differ by their noise alone, correlated or not, have a `spread` of 1.4 to 1.6, textured ones up to 6."""
TINY = 1e-150
CLEAR_SHARE = 0.1
"""Of the blocks, where some are near a clip level."""
CLIP_ROUNDS = 5
"""Until what was clipped and the curve that says how much agree."""


@dataclass(frozen=True)
class Curve:
    """Bins of the noise curve and what the bootstrap needs to draw them again."""

    level: Array
    variance: Array
    freedom: Array
    """Degrees of freedom of each bin's variance."""
    sums: Array
    """(3, tiles, bins): number of chosen blocks, sum of their levels, sum of their energies in units of `smooth`."""
    per_block: float
    flat: float
    """Share of the blocks that are flat, or of those of a difference that did not move."""
    range: tuple[float, float]
    shape: Array
    """Bernstein coefficients of the smooth curve over `range`."""
    spread: float = 1.0
    """Median over 10 % quantile of the blocks' low-frequency energy, in units of the variance at their level."""
    cap: float = np.inf
    """No bin counts for more degrees of freedom than this."""

    @property
    def textured(self) -> bool:
        """Is hardly any block flat because of the image? Correlated noise leaves none flat at all, or all alike."""
        return NOWHERE_FLAT < self.flat < HARDLY_FLAT and self.spread > ALIKE

    def smooth(self, level: Array) -> Array:
        """Variance at any level, from the curve that assumes no family; half that of a bin at least."""
        smooth: Array = np.maximum(bernstein(level, self.range) @ self.shape, 0.5 * float(self.variance.min()))
        return smooth

    def scaled(self, factor: float) -> Curve:
        return replace(self, variance=self.variance * factor, shape=self.shape * factor)

    def in_units(self, unit: float) -> Curve:
        """The same curve of data that are larger by this factor."""
        return replace(
            self,
            level=self.level * unit,
            variance=self.variance * unit**2,
            sums=self.sums * np.array([1, unit, 1])[:, None, None],
            range=(self.range[0] * unit, self.range[1] * unit),
            shape=self.shape * unit**2,
        )

    def trusted(self, slack: float) -> Curve:
        """The same bins with a relative error of `slack` of their variance that is not statistical."""
        cap = 2 / slack**2
        return replace(self, cap=cap, freedom=_capped(self.freedom, cap))

    def drawn(self, weights: Array) -> tuple[Array, Array, Array]:
        """Level, variance and degrees of freedom of the bins with each tile counted `weights` times."""
        count, level, energy = np.einsum("t,ktb->kb", weights, self.sums)
        good = (count > 0) & (energy > 0)
        freedom = _capped(np.maximum(count[good] * self.per_block, 1), self.cap)
        level = level[good] / count[good]
        return level, self.smooth(level) * energy[good] / count[good], freedom


def _capped(freedom: Array, cap: float) -> Array:
    return freedom / (1 + freedom / cap)


def measure_curve(blocks: Blocks, levels: Levels, *, flattest: float | None = None) -> Curve:
    """The curve of these blocks. In blocks of differences, which know how `rough` the signal is, every frequency
    measures the noise.

    `flattest`: take this share of all blocks by rank instead of the chi-squared rule, which holds for white noise only.
    """
    if levels.low is None and levels.high is None:
        return _measure(blocks, flattest)
    enough = max(BLOCKS_PER_BIN, CLEAR_SHARE * len(blocks))
    curve = _measure(blocks, flattest)
    for _ in range(CLIP_ROUNDS):
        tried = (unclipped(blocks, levels, curve.smooth, nearest) for nearest in NEAREST)
        clear = next((found for found in tried if len(found) >= enough), None)
        if clear is None:
            break
        curve = _measure(clear, flattest)
    return curve


def _measure(blocks: Blocks, flattest: float | None) -> Curve:
    bins = int(np.clip(len(blocks) / blocks.overlap / BLOCKS_PER_BIN, *BINS))
    edges = np.unique(np.quantile(blocks.mean, np.linspace(0, 1, bins + 1)))
    bins = max(len(edges) - 1, 1)
    place = np.clip(np.searchsorted(edges, blocks.mean, side="right") - 1, 0, bins - 1)
    span = (float(edges[0]), float(edges[-1]))
    if blocks.rough is not None:
        energy, coefficients = (LOWS * blocks.low + HIGHS * blocks.high) / (LOWS + HIGHS), LOWS + HIGHS
        still = _still(blocks.low, place, bins)
        chosen, share = still & _least(blocks.rough, place, bins, SMOOTHEST), float(still.mean())
    else:
        energy, coefficients = blocks.high, HIGHS
        chosen, share = _least(blocks.low, place, bins, FLATTEST), 1.0
        if flattest is not None:
            chosen = blocks.low <= np.quantile(blocks.low, flattest)
    measured, per_block = energy, coefficients / blocks.overlap
    limit, spread = float(chi2.ppf(FLAT, LOWS)) / LOWS, 1.0
    basis = bernstein(blocks.mean, span)
    for turn in range(ROUNDS):
        count, sums, total = (np.bincount(place, chosen * x, bins) for x in (1.0, blocks.mean, energy))
        used = (count > 0) & (total > 0)
        level, variance = sums[used] / count[used], total[used] / count[used]
        freedom = np.maximum(count[used] * per_block, 1)
        shape = fit(bernstein(level, span), variance, freedom)[0]
        if blocks.rough is not None and turn < 2:
            energy = measured * _of_one_level(blocks, measured, span, shape)
            continue
        if flattest is not None or blocks.rough is not None:
            break
        flatness = blocks.low / np.maximum(basis @ shape, 1e-3 * float(np.median(variance)))
        flat = flatness < limit
        share = float(flat.mean()) / FLAT
        lower, middle = np.quantile(flatness, [0.1, 0.5])
        spread = float(middle / max(lower, TINY))
        again = flat if flat.mean() >= FEWEST else flatness <= np.quantile(flatness, FEWEST)
        if np.mean(again != chosen) < 1e-3 or turn == ROUNDS - 1:
            break
        chosen = again
    tiles = int(blocks.tile.max()) + 1
    cell = blocks.tile * bins + place
    found = Curve(level, variance, freedom, np.empty(0), per_block, share, span, shape, spread)
    # in units of the curve at each block's own level: a bin that spans many levels is not biased by the curve's bend
    units = energy / found.smooth(blocks.mean)
    tables = [np.bincount(cell, chosen * x, tiles * bins) for x in (1.0, blocks.mean, units)]
    table = np.stack(tables).reshape(3, tiles, bins)[:, :, used]
    return replace(found, variance=found.smooth(level) * table[2].sum(0) / table[0].sum(0), sums=table)


def _of_one_level(blocks: Blocks, energy: Array, span: tuple[float, float], shape: Array) -> Array:
    """Variance at a block's mean level over its mean variance, v + v'' Var[x0] / 2 where the signal varies in it."""
    assert blocks.rough is not None
    step = 0.05 * (span[1] - span[0])
    below, here, above = (bernstein(blocks.mean + by, span) @ shape for by in (-step, 0.0, step))
    bend = np.maximum(above - 2 * here + below, 0) / max(step**2, TINY)
    inside = np.maximum(blocks.rough - energy / 2, 0)  # the signal is the mean of two frames
    ratio: Array = here / np.maximum(here + bend * inside / 2, TINY)
    return np.where(here > 0, ratio, 1.0)


def _still(low: Array, place: Array, bins: int) -> Array:
    median = np.array([np.median(low[place == b]) if (place == b).any() else 0.0 for b in range(bins)])
    return low <= STILL * median[place]


def _least(energy: Array, place: Array, bins: int, share: float) -> Array:
    """The given share of every bin with the least energy, at least eight blocks."""
    chosen = np.zeros(len(energy), bool)
    for b in range(bins):
        inside = np.flatnonzero(place == b)
        count = min(len(inside), max(8, int(share * len(inside))))
        chosen[inside[np.argsort(energy[inside])[:count]]] = True
    return chosen


def bernstein(level: Array, span: tuple[float, float]) -> Array:
    """Cubic Bernstein polynomials over `span` (n, 4): with coefficients >= 0 their sum is never negative."""
    u = np.clip((level - span[0]) / max(span[1] - span[0], TINY), 0, 1)
    return np.stack([(1 - u) ** 3, 3 * u * (1 - u) ** 2, 3 * u * u * (1 - u), u**3], -1)


def fit(terms: Array, variance: Array, freedom: Array, rounds: int = 15) -> tuple[Array, Array, float]:
    """Coefficients >= 0 of `terms` (bins, k), the fitted variance, and the misfit in squared standard deviations."""
    error = np.sqrt(2 / freedom + SLACK**2)
    floor = 1e-3 * float(np.median(variance))
    fitted, pull = variance, np.ones_like(variance)
    for turn in range(rounds):
        weight = pull / (fitted * error)
        coefficients, _ = nnls(terms * weight[:, None], variance * weight)
        before, fitted = fitted, np.maximum(terms @ coefficients, floor)
        above = (variance / fitted - 1) / error
        pull = np.sqrt(BEYOND / np.maximum(above, BEYOND))
        if turn and np.abs(fitted / before - 1).max() < 1e-4:
            break
    off = np.log(variance / fitted) / error
    misfit = np.where(off > BEYOND, BEYOND * (2 * off - BEYOND), off**2).sum()
    return coefficients, fitted, float(misfit)
