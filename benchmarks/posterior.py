"""Are the error bars right, the draws possible, the new samples clean? Against truth that no training has seen.

    python -m benchmarks.posterior gaussian moons gaussian25 correlated fmd patches --data ../shared/data

One JSON per part, results/posterior_PART.json:

gaussian          Gaussian data and noise, whose posterior is known
moons             two moons with noise 0.3: mean, intervals and draws against the exact posterior
gaussian25        BSDS500 test images with that noise: coverage, error by decile, cost, the blend
correlated        the same
fmd               the confocal samples, Poisson-Gaussian noise measured on repeats
patches           new 64 x 64 patches, from a generator that has seen noisy photographs only
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import inverseflow as ivf
from benchmarks import datasets
from benchmarks.common import FMD, RESULTS, write_result
from benchmarks.features import features, frechet, patches
from benchmarks.run import read_row
from inverseflow.calibration import LEVELS
from inverseflow.metrics import psnr

Figures = dict[str, Any]
BLENDS = (0.0, 0.25, 0.5, 0.75, 1.0)
PATCH = 64
CONFOCAL = tuple(sample for sample in FMD if sample.startswith("Confocal"))


def gaussian(data: Path, seed: int) -> Figures:
    """Features with signal / noise of 2, 1 and 1/2. The variance, averaged over rows, against the exact one."""
    generator = torch.Generator().manual_seed(seed)
    signal, sigma = torch.tensor([1.0, 0.5, 0.25]), 0.5
    noise = ivf.Gaussian(sigma)
    noisy, test = (
        noise.sample(signal * torch.randn(n, 3, generator=generator), generator=generator) for n in (100_000, 4000)
    )
    exact = signal * sigma / (signal.square() + sigma**2).sqrt()
    figures: Figures = {"exact_std": exact.tolist()}
    for method in ("ifm", "icm"):
        model = ivf.Denoiser.train(noisy, noise, method=method, samples=True, seed=seed, progress=False)
        _, std = model.denoise(test, return_std=True)
        figures[method] = {
            "std_over_exact": (std.square().mean(0).sqrt() / exact).tolist(),
            "spread_of_draws_over_exact": (model.sample(test, 64).var(0).mean(0).sqrt() / exact).tolist(),
            "slope_std_over_exact": (_slope_std(model, test, sigma) / exact).tolist(),
            "coverage_simulated": model.description["coverage"],
            "seconds": model.description["seconds"],
        }
    return figures


def _slope_std(model: ivf.Denoiser, x1: Tensor, sigma: float, step: float = 0.05) -> Tensor:
    """For Gaussian noise the variance is sigma^2 times the slope of the mean: an independent way to it."""
    moved = [step * row for row in torch.eye(x1.shape[1])]
    slopes = [(model.denoise(x1 + e) - model.denoise(x1 - e))[:, i] / (2 * step) for i, e in enumerate(moved)]
    return sigma * torch.stack(slopes, 1).mean(0).clamp(min=0).sqrt()


def moons_of(count: int, generator: torch.Generator) -> Tensor:
    angle = math.pi * torch.rand(count, generator=generator)
    first = torch.rand(count, generator=generator) < 0.5
    x = torch.where(first, angle.cos(), 1 - angle.cos())
    y = torch.where(first, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], 1) + 0.05 * torch.randn(count, 2, generator=generator)


MOONS: dict[str, dict[str, Any]] = {"ifm": {"method": "ifm"}, "icm": {}, "icm_two_rounds": {"rounds": 2}}


def moons(data: Path, seed: int, sigma: float = 0.3) -> Figures:
    generator = torch.Generator().manual_seed(seed)
    noise = ivf.Gaussian(sigma)
    noisy = noise.sample(moons_of(20_000, generator), generator=generator)
    truth = moons_of(4000, generator)
    test = noise.sample(truth, generator=generator)
    known = moons_of(40_000, generator)  # as good as the law itself
    parts = [torch.softmax(-torch.cdist(part, known).square() / (2 * sigma**2), 1) for part in test.split(500)]
    exact = torch.cat([weights @ known for weights in parts])
    exact_error = float((exact - truth).square().mean())
    figures: Figures = {"noisy_error": float((test - truth).square().mean()), "exact_error": exact_error}
    for name, how in MOONS.items():
        model = ivf.Denoiser.train(noisy, noise, samples=True, seed=seed, progress=False, **how)
        mean, std = model.denoise(test, return_std=True)
        draws = model.sample(test, 400)
        bounds = torch.quantile(draws, torch.tensor([0.05, 0.95]), dim=0)
        figures[name] = {
            "map_error_over_exact": float((model.denoise(test, estimate="flow") - truth).square().mean()) / exact_error,
            "mean_error_over_exact": float((mean - truth).square().mean()) / exact_error,
            "predicted_error_over_exact": float(std.square().mean()) / exact_error,
            "draws_90": _share(truth, bounds[0], bounds[1]),
            "intervals": _coverage(model, test, truth),
            "seconds": model.description["seconds"],
        }
    return figures


def photographs(row: str, data: Path, seed: int, preset: str = "auto", images: int = 200) -> Figures:
    task = datasets.load(read_row(row), data)
    noisy = task.noisy[:: max(1, 200 // images)]
    model = ivf.Denoiser.train(noisy, task.noise, samples=True, seed=seed, preset=preset, progress=False)
    figures = calibration(model, *task.tests["bsds500"]) | blends(model, *task.tests["bsds500"])
    few = [x[::10] for x in task.tests["bsds500"]]
    draws = model.sample(few[0], 8)
    return figures | {
        "psnr_of_mean": _psnr(model.denoise(few[0]), few[1]),
        "psnr_of_one_draw": _psnr(draws[0], few[1]),
        "psnr_of_the_mean_of_8_draws": _psnr(draws.mean(0), few[1]),
    }


def blends(model: ivf.Denoiser, noisy: Tensor, truth: Tensor) -> Figures:
    """Less error or more like clean pictures: PSNR against the Fréchet distance of 64 x 64 patches."""
    clean = features(patches(truth, PATCH))

    def point(pictures: Tensor) -> dict[str, float]:
        return {"psnr": _psnr(pictures, truth), "distance": frechet(features(patches(pictures, PATCH)), clean)}

    mean, flow = (model.denoise(noisy, estimate=which) for which in ("mean", "flow"))
    found = {f"{blend:g}": point(torch.lerp(mean, flow, blend)) for blend in BLENDS}
    return {"blends": found | {"one draw": point(model.sample(noisy, 1)[0]), "noisy": point(noisy)}}


def fmd(data: Path, seed: int) -> Figures:
    """The truth is the mean of fifty captures, whose brightness differs from one to the next by some per cent: no
    error bar for noise contains that, so the truth is also made as bright as each capture. And the same noise is
    drawn on the mean of the captures: there the truth is the truth.
    """
    figures: Figures = {}
    for sample in CONFOCAL:
        task = datasets.load({"data": "fmd", "sample": sample}, data)
        model = ivf.Denoiser.train(task.noisy, task.noise, seed=seed, progress=False)
        noisy, truth = task.tests["fmd"]
        gains = [float((x * t).sum() / t.square().sum()) for x, t in zip(noisy, truth, strict=True)]
        bright = torch.stack([gain * t for gain, t in zip(gains, truth, strict=True)])
        figures[sample] = {"brightness": gains} | calibration(model, noisy, truth, peak=task.peak)
        figures[sample]["equal_brightness"] = calibration(model, noisy, bright, peak=task.peak)
        clean = task.noise.project(truth)
        drawn = task.noise.sample(clean, generator=torch.Generator().manual_seed(seed))
        model = ivf.Denoiser.train(drawn, task.noise, seed=seed, progress=False)
        figures[sample]["drawn_noise"] = calibration(model, drawn, clean, peak=task.peak)
    return figures


def calibration(model: ivf.Denoiser, noisy: Tensor, truth: Tensor, peak: float = 1.0) -> Figures:
    """Do intervals hold what they say, and are errors large where they are said to be?"""
    mean, std = model.denoise(noisy, return_std=True)
    error, said = (mean - truth).square().flatten(), std.square().flatten()
    deciles = said.argsort().chunk(10)
    by_decile = {"said": [float(said[d].mean()) for d in deciles], "true": [float(error[d].mean()) for d in deciles]}
    seconds = model.description["seconds"]
    return {
        "psnr": _psnr(mean, truth, peak),
        "coverage": _coverage(model, noisy, truth),
        "coverage_simulated": model.description["coverage"],
        "rms_error": {"said": float(said.mean().sqrt()), "true": float(error.mean().sqrt())},
        "squared_error_by_decile": by_decile,
        "correlation_by_decile": float(np.corrcoef(by_decile["said"], by_decile["true"])[0, 1]),
        "seconds": seconds,
        "cost_of_error_bars": seconds["spread"] / (seconds["flow"] + seconds.get("mean", 0)),
    }


def patches_(data: Path, seed: int, preset: str = "auto", images: int = 200, count: int = 1000) -> Figures:
    """New patches from noisy photographs, beside those of the same generator trained on the noisy ones as they are."""
    task = datasets.load(read_row("gaussian25"), data)
    assert task.clean is not None
    noisy = task.noisy[:: max(1, 200 // images)]
    test_noisy, test_clean = task.tests["bsds500"]
    clean = features(patches(test_clean, PATCH))
    figures: Figures = {
        "noisy_patches": frechet(features(patches(test_noisy, PATCH)), clean),
        "clean_training_patches": frechet(features(patches(task.clean, PATCH)), clean),
    }
    denoiser = ivf.Denoiser.train(noisy, task.noise, estimate="flow", seed=seed, preset=preset, progress=False)
    for name, by in {"clean": denoiser, "noisy": None}.items():
        generator = ivf.Generator.train(noisy, by, seed=seed, preset=preset, size=PATCH, progress=False)
        drawn = generator.sample(count)
        figures[f"generated_{name}"] = frechet(features(drawn), clean)
        figures[f"generated_{name}_to_noisy"] = frechet(features(drawn), features(patches(test_noisy, PATCH)))
        figures[f"seconds_{name}"] = generator.description["seconds"]
    return figures


def _coverage(model: ivf.Denoiser, noisy: Tensor, truth: Tensor) -> dict[str, float]:
    """The share that intervals of each level hold, all of them from one pass."""
    bounds = model.quantiles(noisy, [p for level in LEVELS for p in ((1 - level) / 2, (1 + level) / 2)])
    return {f"{level:g}": _share(truth, *bounds[2 * k : 2 * k + 2]) for k, level in enumerate(LEVELS)}


def _share(truth: Tensor, low: Tensor, high: Tensor) -> float:
    return float(((truth >= low) & (truth <= high)).double().mean())


def _psnr(result: Tensor, truth: Tensor, peak: float = 1.0) -> float:
    return float(np.mean([psnr(a, b, peak) for a, b in zip(result, truth, strict=True)]))


PARTS: dict[str, Callable[..., Figures]] = {
    "gaussian": gaussian,
    "moons": moons,
    "gaussian25": partial(photographs, "gaussian25"),
    "correlated": partial(photographs, "correlated"),
    "fmd": fmd,
    "patches": patches_,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--preset", default="auto", help="for photographs")
    parser.add_argument("--images", type=int, default=200, help="noisy photographs to learn from")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for part in arguments.parts:
        large = part in ("gaussian25", "correlated", "patches")
        more = {"preset": arguments.preset, "images": arguments.images} if large else {}
        figures = PARTS[part](arguments.data, arguments.seed, **more)
        write_result(arguments.results / f"posterior_{part}.json", figures)
        print(part, figures, flush=True)


if __name__ == "__main__":
    main()
