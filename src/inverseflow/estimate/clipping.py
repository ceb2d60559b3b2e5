"""What a clip level does to noise near it, and how to undo that.

Noise of standard deviation s whose mean lies d s above a level L, and which the detector writes no lower than L, has

    mean      L + s (d Phi(d) + phi(d))
    variance  s^2 ((d^2 + 1) Phi(d) + d phi(d) - (d Phi(d) + phi(d))^2)

if it is Gaussian; white noise stays white. Leaving out the blocks with clipped pixels instead would keep those whose
noise happens to be small. Above an upper level everything is mirrored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from .blocks import SIDE, Blocks
from .levels import Levels

Array = np.ndarray[Any, Any]
NEAREST = (1.5, 0.5)
"""Levels nearer to a clip level than so many standard deviations are left out, because much would have to be put back;
the second where the first leaves too little.
"""
TOO_MANY = 4.0
"""Blocks with more clipped pixels than belong to their level, by so many standard errors, hold something else."""
_D = np.linspace(-1, 8, 901)


def clipped_moments(d: Array) -> tuple[Array, Array]:
    """Mean above the level and variance, both in units of the noise that was clipped."""
    density = np.exp(-(d**2) / 2) / np.sqrt(2 * np.pi)
    mean = d * ndtr(d) + density
    return mean, (d**2 + 1) * ndtr(d) + d * density - mean**2


def unclipped(blocks: Blocks, levels: Levels, variance: Callable[[Array], Array], nearest: float) -> Blocks:
    """The blocks that are clear of the clip levels, with mean and energies as they were before clipping.

    `variance` of the noise before clipping, by level, as far as it is known; what comes back makes a better one.
    """
    sd = np.sqrt(variance(blocks.mean))
    good = np.ones(len(blocks), bool)
    kept, share, moved = np.ones(len(blocks)), np.zeros(len(blocks)), np.zeros(len(blocks))
    for level, way in ((levels.low, 1.0), (levels.high, -1.0)):
        if level is None:
            continue
        away = way * (blocks.mean - level) / sd
        d = np.where(away > _D[-1], away, np.interp(away, clipped_moments(_D)[0], _D))
        good &= away > nearest
        kept *= clipped_moments(d)[1]
        share += ndtr(-d)
        moved += way * (d - away) * sd
    if blocks.clipped is not None:
        good &= blocks.clipped <= share + TOO_MANY * np.sqrt(share) / SIDE
    kept = np.where(good, kept, 1.0)
    found = replace(blocks, mean=blocks.mean + moved, low=blocks.low / kept, high=blocks.high / kept)
    return found.keep(good)
