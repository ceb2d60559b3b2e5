"""Figures of a noisy image beside a clean one. Nothing here needs the truth.

z = (x1 - mean(x0_hat)) / std(x0_hat) is the residual in units of the declared noise. For the posterior mean its
variance is below 1, by as much as the estimate is unsure, so it is compared with the z of simulated data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage
from torch import Tensor

from ..noise import Noise
from ..tensors import Generator

Array = np.ndarray[Any, Any]
LEVELS, BANDS, WHOLE = 6, 8, 256
QUANTILES = (0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995)
NEARBY = 0.0025
"""Of the values: as far from one in rank counts as near it."""
NEGLIGIBLE = 0.05
"""Of the noise's mean power: what a band has less of is not compared."""
SIDE, STRIDE, QUIETEST, FEWEST = 24, 6, 0.01, 8


@dataclass(frozen=True)
class Residual:
    """Of one channel: by intensity of the result, by frequency, by rank, and its tie to the result's fine detail."""

    mean: Array
    variance: Array
    power: Array
    quantiles: Array
    detail: float


def standardised(noisy: Tensor, clean: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """z and the declared standard deviation, (B, C, *S). Where a noise vanishes (no light, no photons) its tenth part
    stands in.
    """
    clean = noise.project(clean)
    sd = noise.std(clean)
    typical = sd.square().flatten(2).mean(2).sqrt().reshape(*sd.shape[:2], *(1,) * (sd.ndim - 2))
    sd = torch.maximum(sd, 0.1 * typical)
    return (noisy - noise.mean(clean)) / sd, sd


def residuals(noisy: Tensor, clean: Tensor, noise: Noise) -> list[Residual]:
    """One for each channel of (B, C, *S)."""
    z, sd = standardised(noisy, clean, noise)
    return [_residual(planes(z, c), planes(clean, c), planes(sd, c)) for c in range(z.shape[1])]


def _residual(z: Array, clean: Array, sd: Array) -> Residual:
    level = ndimage.gaussian_filter(clean, (0, 1, 1))
    parts = np.array_split(z.ravel()[np.argsort(level, axis=None)], LEVELS)
    detail = np.stack([ndimage.laplace(plane) for plane in clean]) / sd
    tie = float((z * detail).mean() / max(float(np.sqrt((detail**2).mean() * z.var())), 1e-12))
    return Residual(
        mean=np.array([part.mean() for part in parts]),
        variance=np.array([(part**2).mean() for part in parts]),
        power=band_power(z),
        quantiles=np.quantile(z, QUANTILES),
        detail=tie,
    )


def size_by_rank(values: Array, sd: Array) -> Array:
    """The noise around each of the QUANTILES of the values, at least the typical one: bright structures in a dark image
    are few, and their noise is not the image's.
    """
    order, reach = np.argsort(values, axis=None), max(1, round(NEARBY * values.size))
    at = [round(q * (values.size - 1)) for q in QUANTILES]
    variance = sd.ravel() ** 2
    around = [variance[order[max(0, k - reach) : k + reach + 1]].mean() for k in at]
    return np.asarray(np.sqrt(np.maximum(around, variance.mean())))


def planes(x: Tensor, channel: int) -> Array:
    """The planes (n, Y, X) of one channel of (B, C, *S)."""
    values = x[:, channel].detach().cpu().double().numpy()
    return values.reshape(-1, *values.shape[-2:])


def band_power(images: Array, others: Array | None = None) -> Array:
    """Mean power of planes (n, Y, X), or what two of them share, in rings of frequency up to the Nyquist frequency; of
    few pixels fewer rings, so that the innermost has as many frequencies as in 256 x 256.
    """
    _, height, width = images.shape
    bands = int(np.clip(BANDS * np.sqrt(images.size) / WHOLE, 1, BANDS))
    window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    first, *second = (
        np.fft.rfft2((x - x.mean((1, 2), keepdims=True)) * window) for x in (images, others) if x is not None
    )
    power = (first * (second[0] if second else first).conj()).real.mean(0) / (window**2).sum()
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    ring = np.minimum((frequency * 2 * bands).astype(int), bands - 1)
    counts = np.bincount(ring.ravel(), minlength=bands)
    return np.asarray(np.bincount(ring.ravel(), power.ravel(), minlength=bands) / np.maximum(counts, 1))


def log_ratio(a: Array, b: Array, floor: float) -> float:
    """The largest |log(a / b)|, where what both have less of than `floor` does not count."""
    return float(np.abs(np.log((a + floor) / (b + floor))).max())


def spectral_distance(a: Array, b: Array, floor: float) -> float:
    """Root mean square over the bands of log(power of a / power of b)."""
    return float(np.sqrt(np.mean(np.log((band_power(a) + floor) / (band_power(b) + floor)) ** 2)))


def quiet_noise(noisy: Tensor, noise: Noise, flat: Tensor, generator: Generator) -> list[float]:
    """For each channel: log of the noise in the quietest blocks over what the declared noise has in its own.

    Blocks are whitened by the declared spectrum, ranked on one half of a checkerboard of frequencies and measured on
    the other. `flat` is an image of the same shape without structure, on which the declared noise is drawn.
    """
    drawn = noise.draw(flat, generator)
    found = []
    for channel in range(noisy.shape[1]):
        declared, seen = (_block_power(x, noise, channel) for x in (drawn, noisy))
        spectrum = declared.mean(0)
        heard = spectrum > 0.02 * spectrum.max()
        board = (np.indices(spectrum.shape).sum(0) % 2).astype(bool)[heard]
        quiet = [_quietest(power[:, heard] / spectrum[heard], board) for power in (seen, declared)]
        found.append(0.5 * float(np.log(quiet[0] / quiet[1])))
    return found


def _block_power(x: Tensor, noise: Noise, channel: int) -> Array:
    """Periodograms of windowed blocks without their plane, over the declared variance at their level."""
    level = planes(x, channel)
    side = min(SIDE, *level.shape[1:])
    smooth = x.clone()
    smooth[:, channel] = torch.from_numpy(ndimage.uniform_filter(level, (0, side, side))).to(x).reshape(x[:, 0].shape)
    variance = _blocks(planes(noise.std(noise.project(smooth)), channel) ** 2, side).mean((1, 2))
    blocks = _blocks(level, side)
    ramp = np.arange(side) - (side - 1) / 2
    ramp /= max(1e-12, float(np.sqrt((ramp**2).sum() * side)))
    flat = blocks - blocks.mean((1, 2), keepdims=True)
    flat -= np.einsum("nyx,y->n", blocks, ramp)[:, None, None] * ramp[:, None]
    flat -= np.einsum("nyx,x->n", blocks, ramp)[:, None, None] * ramp
    window = np.hanning(side + 2)[1:-1]
    power: Array = np.abs(np.fft.rfft2(flat * window * window[:, None])) ** 2
    loud = variance > 0.1 * variance.mean()  # in the dark a relative error of the declared variance means nothing
    power = power[loud] / variance[loud, None, None]
    return power


def _blocks(images: Array, side: int) -> Array:
    windows = sliding_window_view(images, (side, side), axis=(1, 2))
    return np.asarray(windows[:, ::STRIDE, ::STRIDE]).reshape(-1, side, side)


def _quietest(power: Array, board: Array) -> float:
    count = min(len(power), max(FEWEST, int(QUIETEST * len(power))))
    means = []
    for chosen_by in (board, ~board):
        quiet = np.argsort(power[:, chosen_by].mean(1))[:count]
        means.append(power[quiet][:, ~chosen_by].mean())
    return float(np.mean(means))


def smoothed(x: Tensor, channel: int) -> Array:
    """The local level of a noisy image, planes (n, Y, X)."""
    return np.asarray(ndimage.gaussian_filter(planes(x, channel), (0, 2, 2)))


def neighbours(z: Tensor, axis: int) -> float:
    """Correlation of neighbours along an axis."""
    z = z - z.mean()
    count = z.shape[axis] - 1
    return float((z.narrow(axis, 1, count) * z.narrow(axis, 0, count)).mean() / z.square().mean())
