"""The marks that a detector leaves: the lowest and highest value it can write, and the step between values.

A clip level shows as a share of pixels that sit exactly on the smallest or largest value, more than on the value next
to it, and more than the fall from there to the third would explain. A step shows as values that all lie on one lattice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter, minimum_filter

Array = np.ndarray[Any, Any]
CLIPPED_SHARE = 0.002
CLIPPED_PIXELS = 20
PADDED = 0.01
"""Share of equal neighbours from which padding is looked for."""
LOOKED_AT = 2**19
LARGEST_INTEGER = 2.0**23
"""In single precision all larger numbers are integers."""
OFF_LATTICE = 0.02
"""How far from the lattice, in steps, a value may lie: single precision of scaled integers."""


@dataclass(frozen=True)
class Levels:
    """`low` and `high`: clip levels, or None; `step`: of the lattice, or 0; `share` of the pixels that are clipped."""

    low: float | None = None
    high: float | None = None
    step: float = 0.0
    share: float = 0.0

    def times(self, factor: float) -> Levels:
        """Those of data that are larger by this factor."""
        low, high = (None if level is None else level * factor for level in (self.low, self.high))
        return Levels(low, high, self.step * factor, self.share)

    def touched(self, x: Array) -> Array:
        """Where x sits on a clip level."""
        at = np.zeros(x.shape, bool)
        if self.low is not None:
            at |= x <= self.low
        if self.high is not None:
            at |= x >= self.high
        return at


def without_padding(plane: Array) -> Array:
    """The plane with NaN where an 8 x 8 neighbourhood is constant: borders of registered or stitched images, not data.

    Counts so few that whole neighbourhoods are empty go the same way; they hold no noise to measure.
    """
    same = np.mean(plane[:, 1:] == plane[:, :-1])
    if same < PADDED:
        return plane
    constant = maximum_filter(plane, 8, mode="nearest") == minimum_filter(plane, 8, mode="nearest")
    if not constant.any():
        return plane
    padded = maximum_filter(constant, 8, origin=-1)  # every pixel of such a neighbourhood
    return np.where(padded, np.float32(np.nan), plane)


def find_levels(planes: Sequence[Array]) -> Levels:
    every = max(1, sum(plane.size for plane in planes) // LOOKED_AT)
    values = np.concatenate([plane.ravel()[::every] for plane in planes])
    values = values[np.isfinite(values)].astype(np.float64)
    if not values.size:
        return Levels()
    unique, counts = np.unique(values, return_counts=True)
    if len(unique) < 4:  # a constant or a mask: nothing to tell
        return Levels()
    share = counts / counts.sum()
    often = (share >= CLIPPED_SHARE) & (counts >= CLIPPED_PIXELS)
    low = bool(often[0] and _heaped(*share[:3]))
    high = bool(often[-1] and _heaped(*share[:-4:-1]))
    return Levels(
        float(unique[0]) if low else None,
        float(unique[-1]) if high else None,
        _step(unique, len(values)),
        float(share[0] * low + share[-1] * high),
    )


def _heaped(end: float, second: float, third: float) -> bool:
    """Is more at the end than belongs there? Counts may fall as fast, but then go on falling faster still."""
    return end > 2 * second and end * third > second**2


def _step(unique: Array, count: int) -> float:
    if len(unique) > count // 2:  # too few values to see a lattice, unless it is that of the integers
        return float(np.array_equal(unique, np.round(unique)) and abs(unique).max() < LARGEST_INTEGER)
    apart = np.diff(unique)
    step = float(np.median(apart[apart < 1.5 * apart.min()]))
    off = (unique - unique[0]) / step
    return step if np.abs(off - np.round(off)).max() < OFF_LATTICE * max(1.0, off.max() / 256) else 0.0
