"""From the correlation of the noise to its power spectrum and to the kernel that gives it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SIDE, DEPTH = 32, 16
"""Of the grid on which spectra are given: SIDE x SIDE for planes, DEPTH x SIDE x SIDE for volumes."""
ASYMMETRY = 0.05
NEGLIGIBLE = 1e-4
"""Of a kernel's energy, along each axis."""


def symmetric(correlation: Array) -> Array:
    """The mean over flips and turns of the plane, or over flips alone, where it is within the error of the measurement:
    a symmetric noise lets training flip and turn its patches.
    """
    every = itertools.product((1, -1), repeat=correlation.ndim)
    flips = [correlation[tuple(slice(None, None, way) for way in ways)] for ways in every]
    turned = [*flips, *(flip.swapaxes(-2, -1) for flip in flips)]
    for group in (turned, flips):
        mean: Array = np.mean(group, axis=0)
        if np.abs(mean - correlation).max() < ASYMMETRY:
            return mean
    return correlation


def power_of(correlation: Array) -> Array:
    """Power spectrum on a grid of SIDE x SIDE, or DEPTH x SIDE x SIDE, zero frequency first, mean 1.

    It is the nearest spectrum of that mean that is nowhere negative: cutting what errors have made negative would leave
    their positive half, and so whiten the noise.
    """
    grid = np.fft.fftn(np.fft.ifftshift(padded(correlation))).real
    grid = grid / grid.mean()
    fall = np.sort(grid.ravel())[::-1]
    over = (np.cumsum(fall) - fall.size) / np.arange(1, fall.size + 1)  # off each of the n largest, to make the mean 1
    power: Array = np.maximum(grid - over[np.flatnonzero(fall > over)[-1]], 0)
    return power


def kernel_of(power: Array) -> Array:
    """The zero-phase kernel of a power spectrum, with odd sides so that it has a centre, and nothing outside of where
    it is not negligible.
    """
    kernel = np.fft.fftshift(np.fft.ifftn(np.sqrt(power)).real)[(slice(1, None),) * power.ndim]
    for axis, n in enumerate(kernel.shape):
        profile = np.square(kernel).sum(tuple(other for other in range(kernel.ndim) if other != axis))
        outside = np.cumsum(profile + profile[::-1])[: n // 2]  # up to each distance from the edges
        cut = int(np.searchsorted(outside, NEGLIGIBLE * profile.sum()))
        kernel = kernel.take(range(cut, n - cut), axis)
    return kernel


def padded(correlation: Array) -> Array:
    """Lags on the grid of `power_of`, zero lag in its middle."""
    grid = (DEPTH, SIDE, SIDE)[-correlation.ndim :]
    before = [side // 2 - n // 2 for side, n in zip(grid, correlation.shape, strict=True)]
    after = [side - n - b for side, n, b in zip(grid, correlation.shape, before, strict=True)]
    return np.pad(correlation, list(zip(before, after, strict=True)))
