"""Correlation of the noise along Z: how a block goes with the blocks at its place in the planes next to it.

With F_z(k) the coefficients of a windowed 32 x 32 block of plane z, in units of the noise at its level, the
cross-spectrum of planes d apart is S_d(k) = E[conj F_z(k) F_z+d(k)], and its inverse transform the covariance at the
lag (d, y, x). Pairs of blocks are chosen on one half of the frequencies and measured on the other, as in `spectrum`.
Nothing is taken away along z, so that a few planes are enough.

What an image shows goes on from plane to plane, as correlated noise does. So whether planes are tied at all is asked of
fine detail alone, which flat blocks hardly have, and what the planes furthest apart still share is taken for the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import spectrum as sp
from .kernel import SIDE
from .levels import Levels

Array = np.ndarray[Any, Any]
REACH = 6
"""Planes over which correlation is kept."""
FAR = 4
"""Planes apart from which what is shared is taken for the image; of fewer planes, single frames tell nothing."""
MOSTLY = 0.5
"""Share of fine detail above which the image hides the noise."""
TIED = 0.1
"""Correlation of fine detail in neighbouring planes from which the noise is correlated along z."""


@dataclass(frozen=True)
class Depth:
    """`correlation` (lags, 2 sp.REACH + 1, 2 sp.REACH + 1) at lags 0, 1, ... along z, with 1 at the centre of lag 0;
    `fine` (lags,) the same of fine detail alone, and `error` its standard error.
    """

    correlation: Array
    fine: Array
    error: float

    @property
    def lag1(self) -> float:
        """Correlation of neighbours along z."""
        return float(self.correlation[1, sp.REACH, sp.REACH])

    @property
    def tied(self) -> bool:
        return abs(float(self.fine[1])) > TIED + 3 * self.error


def in_volume(plane: Array | None, depths: Sequence[Depth]) -> Array:
    """Correlation (2 lags - 1, Y, X), lag 0 at its centre. `plane`: that at lag 0 along z, None where it is white."""
    lags = min(len(depth.fine) for depth in depths)
    fade = np.cos(np.pi / 2 * np.clip((np.arange(lags) - REACH / 2) / (REACH / 2 + 1), 0, 1)) ** 2  # mostly error
    if plane is None:
        along = fade * np.mean([depth.fine[:lags] for depth in depths], axis=0)
        half = np.zeros((lags, *depths[0].correlation.shape[1:]))
        half[:, sp.REACH, sp.REACH] = along / along[0]
    else:
        half = fade[:, None, None] * np.mean([depth.correlation[:lags] for depth in depths], axis=0)
        half[0] = plane
    other: Array = np.concatenate([half[:0:-1, ::-1, ::-1], half])  # c(-d, -y, -x) = c(d, y, x)
    return other


def of_blocks(
    slabs: Sequence[Array], levels: Levels, variance: Callable[[Array], Array], spectrum: sp.Spectrum
) -> Depth | None:
    """From slabs (Z, Y, X) of single frames; None where they cannot tell: too few planes, or too few flat blocks."""
    slabs = [slab for slab in slabs if len(slab) > FAR and min(slab.shape[1:]) >= SIDE]
    if not slabs:
        return None
    stride = max(SIDE // 2, int(np.sqrt(sum(slab.size for slab in slabs) / sp.MOST_BLOCKS)))
    parts = [_blocks(slab, levels, variance, stride) for slab in slabs]
    windowed = spectrum.windowed.ravel()
    ranks = [[_ranks(part, windowed, half) for part in parts] for half in sp.HALVES]
    found = [lag for lag in (_crossed(parts, ranks, lag) for lag in range(REACH + 1)) if lag is not None]
    if len(found) <= FAR:
        return None
    image, power, _ = found[-1]
    detail = _detail(windowed)
    if image[detail].real.sum() > MOSTLY * power[detail].sum():
        return None
    noise = [(cross - image, power - image.real) for cross, power, _ in found[:-1]]
    fine = [float(np.clip(cross[detail].real.sum() / power[detail].sum(), -1, 1)) for cross, power in noise]
    error = 1 / np.sqrt(found[1][2] / 2 * detail.sum() / sp.BANDWIDTH)  # neighbours share half of their pixels
    correlation = [sp.covariance_of(cross) / sp.covariance_of(power)[sp.REACH, sp.REACH] for cross, power in noise]
    return Depth(np.stack(correlation) * sp.TAPER, np.array(fine), float(error))


def _crossed(parts: Sequence[Array], ranks: Sequence[Sequence[Array]], lag: int) -> tuple[Array, Array, int] | None:
    """Cross-spectrum of planes `lag` apart, power of the same blocks, and the number of pairs of blocks behind both."""
    cross, power, count = np.zeros(parts[0].shape[2], complex), np.zeros(parts[0].shape[2]), 0
    for half, rank in zip(sp.HALVES, ranks, strict=True):
        worse = [np.maximum(r[: max(len(r) - lag, 0)], r[lag:]) for r in rank]
        flat = np.concatenate([w.ravel() for w in worse])
        usable = int(np.isfinite(flat).sum())
        if usable < sp.FEWEST:
            return None
        count = min(usable, max(sp.FEWEST, int(sp.FLATTEST * usable), 2 * int((flat < 1).sum())))
        limit = np.partition(flat, count - 1)[count - 1]
        chosen = [np.nonzero(w <= limit) for w in worse]
        first, second = (
            np.concatenate([part[z + shift, at][:, ~half] for part, (z, at) in zip(parts, chosen, strict=True)])
            for shift in (0, lag)
        )
        cross[~half] = (first.conj() * second).mean(0)
        power[~half] = (np.abs(first) ** 2 + np.abs(second) ** 2).mean(0) / 2
    return cross, power, count


def of_differences(volumes: Sequence[Array]) -> Depth | None:
    """From normalised noise itself (Z, Y, X), NaN where it is not known."""
    lags = min(REACH + 1, min((len(volume) for volume in volumes), default=0))
    if lags < 2 or any(min(volume.shape[1:]) < SIDE for volume in volumes):
        return None
    products = np.zeros((lags, 2 * sp.REACH + 1, 2 * sp.REACH + 1))
    pairs, known = np.zeros_like(products), 0
    for volume in volumes:
        good = np.isfinite(volume)
        values = np.where(good, volume, 0)
        values -= good * (values.sum() / max(int(good.sum()), 1))
        known += int(good.sum())
        for lag in range(lags):
            planes = slice(0, len(volume) - lag), slice(lag, None)
            products[lag] += sp.lagged(values[planes[0]], values[planes[1]])
            pairs[lag] += sp.lagged(*(good[part].astype(np.float32) for part in planes))
    if known < SIDE**2:
        return None
    covariance = products / np.maximum(pairs, 1)
    correlation = covariance / covariance[0, sp.REACH, sp.REACH]
    error = np.sqrt(np.sum(correlation[0] ** 2) / known)
    return Depth(correlation * sp.TAPER, correlation[:, sp.REACH, sp.REACH], float(error))


def _blocks(slab: Array, levels: Levels, variance: Callable[[Array], Array], stride: int) -> Array:
    """(Z, places, frequencies): coefficients of the blocks in units of their noise, NaN of those not to be used."""
    planes = []
    for plane in slab:
        good, mean, coefficients = sp.transformed(plane, levels, stride)
        whole = np.full((len(good), coefficients.shape[1]), np.nan, np.complex64)
        whole[good] = coefficients / np.sqrt(variance(mean)).astype(np.float32)[:, None]
        planes.append(whole)
    return np.stack(planes)


def _ranks(blocks: Array, windowed: Array, half: Array) -> Array:
    """(Z, places): how far from flat each block is on one half of the frequencies, inf where it is not to be used."""
    good = np.isfinite(blocks[..., 0])
    ranks = np.full(good.shape, np.inf)
    energy, own = sp.flatness(np.abs(blocks[good]) ** 2, windowed, half)
    ranks[good] = energy / np.minimum(own, 1)
    return ranks


def _detail(windowed: Array) -> Array:
    """The finest frequencies that hold much noise; correlated noise may have none at the very finest."""
    much = windowed > sp.MUCH * windowed.mean()
    wanted = (sp.DIAGONAL & much, sp.FINE & much, much)
    return next((detail for detail in wanted if detail.sum() > 30), much)
