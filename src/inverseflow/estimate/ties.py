"""How the noise of pixels goes together, over all channels: in the plane, along z, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .channel import Channel
from .depth import in_volume
from .kernel import kernel_of, power_of, symmetric

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ties:
    """`kernel` (Y, X), or (Z, Y, X) for volumes, None where noise is white; `correlation` with lag 0 at its centre,
    None where it is not known well; `lag1` of neighbours along (z,) y and x.
    """

    kernel: Array | None
    correlation: Array | None
    lag1: tuple[float, ...] | None
    shape: tuple[float, float] | None = None
    """a and omega, where the correlation in the plane is that of cos(omega r) exp(-r^2 / 2 a^2)."""


def find_ties(channels: Sequence[Channel], volume: bool) -> Ties:
    spectra = [channel.spectrum for channel in channels if channel.spectrum is not None]
    if not spectra:
        return Ties(None, None, None)
    correlated = _most([channel.correlated for channel in channels])
    known = correlated or all(channel.repeats for channel in channels)  # else texture is in all but the finest detail
    plane = symmetric(np.mean([s.correlation for s in spectra], axis=0))
    lag1: tuple[float, ...] = tuple(np.mean([s.lag1 if known else s.high_lag1 for s in spectra], axis=0).tolist())
    depths = [channel.depth for channel in channels if channel.depth is not None]
    tied = bool(depths) and _most([depth.tied for depth in depths])
    if depths:
        along = [depth.lag1 if correlated and tied else float(depth.fine[1]) for depth in depths]
        lag1 = (float(np.mean(along)), *lag1)
    if tied:
        correlation = symmetric(in_volume(plane if correlated else None, depths))
        return Ties(kernel_of(power_of(correlation)), correlation, lag1)
    kernel = kernel_of(power_of(plane)) if correlated else None
    if kernel is not None and volume:
        kernel = kernel[None]
    shapes = [s.shape for s in spectra if s.shape is not None]
    a, omega = np.mean(shapes, axis=0).tolist() if len(shapes) == len(spectra) else (0.0, 0.0)
    return Ties(kernel, plane if known else None, lag1, (a, omega) if a else None)


def _most(votes: Sequence[bool]) -> bool:
    return 2 * sum(votes) > len(votes)
