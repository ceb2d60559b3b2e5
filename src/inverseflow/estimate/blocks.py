"""8 x 8 blocks: what is low-frequency in them tells whether they are flat, what is high-frequency measures the noise.

With the orthonormal DCT of a block, coefficient (i, j) of white noise has the variance of one pixel. The energies of
i + j < SPLIT (without the mean) and of i + j >= SPLIT are independent for white Gaussian noise, so choosing blocks by
the first does not bias the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .levels import Levels

Array = np.ndarray[Any, Any]
SIDE = 8
SPLIT = 9
TILE = 64
"""Side of the squares that the bootstrap draws, larger than any block or detail that blocks share."""
CHUNK = 4096
MOST_CLIPPED = 0.6
"""Share of a block's pixels that may sit on a clip level."""
ROUNDING = 1e-11
"""Energy below this share of the squared mean is the error of single precision: the block is constant."""
ENOUGH_PLANES = 10
BLOCKS = 2**18
"""Blocks are taken closer together than their side until there are about this many."""


def _dct() -> Array:
    k = np.arange(SIDE)
    basis = np.sqrt(2 / SIDE) * np.cos(np.pi * (2 * k + 1) * k[:, None] / (2 * SIDE))
    basis[0] /= np.sqrt(2)
    single: Array = basis.astype(np.float32)
    return single


DCT2 = np.kron(_dct(), _dct())  # rows: coefficients (i, j); columns: pixels
_ORDER = np.add.outer(np.arange(SIDE), np.arange(SIDE)).ravel()
_LOW, _HIGH = (_ORDER > 0) & (_ORDER < SPLIT), _ORDER >= SPLIT
LOWS, HIGHS = int(_LOW.sum()), int(_HIGH.sum())
_BASIS = np.ascontiguousarray(DCT2[np.r_[np.flatnonzero(_LOW), np.flatnonzero(_HIGH)]].T)


def high_energy(lag_y: float, lag_x: float) -> float:
    """Mean energy of a high coefficient, in units of the noise's variance, where neighbours correlate a little."""
    tied = (_dct()[:, 1:] * _dct()[:, :-1]).sum(1)  # of the values that a coefficient gives to neighbours
    energy = np.outer(1 + 2 * lag_y * tied, 1 + 2 * lag_x * tied).ravel()
    return float(energy[_HIGH].mean())


@dataclass(frozen=True)
class Blocks:
    """Per block: mean of the signal, mean energy of a low and of a high coefficient, and the tile it lies in."""

    mean: Array
    low: Array
    high: Array
    tile: Array
    overlap: float
    """How many times a pixel is counted, in the sense of degrees of freedom."""
    rough: Array | None = None
    """Variance of the signal inside the block, where the noise is measured on a difference."""
    clipped: Array | None = None
    """Share of the block's pixels that sit on a clip level, where there is one."""

    def __len__(self) -> int:
        return len(self.mean)

    def keep(self, chosen: Array) -> Blocks:
        parts: dict[str, Any] = {
            name: part[chosen] for name, part in vars(self).items() if isinstance(part, np.ndarray)
        }
        return replace(self, **parts)


def choose_stride(pixels: int) -> int:
    """8 (no overlap) for large data; smaller data needs every block it can give."""
    return next((s for s in (8, 4) if pixels // (s * s) >= BLOCKS // 8), 2)


def overlap_of(stride: int) -> float:
    """Variance of the mean energy of all blocks, over that of independent ones (white noise, measured)."""
    return {8: 1.0, 4: 2.7, 2: 10.0}[stride]


def measure_blocks(signal: Array, noise: Array, levels: Levels, stride: int) -> Blocks:
    """Blocks of a plane: `signal` says the level, `noise` is what is measured (the plane itself, or a difference)."""
    spoilt, ends = ~np.isfinite(noise), levels.low is not None or levels.high is not None
    at_end = levels.touched(signal) if ends else spoilt
    windows, bright, bad, ended = (
        sliding_window_view(x, (SIDE, SIDE))[::stride, ::stride] for x in (noise, signal, spoilt, at_end)
    )
    rows, columns = windows.shape[:2]
    step = max(1, CHUNK // columns)  # as many rows of blocks as stay in the cache
    parts = []
    for top in range(0, rows, step):
        block = windows[top : top + step].reshape(-1, SIDE * SIDE)
        energy = np.square(block @ _BASIS)
        light = block if signal is noise else bright[top : top + step].reshape(-1, SIDE * SIDE)
        rough = light.var(1) if signal is not noise else np.zeros(len(light), np.float32)
        at = ended[top : top + step].reshape(-1, SIDE * SIDE).mean(1) if ends else np.zeros(len(light))
        part = np.stack([light.mean(1), energy[:, :LOWS].mean(1), energy[:, LOWS:].mean(1), rough, at])
        if spoilt.any():
            part[:, bad[top : top + step].reshape(-1, SIDE * SIDE).any(1)] = np.nan
        parts.append(part)
    mean, low, high, rough, clipped = np.concatenate(parts, 1).astype(np.float64)
    tile = np.add.outer(np.arange(rows) * stride // TILE * 1024, np.arange(columns) * stride // TILE).ravel()
    good = np.isfinite(high) & (high > ROUNDING * mean**2) & (clipped <= MOST_CLIPPED)
    found = Blocks(mean, low, high, tile, overlap_of(stride), None if signal is noise else rough, clipped)
    return found.keep(good)


def join(parts: list[Blocks]) -> Blocks:
    """The blocks of many planes. The bootstrap then draws planes where there are enough of them, else tiles."""
    groups, shift = [], 0
    for number, part in enumerate(parts):
        groups.append(np.full(len(part), number) if len(parts) >= ENOUGH_PLANES else part.tile + shift)
        shift += int(part.tile.max(initial=0)) + 1
    mean, low, high = (np.concatenate([getattr(part, name) for part in parts]) for name in ("mean", "low", "high"))
    tile = np.unique(np.concatenate(groups), return_inverse=True)[1]
    rough, clipped = (_together([getattr(part, name) for part in parts]) for name in ("rough", "clipped"))
    return Blocks(mean, low, high, tile, parts[0].overlap, rough, clipped)


def _together(parts: list[Array | None]) -> Array | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None
