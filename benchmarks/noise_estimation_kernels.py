"""Correlated noise of many shapes, as its spectrum was measured and as a kernel of two numbers; and noise of volumes.

    python -m benchmarks.noise_estimation_kernels [--data DIR] [--images 100]

Photographs of the TRAINING split, on which the limits of the fit were chosen; the test split is `noise_estimation`'s.
`used` is how often the kernel cos(omega r) exp(-r^2 / 2 a^2) was found to fit, `sigma` the error of the noise's size
and `spectrum` the relative L2 error of the power spectrum, both in percent. "flat" is the same noise on a constant
image, where there is no texture and any loss is the method's own. Volumes: smooth synthetic ones; size in percent, and
the largest error of the correlation of neighbours along z, y and x, as estimated and as drawn again from the noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import ndimage

from benchmarks.common import RESULTS, write_result
from benchmarks.noise_estimation import DATA, POOL, photographs, spectrum_error
from inverseflow.estimate import NoiseEstimate, estimate_noise
from inverseflow.noise import CorrelatedGaussian, Gaussian, Noise

SIGMA = 25 / 255
ROW = np.array([[1.0, 2.0, 1.0]])
SHAPES: dict[str, CorrelatedGaussian] = {
    "the paper's, a=2": CorrelatedGaussian.cosine(SIGMA, 2.0),
    **{f"blur {a}": CorrelatedGaussian.cosine(SIGMA, a, omega=0.0) for a in (0.5, 0.7, 1.0, 1.5, 2.0)},
    "1 2 1 squared": CorrelatedGaussian(SIGMA, ROW.T @ ROW),
    "box 3 x 3": CorrelatedGaussian(SIGMA, np.ones((3, 3))),
    "1 2 1 along x": CorrelatedGaussian(SIGMA, ROW),
}
DEEP: dict[str, Noise] = {
    "white": Gaussian(0.1),
    "blur 1 in the plane": CorrelatedGaussian(0.1, CorrelatedGaussian.cosine(0.1, 1.0, omega=0.0).kernel[None]),
    "1 2 1 along z": CorrelatedGaussian(0.1, ROW[:, :, None].reshape(3, 1, 1)),
    "blur 1": CorrelatedGaussian.cosine(0.1, 1.0, omega=0.0, dims=3),
    "the paper's, a=1.5": CorrelatedGaussian.cosine(0.1, 1.5, dims=3),
}


def drawn(noise: Noise, clean: np.ndarray, seed: int) -> np.ndarray:
    return noise.sample(clean[:, None], generator=torch.Generator().manual_seed(seed))[:, 0].astype(np.float32)


def size(noise: Noise, level: float, dims: int = 2) -> float:
    return float(noise.std(torch.full((1, 1, *(1,) * dims), level)).mean())


def summary(found: list[NoiseEstimate], true: CorrelatedGaussian, level: float) -> dict[str, float]:
    off = np.array([100 * (size(estimate.raw, level) / float(true.sigma) - 1) for estimate in found])
    seen = [estimate for estimate in found if estimate.autocorrelation is not None]
    figures = {
        "called_correlated": np.mean([estimate.family == "correlated" for estimate in found]),
        "used": np.mean([estimate.shape is not None for estimate in found]),
        "sigma_median": np.median(np.abs(off)),
        "sigma_p90": np.quantile(np.abs(off), 0.9),
        "sigma_bias": off.mean(),
        "sigma_lowest": off.min(),
        "spectrum_median": np.median([spectrum_error(estimate, true) for estimate in seen]) if seen else np.nan,
    }
    return {name: round(float(value), 2) for name, value in figures.items()}


def shapes(clean: np.ndarray, true: CorrelatedGaussian) -> dict[str, Any]:
    noisy, flat = drawn(true, clean, 0), drawn(true, np.full_like(clean[:10], 0.5), 1)
    starts = range(0, len(clean) - POOL + 1, POOL)
    runs = {
        kernel: {
            "single": [estimate_noise(image, kernel=kernel) for image in noisy],
            "pooled": [estimate_noise(noisy[i : i + POOL], axes="SYX", kernel=kernel) for i in starts],
            "flat": [estimate_noise(image, kernel=kernel) for image in flat],
        }
        for kernel in ("measured", "auto")
    }
    return {k: {name: summary(found, true, 0.5) for name, found in run.items()} for k, run in runs.items()}


def volume(seed: int) -> np.ndarray:
    """16 x 128 x 128, a smooth field in [0.05, 1] with surfaces where it jumps."""
    rng = np.random.default_rng(seed)
    smooth, steps = (ndimage.gaussian_filter(rng.standard_normal((16, 128, 128)), (4, 16, 16)) for _ in range(2))
    field = smooth / smooth.std() + 1.5 * (steps > 0)
    low, high = np.quantile(field, [0.01, 0.99])
    return (np.clip((field - low) / (high - low), 0, 1) * 0.95 + 0.05).astype(np.float32)


def lags(noise: Noise) -> np.ndarray:
    if not isinstance(noise, CorrelatedGaussian):
        return np.zeros(3)
    law = noise.autocovariance(1).numpy()
    return np.array([law[2, 1, 1], law[1, 2, 1], law[1, 1, 2]])


def volumes(true: Noise, count: int = 5) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, frames in (("one frame", 1), ("two repeats", 2)):
        sizes, seen, again, tied = [], [], [], []
        for seed in range(count):
            clean = np.stack([volume(seed)] * frames)
            noisy = drawn(true, clean, seed)
            found = estimate_noise(noisy, axes="TZYX", repeats="T" if frames == 2 else "")
            sizes.append(100 * (size(found.raw, 0.5, 3) / size(true, 0.5, 3) - 1))
            seen.append(np.abs(np.array(found.lag1) - lags(true)).max())
            again.append(np.abs(lags(getattr(found.raw, "field", found.raw)) - lags(true)).max())
            tied.append(found.autocorrelation is not None and found.autocorrelation.ndim == 3)
        rows[name] = {
            "sigma_worst": round(float(max(sizes, key=abs)), 2),
            "lag1_worst": round(float(max(seen)), 3),
            "lag1_drawn_worst": round(float(max(again)), 3),
            "along_z": round(float(np.mean(tied)), 2),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int, default=100)
    arguments = parser.parse_args()
    clean = photographs(arguments.data, "train", arguments.images)
    figures: dict[str, Any] = {"split": "train", "images": len(clean), "pool": POOL}
    for name, true in SHAPES.items():
        figures[name] = shapes(clean, true)
        print(name, figures[name], flush=True)
    figures["volumes"] = {name: volumes(true) for name, true in DEEP.items()}
    print(figures["volumes"])
    write_result(RESULTS / "noise_estimation_kernels.json", figures)


if __name__ == "__main__":
    main()
