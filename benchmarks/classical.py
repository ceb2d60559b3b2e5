"""Classical denoisers as people run them today, for comparison: an image (Y, X) in, the same out, in the image's units.

pip install 'inverseflow[bench]' brings what scikit-image's wavelets and BM3D need. Filters tuned by J-invariance
(Batson and Royer 2019) see the noisy image alone: of a grid of parameters they take those that best predict masked
pixels from the others, which works where the noise of neighbours is independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from skimage.restoration import (
    calibrate_denoiser,
    denoise_nl_means,
    denoise_tv_chambolle,
    denoise_wavelet,
    estimate_sigma,
)

import inverseflow as ivf

Array = np.ndarray[Any, Any]
SIGMAS = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2)  # of the estimated standard deviation, for NLM
THRESHOLDS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)  # the same, for wavelets
WEIGHTS = np.geomspace(0.003, 0.5, 24)  # for TV, of images in 0 to 1


def blur_oracle(noisy: Array, truth: Array) -> Array:
    """The Gaussian blur of the width, to 0.1 pixels, that the truth likes best: a bound, not a method."""
    results = [gaussian_filter(noisy, width) for width in np.arange(0.3, 5.0, 0.1)]
    return min(results, key=lambda result: float(((result - truth) ** 2).mean()))


def nlm(noisy: Array, *, peak: float = 255) -> Array:
    """Non-local means with the noise that scikit-image estimates."""
    sigma = float(estimate_sigma(noisy / peak))
    return _nlm(noisy / peak, h=0.8 * sigma, sigma=sigma) * peak


def nlm_tuned(noisy: Array, *, peak: float = 255, invariant: bool = False) -> Array:
    sigma = float(estimate_sigma(noisy / peak))
    grid = {"h": [s * sigma for s in SIGMAS], "sigma": [sigma], "patch_size": [3, 5, 7]}
    return _tuned(_nlm, noisy / peak, grid, invariant) * peak


def wavelet(noisy: Array, *, peak: float = 255) -> Array:
    """BayesShrink with the noise that scikit-image estimates."""
    return np.asarray(denoise_wavelet(noisy / peak, rescale_sigma=True)) * peak


def wavelet_tuned(noisy: Array, *, peak: float = 255, invariant: bool = False) -> Array:
    grid = {"sigma": [s * float(estimate_sigma(noisy / peak)) for s in THRESHOLDS], "rescale_sigma": [True]}
    return _tuned(denoise_wavelet, noisy / peak, grid, invariant) * peak


def tv_tuned(noisy: Array, *, peak: float = 255, invariant: bool = False) -> Array:
    return _tuned(denoise_tv_chambolle, noisy / peak, {"weight": WEIGHTS}, invariant) * peak


def bm3d(noisy: Array, noise: ivf.Noise, *, threads: int = 1) -> Array:
    """BM3D told the noise, in the domain where it is Gaussian and stationary."""
    if isinstance(noise, ivf.CorrelatedGaussian | ivf.CorrelatedSignal):
        return _run_bm3d(noisy, power_spectrum(noise, noisy), threads)
    if isinstance(noise, ivf.Gaussian):
        return _run_bm3d(noisy, float(noise.sigma), threads)
    if isinstance(noise, ivf.Poisson | ivf.PoissonGaussian):
        gain, offset, sigma = float(noise.gain), float(noise.offset), float(getattr(noise, "sigma", 0.0))
        stable = _run_bm3d(anscombe((noisy - offset) / gain, sigma / gain), 1.0, threads)
        return unbiased_inverse(stable, sigma / gain) * gain + offset
    raise TypeError(f"BM3D has no domain for {type(noise).__name__}.")


def power_spectrum(noise: ivf.CorrelatedGaussian | ivf.CorrelatedSignal, noisy: Array) -> Array:
    """E |FFT of the noise|^2. Noise that follows the signal is stationary only on average, so its mean is taken."""
    kernel = np.asarray(noise.kernel, np.float64)
    variance = float(noise.std(torch.from_numpy(noisy)[None, None]).square().mean())
    power: Array = np.abs(np.fft.fft2(kernel, noisy.shape)) ** 2 * variance * noisy.size
    return power


def anscombe(counts: Array, sigma: float) -> Array:
    """Photon counts with read-out noise become values whose noise has a standard deviation of about 1."""
    stable: Array = 2 * np.sqrt(np.maximum(counts + 3 / 8 + sigma**2, 0))
    return stable


def unbiased_inverse(stable: Array, sigma: float) -> Array:
    """The closed-form approximation of the exact unbiased inverse (Makitalo and Foi 2013); 0 counts at the lowest."""
    d = np.maximum(stable, 2 * np.sqrt(3 / 8))  # below it the approximation turns upwards
    counts = d**2 / 4 + np.sqrt(3 / 2) / (4 * d) - 11 / (8 * d**2) + 5 * np.sqrt(3 / 2) / (8 * d**3) - 1 / 8
    positive: Array = np.maximum(counts - sigma**2, 0)
    return positive


def _nlm(image: Array, **parameters: Any) -> Array:
    return np.asarray(denoise_nl_means(image, **{"patch_size": 5, "patch_distance": 6, "fast_mode": True} | parameters))


def _tuned(function: Callable[..., Array], image: Array, grid: Mapping[str, Sequence[Any]], invariant: bool) -> Array:
    """The filter with the best of the parameters, or (`invariant`) every pixel as its neighbours predict it.

    scikit-image advises the former, which also sees the pixel itself; the latter is what the choice was made for.
    """
    best, (tried, losses) = calibrate_denoiser(image, function, dict(grid), extra_output=True)
    return np.asarray(best(image) if invariant else function(image, **tried[int(np.argmin(losses))]))


def _run_bm3d(image: Array, noise: Array | float, threads: int) -> Array:
    import bm3d as package

    if not hasattr(np, "trapz"):
        setattr(np, "trapz", np.trapezoid)  # noqa: B010  # bm4d 4.2.5 still asks for the old name
    profile = package.BM3DProfile()
    profile.num_threads = threads
    low, high = float(image.min()), float(image.max())  # BM3D's constants are made for images in 0 to 1
    size = high - low
    scaled = noise / (size**2 if isinstance(noise, np.ndarray) else size)
    return np.asarray(package.bm3d((image - low) / size, scaled, profile)) * size + low
