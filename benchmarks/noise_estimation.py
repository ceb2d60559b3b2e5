"""How well is the noise known from noisy images alone? BSDS500 with noise of known law, and FMD with its own noise.

    python -m benchmarks.noise_estimation [--data DIR] [--images 100] [--split test]

DIR is the benchmark data (default ../shared/data beside the repository). Photographs: 256 x 256 grey centre crops in
[0, 1]. Error of an estimate: root mean square over the 5-95 % intensities of the images of (estimated sd / true sd -
1), before the noise is made to lean high; `bias` is the mean of the same quantity, `used` the bias of what is trained
with, `covered` how often the 95 % interval holds the truth. Thresholds in the code were chosen on the training split;
the figures are of the test split. Rivals: skimage's estimate_sigma (pip install PyWavelets), and maximum likelihood on
all 4 x 4 patches, as the paper describes it. FMD: blind from one capture, against the bins of the difference of
captures 1 and 2, which are the best aligned. OCT: blind from one scan, whose noise is clipped at 0, against its
difference from the average of many scans where that is neither dark nor bright.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skimage.io import imread
from skimage.restoration import estimate_sigma

from benchmarks.common import FMD, RESULTS, write_result
from inverseflow.estimate import NoiseEstimate, estimate_noise
from inverseflow.noise import (
    Clip,
    CorrelatedGaussian,
    Gamma,
    Gaussian,
    Noise,
    Poisson,
    PoissonGaussian,
    Quantise,
    SignalDependent,
)

DATA = Path(__file__).parents[2] / "shared" / "data"
OCT = ("1", "10", "14")
POOL = 20
CASES: dict[str, tuple[Noise, str]] = {
    "gaussian 25": (Gaussian(25 / 255), "gaussian"),
    "poisson 0.01": (Poisson(0.01), "poisson"),
    "poisson 0.01 + gaussian 10": (PoissonGaussian(0.01, 10 / 255), "poissongaussian"),
    "gamma k=100": (Gamma(100.0), "gamma"),
    "gamma k=100 + gaussian 10": (SignalDependent(1.0, 0.1, 10 / 255), "signaldependent"),
    "clipped 8-bit gaussian 25": (Gaussian(25 / 255).then(Clip(0.0, 1.0)).then(Quantise(1 / 255)), "gaussian"),
    "correlated a=2": (CorrelatedGaussian.cosine(25 / 255, 2.0), "correlated"),
}
Curve = Callable[[np.ndarray], np.ndarray]


def photographs(data: Path, split: str, count: int) -> np.ndarray:
    crops = []
    for path in sorted((data / "BSDS500" / split).glob("*.jpg"))[:count]:
        grey = np.round(imread(path).astype(np.float64) @ [0.299, 0.587, 0.114])
        top, left = (grey.shape[0] - 256) // 2, (grey.shape[1] - 256) // 2
        crops.append(grey[top : top + 256, left : left + 256] / 255)
    return np.stack(crops).astype(np.float32)


def sd_of(noise: Noise) -> Curve:
    first = noise.noises[0] if hasattr(noise, "noises") else noise  # what a clip does to the sd is not asked
    return lambda levels: first.std(torch.from_numpy(levels)[:, None])[:, 0].numpy()


def deviation(found: Curve, true: Curve, clean: np.ndarray) -> tuple[float, float]:
    """Root mean square and mean of found / true - 1 over the 5-95 % intensities, in percent."""
    levels = np.linspace(*np.quantile(clean, [0.05, 0.95]), 50)
    off = 100 * (found(levels) / true(levels) - 1)
    return float(np.sqrt(np.mean(off**2))), float(off.mean())


def spectrum_error(found: NoiseEstimate, true: CorrelatedGaussian) -> float:
    """Relative L2 error of the power spectrum sigma^2 S, in percent."""
    reach = len(found.autocorrelation) // 2

    def power(correlation: Any) -> np.ndarray:
        return np.fft.fft2(np.fft.ifftshift(np.pad(np.asarray(correlation), ((20, 19), (20, 19))))).real

    ours = float(np.mean(found.raw.std(torch.full((1, 1), 0.5)).numpy())) ** 2 * power(found.autocorrelation)
    theirs = float(true.sigma) ** 2 * power(true.autocovariance(reach))
    return 100 * float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def patch_likelihood(images: np.ndarray, true: Noise) -> Curve:
    """Maximum likelihood of the true family's curve, given mean and variance of all 4 x 4 patches."""
    from scipy.optimize import minimize

    n, h, w = images.shape
    patches = images.reshape(n, h // 4, 4, w // 4, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 16)
    mean, variance = np.maximum(patches.mean(1), 1e-3), patches.var(1, ddof=1) + 1e-8
    powers = {Poisson: (1,), PoissonGaussian: (0, 1), Gamma: (2,), SignalDependent: (0, 2)}.get(type(true), (0,))
    terms = np.stack([mean**p for p in powers], -1)

    def loss(logs: np.ndarray) -> float:
        v = terms @ np.exp(logs) + 1e-9
        return float(np.mean(np.log(v) + variance / v))

    best = minimize(loss, np.log(np.full(len(powers), np.median(variance))), method="Nelder-Mead").x
    return lambda levels: np.sqrt(np.stack([levels**p for p in powers], -1) @ np.exp(best))


def summary(figures: Sequence[tuple[float, float]], families: Sequence[str], family: str) -> dict[str, Any]:
    rms, bias = np.array(figures).T
    return {
        "median": round(float(np.median(rms)), 2),
        "p90": round(float(np.quantile(rms, 0.9)), 2),
        "max": round(float(rms.max()), 2),
        "lowest_bias": round(float(bias.min()), 2),
        "family_right": round(float(np.mean([f == family for f in families])), 3),
        "families": dict(Counter(families)),
    }


def photograph_case(name: str, clean: np.ndarray, seed: int) -> dict[str, Any]:
    noise, family = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.from_numpy(clean)[:, None]
    noisy, again = (noise.sample(x0, generator=generator)[:, 0].numpy() for _ in range(2))
    true, correlated = sd_of(noise), isinstance(noise, CorrelatedGaussian)

    def score(images: Any, axes: str, shown: np.ndarray, repeats: str = "") -> tuple[NoiseEstimate, dict[str, float]]:
        found = estimate_noise(images, axes=axes, repeats=repeats)
        rms, bias = deviation(sd_of(found.raw), true, shown)
        levels = np.linspace(*np.quantile(shown, [0.05, 0.95]), 50)
        inside = np.mean([np.interp(levels, found.std_curve[0], b) - true(levels) for b in found.interval], axis=1)
        figures = {"rms": rms, "bias": bias, "used": deviation(sd_of(found.noise), true, shown)[1]}
        figures |= {"covered": float(inside[0] < 0 < inside[1])}
        return found, figures | ({"spectrum": spectrum_error(found, noise)} if correlated else {})

    rivals: dict[str, Any] = {}
    results: dict[str, Any] = {"true_family": family}
    starts = range(0, len(clean) - POOL + 1, POOL)
    pooled = [score(noisy[i : i + POOL], "SYX", clean[i : i + POOL]) for i in starts]
    results["pooled"] = [
        {"family": found.family} | {key: round(value, 2) for key, value in figures.items()} for found, figures in pooled
    ]
    for kind, runs in {
        "single": [score(y, "YX", x) for x, y in zip(clean, noisy, strict=True)],
        "two_repeats": [score(np.stack(pair), "TYX", x, "T") for x, *pair in zip(clean, noisy, again, strict=True)],
    }.items():
        results[kind] = summary([(f["rms"], f["bias"]) for _, f in runs], [found.family for found, _ in runs], family)
        results[kind]["covered"] = round(float(np.mean([f["covered"] for _, f in runs])), 3)
        if correlated:
            results[kind]["spectrum_median"] = round(float(np.median([f["spectrum"] for _, f in runs])), 1)
    found_alone = [estimate_noise(np.stack(pair), axes="TYX").method for pair in zip(noisy, again, strict=True)]
    results["two_repeats"]["found_without_being_told"] = round(float(np.mean([m == "repeats" for m in found_alone])), 3)
    sigmas = [float(estimate_sigma(y)) for y in noisy]
    rivals["estimate_sigma"] = [
        deviation(lambda levels, s=s: np.full_like(levels, s), true, x) for s, x in zip(sigmas, clean, strict=True)
    ]
    rivals["patch_likelihood"] = [
        deviation(patch_likelihood(y[None], noise), true, x) for x, y in zip(clean, noisy, strict=True)
    ]
    results["rivals"] = {
        rival: {"single_median": round(float(np.median(np.array(v)[:, 0])), 1)} for rival, v in rivals.items()
    }
    together = patch_likelihood(noisy[:POOL], noise)
    mean_sigma = float(np.mean(sigmas[:POOL]))
    for rival, curve in (("patch_likelihood", together), ("estimate_sigma", lambda x: np.full_like(x, mean_sigma))):
        rms, bias = deviation(curve, true, clean[:POOL])
        results["rivals"][rival] |= {"pooled": round(rms, 1), "pooled_bias": round(bias, 1)}
    return results


def fmd_case(data: Path, sample: str) -> dict[str, Any]:
    captures = np.stack([imread(data / "FMD" / "raw" / f"{sample}_{k}.png") for k in range(1, 5)]).astype(np.float32)
    repeated = estimate_noise(captures[:2], axes="TYX", repeats="T")  # 1 and 2 are the best aligned
    blind = estimate_noise(captures[0], axes="YX")
    levels, measured = repeated.measured[0]
    found = sd_of(blind.raw)(levels)
    return {
        "family": blind.family,
        "noise": str(blind),
        "signal_dependent": bool(found.max() > 1.2 * found.min()),
        "sd_error_mean": round(100 * float(np.mean(np.abs(found / measured - 1))), 2),
        "sd_bias_mean": round(100 * float(np.mean(found / measured - 1)), 2),
        "lag1": [round(lag, 3) for lag in blind.lag1],
        "lag1_measured": [round(lag, 3) for lag in repeated.lag1],
        "repeats": str(repeated),
        "warnings": list(blind.warnings),
    }


def oct_case(data: Path, scan: str) -> dict[str, Any]:
    noisy, average = (imread(data / "OCT_SDOCT" / scan / f"{n}.png").astype(np.float32) for n in ("test", "average"))
    found = estimate_noise(noisy, axes="YX")
    low, high = np.quantile(average, [0.25, 0.75])
    middle = (low <= average) & (average <= high)
    return {
        "noise": str(found),
        "clipped_share": round(float(np.mean(noisy == 0)), 3),
        "sd": round(float(np.interp((low + high) / 2, *found.std_curve)), 1),
        "sd_measured": round(float((noisy - average)[middle].std()), 1),
        "warnings": list(found.warnings),
    }


def speed(clean: np.ndarray) -> dict[str, float]:
    """Seconds per megapixel and core, white noise, one image of 4 megapixels (all of which is read)."""
    torch.set_num_threads(1)
    image = np.tile(clean[:16].reshape(4, 4, 256, 256).swapaxes(1, 2).reshape(1024, 1024), (2, 2))
    noisy = Gaussian(0.1).sample(image[None, None], generator=torch.Generator().manual_seed(0))[0, 0]
    started = time.process_time()
    estimate_noise(noisy, axes="YX")
    return {"seconds_per_megapixel_and_core": round((time.process_time() - started) / (noisy.size / 1e6), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--split", default="test", choices=["train", "test"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--name", default="noise_estimation")
    arguments = parser.parse_args()
    clean = photographs(arguments.data, arguments.split, arguments.images)
    figures: dict[str, Any] = {"split": arguments.split, "images": len(clean), "pool": POOL, "seed": arguments.seed}
    for name in arguments.cases:
        figures[name] = photograph_case(name, clean, arguments.seed)
        print(name, figures[name], flush=True)
    figures["FMD"] = {sample: fmd_case(arguments.data, sample) for sample in FMD}
    for sample, row in figures["FMD"].items():
        print(sample, row, flush=True)
    figures["OCT"] = {scan: oct_case(arguments.data, scan) for scan in OCT}
    for scan, row in figures["OCT"].items():
        print("OCT", scan, row, flush=True)
    figures["speed"] = speed(clean)
    print(figures["speed"])
    write_result(RESULTS / f"{arguments.name}.json", figures)


if __name__ == "__main__":
    main()
