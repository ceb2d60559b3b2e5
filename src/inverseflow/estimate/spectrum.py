"""Correlation of the noise between pixels: its power spectrum, from flat blocks or from differences of repeats.

Flat blocks. Windowed 32 x 32 blocks without their plane, each in units of the noise at its level; blocks are ranked by
their energy, in units of the spectrum, on one half of a checkerboard of frequencies and the spectrum is averaged over
the flattest on the other half; then the halves change places, until it settles. So no frequency is measured on blocks
that it helped to choose.
White or not. Texture that is left makes low frequencies too strong, so the test looks at high frequencies alone: white
noise has the same power around half and around the whole Nyquist frequency, along either axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .blocks import HIGHS, ROUNDING, Blocks
from .levels import Levels

Array = np.ndarray[Any, Any]
SIDE = 32
REACH = 12
"""Lags up to which correlation is kept."""
FLATTEST = 0.12
FEWEST = 8
ROUNDS = 10
TEST_BLOCKS, MOST_BLOCKS = 1024, 8192
"""For the test of whiteness, and for the spectrum where noise is not white. Larger data give blocks that lie further
apart, not more of them.
"""
CLIPPED_PIXELS = 0.02
ASYMMETRY = 0.05
SOME, MUCH = 0.1, 0.25
"""Power, relative to the mean, from which a frequency holds some noise and much noise."""
BANDWIDTH = 2.25
"""Frequencies that a two-dimensional Hann window makes one."""
UNEVEN = (0.8, 1.4)
"""Power around half the Nyquist frequency over power near it, outside of which noise is not white."""
UNEVEN_IN_TEXTURE = 1.8
"""The upper limit where less than `HARDLY_FLAT` of the blocks is flat, because texture itself falls with frequency."""
HARDLY_FLAT = 0.02
_INSIDE = np.hanning(SIDE + 2)[1:-1]
_WINDOW = np.outer(_INSIDE, _INSIDE)
_WINDOW = (_WINDOW / np.sqrt(np.mean(_WINDOW**2))).astype(np.float32)
_KY, _KX = np.mgrid[:SIDE, : SIDE // 2 + 1]
_FY = np.minimum(_KY, SIDE - _KY)
_LAGS = np.hypot(*np.mgrid[-REACH : REACH + 1, -REACH : REACH + 1])
_TAPER = np.cos(np.pi / 2 * np.clip((_LAGS - REACH / 2) / (REACH / 2 + 1), 0, 1)) ** 2  # far lags are mostly error
_FINE = (np.hypot(_FY, _KX) >= SIDE / 6).ravel()
_BOARD = ((_KY // 2 + _KX // 2) % 2).astype(bool).ravel()


@dataclass(frozen=True)
class Spectrum:
    """`correlation` (2 REACH + 1)^2 with 1 at its centre; `scale` the variance of the blocks, in units of the curve
    that they were divided by; `error` its relative standard error.
    """

    correlation: Array
    scale: float
    error: float
    uneven: tuple[float, float]
    uneven_error: float
    """Relative standard error of `uneven`."""
    windowed: Array
    """As it was measured, through the window, on the grid of `periodograms`."""

    @property
    def high_lag1(self) -> tuple[float, float]:
        """`lag1` from high frequencies alone, S = s (1 + 2 a cos wy + 2 b cos wx): right for noise that is nearly white
        and blind to the texture that is left at low frequencies.
        """
        high = (_FY >= 6) & (_KX >= 6)
        wave = 2 * np.pi / SIDE
        terms = np.stack([np.ones(high.sum()), 2 * np.cos(wave * _FY[high]), 2 * np.cos(wave * _KX[high])], -1)
        size, y, x = np.linalg.lstsq(terms, self.windowed[high], rcond=None)[0]
        return float(np.clip(y / size, -1, 1)), float(np.clip(x / size, -1, 1))

    @property
    def lag1(self) -> tuple[float, float]:
        """Correlation of neighbours along y and along x."""
        return float(self.correlation[REACH + 1, REACH]), float(self.correlation[REACH, REACH + 1])

    def white(self, flat: float) -> bool:
        """Is the noise white, when this share of the blocks is as flat as white noise would leave it?"""
        chance = float(np.exp(3 * self.uneven_error))
        lower, upper = UNEVEN[0] / chance, (UNEVEN[1] if flat > HARDLY_FLAT else UNEVEN_IN_TEXTURE) * chance
        return all(lower < ratio < upper for ratio in self.uneven)


def periodograms(plane: Array, levels: Levels, stride: int = SIDE // 2) -> tuple[Array, Array, Array]:
    """Mean level, windowed periodogram and tile (some neighbours along a row) of every usable 32 x 32 block."""
    blocks = sliding_window_view(plane, (SIDE, SIDE))[::stride, ::stride].reshape(-1, SIDE, SIDE)
    good = np.isfinite(blocks).all((1, 2))
    if levels.low is not None or levels.high is not None:
        good &= levels.touched(blocks).mean((1, 2)) < CLIPPED_PIXELS
    blocks = blocks[good]
    mean = blocks.mean((1, 2), keepdims=True)
    ramp = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    ramp /= np.float32(np.sqrt(np.sum(ramp**2) * SIDE))
    across, down = np.einsum("nyx,y->n", blocks, ramp), np.einsum("nyx,x->n", blocks, ramp)
    flat = blocks - mean - across[:, None, None] * ramp[:, None] - down[:, None, None] * ramp
    power = np.abs(np.fft.rfft2(flat * _WINDOW)) ** 2 / SIDE**2
    varied = power.mean((1, 2)) > ROUNDING * mean.ravel() ** 2
    mean, power, good = mean[varied], power[varied], np.flatnonzero(good)[varied]
    return mean.ravel().astype(np.float64), power.reshape(len(power), _BOARD.size).astype(np.float32), good // 4


def flat_spectrum(power: Array) -> Spectrum | None:
    """The noise's spectrum from normalised periodograms (blocks, frequencies), or None where there are too few."""
    if len(power) < FEWEST:
        return None
    count = max(FEWEST, int(FLATTEST * len(power)))
    found = power[np.argsort(power.sum(1))[:count]].mean(0)
    for _ in range(ROUNDS):
        better = found.copy()
        for half in (_BOARD, ~_BOARD):
            energy, own = _flatness(power, found, half)
            # a block that mixes dark and bright is divided by too high a level: judge its energy by its own
            flatness = energy / np.minimum(own, 1)
            chosen = np.argpartition(flatness, count - 1)[:count]
            better[~half] = power[chosen][:, ~half].mean(0)
            total = power[chosen].mean(1)
        settled = np.abs(better - found).max() < 1e-3 * found.max()
        found = better
        if settled:
            break
    spectrum = found.reshape(SIDE, -1)
    window = np.fft.irfft2(np.abs(np.fft.rfft2(_WINDOW)) ** 2) / SIDE**2
    covariance = np.fft.fftshift(np.fft.irfft2(spectrum, s=(SIDE, SIDE)) / np.maximum(window, 0.05))
    middle = slice(SIDE // 2 - REACH, SIDE // 2 + REACH + 1)
    error = float(total.std() / total.mean() / np.sqrt(max(count / 2, 1)))  # neighbours share half of their pixels
    return _spectrum(covariance[middle, middle], error, spectrum, count / 2)


def _flatness(power: Array, spectrum: Array, half: Array) -> tuple[Array, Array]:
    """Mean and, over ln 2, median of each block's energy in units of the spectrum: both about 1 for a flat one.

    Frequencies where correlated noise has no power do not count: only images have some there. The mean sees structure;
    the median, over fine detail with much noise, hardly does, so it is the block's own level of noise.
    """
    noisy = half & (spectrum > SOME * spectrum.mean())
    fine = half & (spectrum > MUCH * spectrum.mean()) & _FINE
    fine = fine if fine.sum() > 30 else noisy
    own = np.median(power[:, fine] / spectrum[fine], axis=1) / np.log(2)
    return (power[:, noisy] / spectrum[noisy]).mean(1), np.maximum(own, 1e-6)


def spectral_blocks(mean: Array, power: Array, tile: Array, spectrum: Array) -> Blocks:
    """The same cross-frequency rule as blocks for a noise curve: ranked on one half, measured on the other, both ways.

    Ranked at any level, by mean over median; measured by the median. Its size does not matter, only how it varies.
    """
    (mean_a, own_a), (mean_b, own_b) = (_flatness(power, spectrum, half) for half in (_BOARD, ~_BOARD))
    low, high = np.concatenate([mean_a / own_a, mean_b / own_b]), np.concatenate([own_b, own_a])
    used = float(np.mean((spectrum > MUCH * spectrum.mean()) & _FINE)) * SIDE**2 / 2
    freedom = used / BANDWIDTH / 2  # a median is half as efficient as a mean
    overlap = HIGHS / max(freedom / 2, 1)  # neighbours share half of their pixels
    return Blocks(np.tile(mean, 2), low.astype(float), high.astype(float), np.tile(tile, 2), overlap)


def difference_spectrum(noise: Array) -> Spectrum | None:
    """The spectrum of normalised noise itself (frames, Y, X), nothing taken away but the mean of each frame."""
    good = np.isfinite(noise)
    if good.sum() < SIDE**2 or min(noise.shape[1:]) < SIDE:
        return None
    values = np.where(good, noise, 0) - good * (np.where(good, noise, 0).sum((1, 2)) / good.sum((1, 2)))[:, None, None]
    size = tuple(n + REACH for n in noise.shape[1:])
    products = np.fft.irfft2((np.abs(np.fft.rfft2(values, s=size)) ** 2).sum(0), s=size)
    pairs = np.fft.irfft2((np.abs(np.fft.rfft2(good.astype(np.float32), s=size)) ** 2).sum(0), s=size)
    lags = np.arange(-REACH, REACH + 1)
    covariance = (products / np.maximum(pairs, 1))[np.ix_(lags, lags)] * _TAPER
    grid = np.fft.rfft2(np.fft.ifftshift(_pad(covariance))).real
    power = np.maximum(grid, 1e-6 * grid.max())
    # the variance of a mean of squares is 2 sum(rho^2) / n
    error = float(np.sqrt(2 * np.sum((covariance / covariance[REACH, REACH]) ** 2) / good.sum()))
    return _spectrum(covariance, error, power, good.sum() / SIDE**2)


def symmetric(correlation: Array) -> Array:
    """The mean over flips and turns, or over flips alone, where it is within the error of the measurement: a symmetric
    noise lets training flip and turn its patches.
    """
    flips = [correlation, correlation[::-1], correlation[:, ::-1], correlation[::-1, ::-1]]
    turned = [*flips, *(flip.T for flip in flips)]
    for group in (turned, flips):
        mean: Array = np.mean(group, axis=0)
        if np.abs(mean - correlation).max() < ASYMMETRY:
            return mean
    return correlation


def power_of(correlation: Array) -> Array:
    """Power spectrum on a grid of SIDE, zero frequency first, mean 1."""
    grid = np.maximum(np.fft.fft2(np.fft.ifftshift(_pad(correlation))).real, 0)
    power: Array = grid / grid.mean()
    return power


def kernel_of(power: Array) -> Array:
    """The zero-phase kernel of a power spectrum, with odd sides so that it has a centre."""
    kernel: Array = np.fft.fftshift(np.fft.ifft2(np.sqrt(power)).real)[1:, 1:]
    return kernel


def _spectrum(covariance: Array, error: float, power: Array, blocks: float) -> Spectrum:
    scale = float(covariance[REACH, REACH])
    correlation = covariance / scale
    correlation = (correlation + correlation[::-1, ::-1]) / 2
    uneven_error = 0.14 * float(np.sqrt(4 / max(blocks, 1)))  # of four independent blocks: white noise, measured
    return Spectrum(correlation, scale, error, _uneven(power), uneven_error, power)


def _pad(covariance: Array) -> Array:
    """Lags -REACH..REACH on a grid of SIDE, zero lag at SIDE // 2."""
    before = SIDE // 2 - REACH
    return np.pad(covariance, ((before, before - 1), (before, before - 1)))


def _uneven(power: Array) -> tuple[float, float]:
    """Middle over outer frequencies along y and along x, both away from the low frequencies of the other axis."""

    def ratio(along: Array, other: Array) -> float:
        middle, outer = (along >= 6) & (along <= 10) & (other >= 6), (along >= 13) & (other >= 6)
        return float(power[middle].mean() / max(power[outer].mean(), 1e-9 * power.mean()))

    return ratio(_FY, _KX), ratio(_KX, _FY)
