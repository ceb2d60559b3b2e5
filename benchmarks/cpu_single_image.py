"""One 512 x 512 capture on two CPU cores: FMD, real noise, scored against the average of 50 captures.

    python -m benchmarks.cpu_single_image --data ../shared/data/FMD [--methods ours,blur,tv,...] [--samples A,B]

The noise is measured from captures 2 to 4, never from the truth; capture 1 is denoised. PSNR with peak 255, and again
after the best affine fit to the truth (captures differ in brightness, which no denoiser can win back). Rows marked
"oracle" choose their parameter by the truth and are bounds, not methods.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imageio.v3 import imread

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result
from inverseflow.metrics import psnr

SAMPLES = ("Confocal_BPAE_G", "TwoPhoton_MICE", "WideField_BPAE_R", "Confocal_BPAE_R", "WideField_BPAE_G")


def load(data: Path, sample: str) -> tuple[np.ndarray, np.ndarray]:
    """The four captures and the average of 50."""
    captures = np.stack([imread(data / "raw" / f"{sample}_{number}.png") for number in (1, 2, 3, 4)])
    return captures.astype(np.float64), imread(data / "gt" / f"{sample}_1.png").astype(np.float64)


def score(result: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    slope, intercept = np.polyfit(result.ravel(), truth.ravel(), 1)
    plain, fitted = (
        psnr(torch.from_numpy(image), torch.from_numpy(truth), 255) for image in (result, slope * result + intercept)
    )
    return {"psnr": round(plain, 2), "psnr_affine": round(fitted, 2)}


def ours(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
    result: np.ndarray = ivf.denoise(noisy, noise, axes="YX", preset="fast", device="cpu", progress=False)
    return result.astype(np.float64)


def blur_oracle(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    results = [gaussian_filter(noisy, width) for width in np.arange(0.3, 5.0, 0.1)]
    return min(results, key=lambda result: float(((result - truth) ** 2).mean()))


def calibrated(function: Callable[..., Any], grid: dict[str, Any]) -> Callable[..., np.ndarray]:
    """A classical filter whose parameter is chosen by J-invariance, as scikit-image proposes."""

    def method(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
        from skimage.restoration import calibrate_denoiser

        chosen = calibrate_denoiser(noisy / 255, function, grid)
        return np.asarray(chosen(noisy / 255)) * 255

    return method


def nlm(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
    from skimage.restoration import denoise_nl_means, estimate_sigma

    sigma = float(estimate_sigma(noisy / 255))
    return denoise_nl_means(noisy / 255, h=0.8 * sigma, sigma=sigma, patch_size=5, patch_distance=6) * 255


def wavelet(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
    from skimage.restoration import denoise_wavelet

    return np.asarray(denoise_wavelet(noisy / 255, rescale_sigma=True)) * 255


def tv(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
    from skimage.restoration import denoise_tv_chambolle

    return calibrated(denoise_tv_chambolle, {"weight": np.geomspace(0.01, 1, 25)})(noisy, noise, truth)


def bm3d(noisy: np.ndarray, noise: ivf.Noise, truth: np.ndarray) -> np.ndarray:
    """BM3D in the right domain: with the noise's spectrum, or after a generalised Anscombe transformation."""
    from bm3d import bm3d as run

    if not hasattr(np, "trapz"):
        setattr(np, "trapz", np.trapezoid)  # noqa: B010  # bm3d 4.0.3 still asks for the old name
    if isinstance(noise, ivf.CorrelatedGaussian | ivf.CorrelatedSignal):
        kernel = np.asarray(noise.kernel)
        sd = float(noise.std(torch.from_numpy(noisy)[None, None]).square().mean().sqrt())
        padded = np.zeros(noisy.shape)
        padded[: kernel.shape[0], : kernel.shape[1]] = kernel
        spectrum = np.abs(np.fft.fft2(padded)) ** 2 * sd**2 * noisy.size
        return np.asarray(run(noisy, spectrum))
    assert isinstance(noise, ivf.PoissonGaussian)
    gain, sigma, offset = (float(value) for value in (noise.gain, noise.sigma, noise.offset))
    signal = np.maximum(gain * (noisy - offset) + 0.375 * gain**2 + sigma**2, 0)
    stable = np.asarray(run(2 / gain * np.sqrt(signal), 1.0))
    # The closed-form approximation of the exact unbiased inverse (Makitalo and Foi 2013).
    d = np.maximum(stable, 1e-3)
    counts = 0.25 * d**2 + 0.25 * np.sqrt(1.5) / d - 1.375 / d**2 + 0.625 * np.sqrt(1.5) / d**3 - 0.125
    return np.maximum(counts - (sigma / gain) ** 2, 0) * gain + offset


METHODS: dict[str, Callable[..., np.ndarray]] = {
    "ours": ours,
    "blur (oracle)": blur_oracle,
    "nlm": nlm,
    "wavelet": wavelet,
    "tv (J-invariance)": tv,
    "bm3d": bm3d,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/FMD"))
    parser.add_argument("--samples", default=",".join(SAMPLES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu_single_image.json")
    arguments = parser.parse_args()
    table: dict[str, Any] = {}
    for sample in arguments.samples.split(","):
        captures, truth = load(arguments.data, sample)
        found = ivf.estimate_noise(captures[1:], axes="TYX", repeats="T")
        noise = found.noise
        table[sample] = {"noise": str(found), "input": score(captures[0], truth)}
        for name in arguments.methods.split(","):
            started = time.perf_counter()
            try:
                result = METHODS[name](captures[0], noise, truth)
            except ImportError as error:
                print(f"{sample:18} {name:18} not installed ({error.name})", flush=True)
                continue
            figures = score(result, truth) | {"seconds": round(time.perf_counter() - started, 1)}
            table[sample][name] = figures
            print(f"{sample:18} {name:18} {figures}", flush=True)
    write_result(arguments.output, {"threads": torch.get_num_threads(), "samples": table})


if __name__ == "__main__":
    main()
