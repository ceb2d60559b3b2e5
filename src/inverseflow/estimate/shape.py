"""A kernel of two numbers, g(r) = cos(omega r) exp(-r^2 / 2 a^2), where it fits the spectrum that flat blocks show.

omega = 0 is a Gaussian blur, omega = 1 the paper's kernel. Fitted is the square root of the spectrum through the
window, by least squares, with the noise's size as a factor; a likelihood would be ruled by frequencies that have hardly
any power. The lowest frequencies do not count: texture adds to them, and taking away each block's plane takes from
them. That, and two numbers instead of hundreds, is why the fit is nearer to the truth than what was measured.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from .kernel import SIDE
from .spectrum import CYCLES, REACH, WINDOW_LAGS, Spectrum

Array = np.ndarray[Any, Any]
LOWEST = 1.5
"""Cycles per block from which frequencies count."""
WIDTHS, WAVES = (0.3, 4.0), (0.0, 2.0)
"""Of a and omega, in pixels; a wider kernel does not fit into a block."""
MISFIT = 0.1
"""Relative misfit, beyond the error of the measurement, from which the kernel has another shape. Kernels below it (2 x
2 pixels, a resampling) lose at most 3 % of their size, those above it up to 15 % (exponential, two widths).
"""
SKEW = 0.1
"""Difference of the correlation along y and along x from which no round kernel will do, however small both are."""
_GRID = 64
_LAGS = np.r_[0 : SIDE // 2, -SIDE // 2 : 0]
_REACH = SIDE // 2
_RADIUS = np.hypot(*np.mgrid[-_REACH : _REACH + 1, -_REACH : _REACH + 1])
_WEIGHT = np.where(CYCLES >= LOWEST, 1.0, 0.0) * np.sqrt(2.0)
_WEIGHT[:, [0, -1]] /= np.sqrt(2.0)  # these columns stand for themselves, the others for two


def fitted(spectrum: Spectrum, *, always: bool = False) -> Spectrum:
    """The spectrum of the best kernel of this shape, or, unless `always`, what was measured where it does not fit."""
    measured = np.sqrt(np.maximum(spectrum.windowed, 0)) * _WEIGHT
    trials = _trials()
    shapes = np.stack([shape for _, shape in trials])
    start = trials[int(np.argmin([_left(measured, shape) @ _left(measured, shape) for shape in shapes]))][0]
    bounds = ([np.log(WIDTHS[0]), WAVES[0]], [np.log(WIDTHS[1]), WAVES[1]])
    best = least_squares(lambda x: _left(measured, _shape(np.exp(x[0]), x[1])), start, bounds=bounds, diff_step=1e-3)
    a, omega = float(np.exp(best.x[0])), float(best.x[1])
    misfit = np.sqrt(2 * best.cost / max(float(np.sum(measured**2)), 1e-300))
    round_enough = abs(spectrum.lag1[0] - spectrum.lag1[1]) < SKEW
    fits = misfit < MISFIT + 0.5 / np.sqrt(spectrum.blocks)
    if not always and not (fits and round_enough):
        return spectrum
    shape = _shape(a, omega)
    lags = np.arange(-REACH, REACH + 1)
    correlation = _correlation(a, omega)[np.ix_(lags, lags)]
    return replace(spectrum, correlation=correlation, scale=_size(measured, shape) ** 2, shape=(a, omega))


def _correlation(a: float, omega: float) -> Array:
    """Of two pixels by their lag, on a periodic grid that is large enough."""
    kernel = np.cos(omega * _RADIUS) * np.exp(-(_RADIUS**2) / (2 * a * a))
    power = np.abs(np.fft.fft2(kernel, s=(_GRID, _GRID))) ** 2
    correlation: Array = np.fft.ifft2(power).real / np.sum(kernel**2)
    return correlation


def _shape(a: float, omega: float) -> Array:
    """Square root of the spectrum through the window, weighted, for noise of size 1."""
    seen = _correlation(a, omega)[np.ix_(_LAGS, _LAGS)] * WINDOW_LAGS
    shape: Array = np.sqrt(np.maximum(np.fft.rfft2(seen).real, 0)) * _WEIGHT
    return shape


def _size(measured: Array, shape: Array) -> float:
    return float(np.sum(measured * shape) / np.sum(shape**2))


def _left(measured: Array, shape: Array) -> Array:
    return (measured - _size(measured, shape) * shape).ravel()


@functools.cache
def _trials() -> list[tuple[tuple[float, float], Array]]:
    """Where the search may start: (log a, omega) and its shape."""
    widths, waves = np.geomspace(0.4, 3.5, 10), np.linspace(0.01, 1.6, 8)
    return [((float(np.log(a)), float(omega)), _shape(a, omega)) for a in widths for omega in waves]
