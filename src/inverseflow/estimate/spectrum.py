"""Correlation of the noise between pixels: its power spectrum, from flat blocks or from differences of repeats.

Flat blocks. Windowed 32 x 32 blocks without their plane, each in units of the noise at its level; blocks are ranked by
their energy, in units of the spectrum, on one half of a checkerboard of frequencies and the spectrum is averaged over
the flattest on the other half; then the halves change places, until it settles. So no frequency is measured on blocks
that it helped to choose. The window ties neighbouring frequencies, so a little of the choice leaks: on images that are
flat everywhere the sd comes out 2 to 6 % low, on textured ones texture makes up for it.
White or not. Texture that is left makes low frequencies too strong, so the test looks at high frequencies alone: white
noise has the same power around half and around the whole Nyquist frequency, along either axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .blocks import HIGHS, ROUNDING, Blocks
from .kernel import SIDE, padded
from .levels import Levels

Array = np.ndarray[Any, Any]
REACH = 12
"""Lags up to which correlation is kept."""
FLATTEST, FIRST_FLATTEST = 0.08, 0.12
OF_FLAT = 0.7
"""Of all blocks at least `FLATTEST` are used, and `OF_FLAT` of those that are flat: twice as many as have less energy
than the spectrum. The fewer of the flat ones, the more does choosing them lower what they measure.
"""
RING = (1.5, 4.0)
"""Cycles per block of the frequencies that say what lower ones must be."""
FEWEST = 8
ROUNDS, FIRST_ROUNDS = 20, 8
"""Until the spectrum settles. What is called first is for the test of whiteness, which looks at high frequencies alone,
where texture is faint, so that it takes more blocks.
"""
TEST_BLOCKS, MOST_BLOCKS = 1024, 8192
"""For the test of whiteness, and for the spectrum where noise is not white. Larger data give blocks that lie further
apart, not more of them.
"""
CLIPPED_PIXELS = 0.02
SOME, MUCH = 0.1, 0.25
"""Power, relative to the mean, from which a frequency holds some noise and much noise."""
BANDWIDTH = 2.25
"""Frequencies that a two-dimensional Hann window makes one."""
UNEVEN = (0.8, 1.4)
"""Power around half the Nyquist frequency over power near it, outside of which noise is not white."""
UNEVEN_IN_TEXTURE = 1.8
"""The upper limit in textured images, because texture itself falls with frequency."""
MILD = 0.1
"""Correlation of neighbours, beyond three standard errors, from which noise is not white."""
LAG_ERROR = 0.4
"""Standard error of `high_lag1` in units of `uneven_error`: white noise on photographs, measured."""
_INSIDE = np.hanning(SIDE + 2)[1:-1]
_WINDOW = np.outer(_INSIDE, _INSIDE)
_WINDOW = (_WINDOW / np.sqrt(np.mean(_WINDOW**2))).astype(np.float32)
WINDOW_LAGS = np.fft.irfft2(np.abs(np.fft.rfft2(_WINDOW)) ** 2) / SIDE**2
"""What the window leaves of the covariance at each lag."""
_KY, _KX = np.mgrid[:SIDE, : SIDE // 2 + 1]
_FY = np.minimum(_KY, SIDE - _KY)
CYCLES = np.hypot(_FY, _KX)
_LAGS = np.hypot(*np.mgrid[-REACH : REACH + 1, -REACH : REACH + 1])
TAPER = np.cos(np.pi / 2 * np.clip((_LAGS - REACH / 2) / (REACH / 2 + 1), 0, 1)) ** 2  # far lags are mostly error
FINE = (CYCLES >= SIDE / 6).ravel()
DIAGONAL = ((_FY >= 6) & (_KX >= 6)).ravel()
_BOARD = ((_FY // 3 + _KX // 3) % 2 == 1).ravel()
HALVES = (_BOARD, ~_BOARD)
"""Fields of 3 x 3, since the window ties neighbouring frequencies; alike for ky and -ky, which at kx = 0 are one."""
_SMALL = ((_FY // 2 + _KX // 2) % 2 == 1).ravel()
"""Fields of 2 x 2 see texture better, where it does not matter that what they choose measures a little less."""


@dataclass(frozen=True)
class Spectrum:
    """`correlation` (2 REACH + 1)^2 with 1 at its centre; `scale` the variance of the blocks, in units of the curve
    that they were divided by; `error` its relative standard error.
    """

    correlation: Array
    scale: float
    error: float
    uneven: tuple[float, float]
    blocks: float
    """Independent blocks behind it."""
    windowed: Array
    """As it was measured, through the window, on the grid of `periodograms`."""
    shape: tuple[float, float] | None = None
    """a and omega, where a kernel of that shape stands for what was measured."""

    @property
    def uneven_error(self) -> float:
        """Relative standard error of `uneven`: white noise, measured."""
        return 0.28 / float(np.sqrt(max(self.blocks, 1)))

    @property
    def high_lag1(self) -> tuple[float, float]:
        """`lag1` from high frequencies alone, S = s (1 + 2 a cos wy + 2 b cos wx): right for noise that is nearly white
        and blind to the texture that is left at low frequencies.
        """
        high = DIAGONAL.reshape(_FY.shape)
        wave = 2 * np.pi / SIDE
        terms = np.stack([np.ones(high.sum()), 2 * np.cos(wave * _FY[high]), 2 * np.cos(wave * _KX[high])], -1)
        size, y, x = np.linalg.lstsq(terms, self.windowed[high], rcond=None)[0]
        return float(np.clip(y / size, -1, 1)), float(np.clip(x / size, -1, 1))

    @property
    def lag1(self) -> tuple[float, float]:
        """Correlation of neighbours along y and along x."""
        return float(self.correlation[REACH + 1, REACH]), float(self.correlation[REACH, REACH + 1])

    @property
    def lag_error(self) -> float:
        return LAG_ERROR * self.uneven_error

    def white(self, *, textured: bool) -> bool:
        """Is the noise white? In a textured image fine detail may fall with frequency without the noise doing so."""
        chance = float(np.exp(3 * self.uneven_error))
        lower, upper = UNEVEN[0] / chance, (UNEVEN_IN_TEXTURE if textured else UNEVEN[1]) * chance
        even = all(lower < ratio < upper for ratio in self.uneven)
        return even and (textured or max(map(abs, self.high_lag1)) < MILD + 3 * self.lag_error)

    @property
    def sure_lag1(self) -> tuple[float, float]:
        """What is left of `high_lag1` without three standard errors."""
        y, x = (float(np.sign(lag)) * max(abs(lag) - 3 * self.lag_error, 0.0) for lag in self.high_lag1)
        return y, x


def periodograms(plane: Array, levels: Levels, stride: int = SIDE // 2) -> tuple[Array, Array, Array]:
    """Mean level, windowed periodogram and tile (some neighbours along a row) of every usable 32 x 32 block."""
    good, mean, coefficients = transformed(plane, levels, stride)
    return mean, np.abs(coefficients) ** 2, np.flatnonzero(good) // 4


def transformed(plane: Array, levels: Levels, stride: int) -> tuple[Array, Array, Array]:
    """Which 32 x 32 blocks are usable, and of these the mean level and the coefficients (blocks, frequencies), through
    the window and without their plane.
    """
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
    coefficients = (np.fft.rfft2(flat * _WINDOW) / SIDE).reshape(len(flat), _BOARD.size).astype(np.complex64)
    mean = mean.ravel().astype(np.float64)
    varied = np.mean(np.abs(coefficients) ** 2, axis=1) > ROUNDING * mean**2
    good[np.flatnonzero(good)[~varied]] = False
    return good, mean[varied], coefficients[varied]


def flat_spectrum(power: Array, rounds: int = ROUNDS, share: float = FLATTEST) -> Spectrum | None:
    """The noise's spectrum from normalised periodograms (blocks, frequencies), or None where there are too few.

    At least this share of the blocks is used.
    """
    if len(power) < FEWEST:
        return None
    least = count = max(FEWEST, int(share * len(power)))
    found = power[np.argsort(power.sum(1))[:count]].mean(0)
    for _ in range(rounds):
        better, below, before = found.copy(), 0, count
        for half in HALVES:
            energy, own = flatness(power, found, half)
            # a block that mixes dark and bright is divided by too high a level: judge its energy by its own
            rank = energy / np.minimum(own, 1)
            chosen = np.argpartition(rank, count - 1)[:count]
            better[~half] = power[chosen][:, ~half].mean(0)
            total = power[chosen].mean(1)
            below += int((rank < 1).sum()) // 2
        settled = np.abs(better - found).mean() < 3e-3 * found.mean()
        found, count = better, int(np.clip(OF_FLAT * 2 * below, least, len(power)))
        if settled and abs(count - before) <= 0.02 * before:
            break
    error = float(total.std() / total.mean() / np.sqrt(max(count / 2, 1)))  # neighbours share half of their pixels
    return _spectrum(covariance_of(continued(found)), error, found.reshape(_KY.shape), count / 2)


def continued(spectrum: Array) -> Array:
    """With the lowest frequencies as those next to them say, log S = a + b ky^2 + c kx^2: texture adds to them, and
    taking away each block's plane takes from them.
    """
    result = np.maximum(spectrum.reshape(_KY.shape), 1e-6 * float(spectrum.max()))
    inside, ring = RING[0] > CYCLES, (RING[0] <= CYCLES) & (RING[1] > CYCLES)
    terms = np.stack([np.ones(_KY.shape), _FY**2, _KX**2], -1)
    weight = np.where(_KX == 0, 1.0, np.sqrt(2.0))[ring]  # each but those of kx = 0 stands for two
    fit = np.linalg.lstsq(terms[ring] * weight[:, None], np.log(result[ring]) * weight, rcond=None)[0]
    result[inside] = np.exp(terms[inside] @ fit)
    return result


def covariance_of(spectrum: Array) -> Array:
    """(2 REACH + 1)^2 with lag 0 at its centre, from a spectrum on the grid of `periodograms`, without the window."""
    spectrum = spectrum.reshape(_KY.shape)
    covariance = np.fft.fftshift(np.fft.irfft2(spectrum, s=(SIDE, SIDE)) / np.maximum(WINDOW_LAGS, 0.05))
    middle = slice(SIDE // 2 - REACH, SIDE // 2 + REACH + 1)
    return covariance[middle, middle]


def flatness(power: Array, spectrum: Array, half: Array) -> tuple[Array, Array]:
    """Mean and, over ln 2, median of each block's energy in units of the spectrum: both about 1 for a flat one.

    Frequencies where correlated noise has no power do not count: only images have some there. The mean sees structure;
    the median, over fine detail with much noise, hardly does, so it is the block's own level of noise.
    """
    noisy = half & (spectrum > SOME * spectrum.mean())
    noisy = noisy if noisy.any() else half
    fine = half & (spectrum > MUCH * spectrum.mean()) & FINE
    fine = fine if fine.sum() > 30 else noisy
    own = np.median(power[:, fine] / spectrum[fine], axis=1) / np.log(2)
    return (power[:, noisy] / spectrum[noisy]).mean(1), np.maximum(own, 1e-6)


def spectral_blocks(mean: Array, power: Array, tile: Array, spectrum: Array) -> Blocks:
    """The same cross-frequency rule as blocks for a noise curve: ranked on one half, measured on the other, both ways.

    Ranked at any level, by mean over median; measured by the median. Its size does not matter, only how it varies.
    """
    (mean_a, own_a), (mean_b, own_b) = (flatness(power, spectrum, half) for half in (_SMALL, ~_SMALL))
    low, high = np.concatenate([mean_a / own_a, mean_b / own_b]), np.concatenate([own_b, own_a])
    used = float(np.mean((spectrum > MUCH * spectrum.mean()) & FINE)) * SIDE**2 / 2
    freedom = used / BANDWIDTH / 2  # a median is half as efficient as a mean
    overlap = HIGHS / max(freedom / 2, 1)  # neighbours share half of their pixels
    return Blocks(np.tile(mean, 2), low.astype(float), high.astype(float), np.tile(tile, 2), overlap)


def difference_spectrum(noise: Array) -> Spectrum | None:
    """The spectrum of normalised noise itself (frames, Y, X), nothing taken away but the mean of each frame."""
    good = np.isfinite(noise)
    if good.sum() < SIDE**2 or min(noise.shape[1:]) < SIDE:
        return None
    values = np.where(good, noise, 0) - good * (np.where(good, noise, 0).sum((1, 2)) / good.sum((1, 2)))[:, None, None]
    pairs = lagged(good.astype(np.float32), good.astype(np.float32))
    covariance = lagged(values, values) / np.maximum(pairs, 1) * TAPER
    grid = np.fft.rfft2(np.fft.ifftshift(padded(covariance))).real
    power = np.maximum(grid, 1e-6 * grid.max())
    # the variance of a mean of squares is 2 sum(rho^2) / n
    error = float(np.sqrt(2 * np.sum((covariance / covariance[REACH, REACH]) ** 2) / good.sum()))
    return _spectrum(covariance, error, power, good.sum() / SIDE**2)


def lagged(first: Array, second: Array) -> Array:
    """Sum over frames (frames, Y, X) and pixels of first at a place times second at that place moved by each lag."""
    size = tuple(n + REACH for n in first.shape[1:])
    a = np.fft.rfft2(first, s=size)
    b = a if second is first else np.fft.rfft2(second, s=size)
    lags = np.arange(-REACH, REACH + 1)
    sums: Array = np.fft.irfft2((a.conj() * b).sum(0), s=size)[np.ix_(lags, lags)]
    return sums


def _spectrum(covariance: Array, error: float, power: Array, blocks: float) -> Spectrum:
    scale = float(covariance[REACH, REACH])
    correlation = covariance / scale
    correlation = (correlation + correlation[::-1, ::-1]) / 2
    return Spectrum(correlation, scale, error, _uneven(power), blocks, power)


def _uneven(power: Array) -> tuple[float, float]:
    """Middle over outer frequencies along y and along x, both away from the low frequencies of the other axis."""

    def ratio(along: Array, other: Array) -> float:
        middle, outer = (along >= 6) & (along <= 10) & (other >= 6), (along >= 13) & (other >= 6)
        return float(power[middle].mean() / max(power[outer].mean(), 1e-9 * power.mean()))

    return ratio(_FY, _KX), ratio(_KX, _FY)
