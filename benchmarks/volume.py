"""A noisy volume as a whole, plane by plane, and blurred: what does looking along Z give, and what does it cost?

    python -m benchmarks.volume

24 planes of 192 x 192 with filaments and cells that we draw, photon and read-out noise, `fast`, learned from this one
volume. The width of the blur is chosen by the truth, which no user has.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result

SHAPE = (24, 192, 192)
NOISE = ivf.PoissonGaussian(gain=4.0, sigma=8.0, offset=20.0)
BLURS = tuple((z, xy) for z in (0.0, 0.5, 1.0, 1.5) for xy in (0.5, 1.0, 1.5, 2.0, 3.0))


def scene(seed: int = 0) -> np.ndarray:
    """Curved filaments and round cells, as a microscope with a wider focus along Z shows them."""
    rng = np.random.default_rng(seed)
    volume = np.zeros(SHAPE)
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in SHAPE), indexing="ij"))
    for _ in range(60):
        centre, radius = rng.uniform(0, SHAPE), rng.uniform((2, 6, 6), (5, 16, 16))
        distance = (((grid - centre[:, None, None, None]) / radius[:, None, None, None]) ** 2).sum(0)
        volume += rng.uniform(10, 40) * (distance < 1)
    for _ in range(120):
        place, way = rng.uniform(0, SHAPE), rng.normal(0, 1, 3) * (0.3, 1, 1)
        for _ in range(160):
            way = way + rng.normal(0, 0.15, 3) * (0.3, 1, 1)
            way /= np.linalg.norm(way)
            place = place + 0.7 * way
            if all(0 <= p < n - 1 for p, n in zip(place, SHAPE, strict=True)):
                volume[tuple(np.round(place).astype(int))] += 250
    return 20 + gaussian_filter(volume, (1.2, 1.0, 1.0))


def psnr(result: np.ndarray, truth: np.ndarray) -> float:
    return round(float(10 * np.log10(np.ptp(truth) ** 2 / np.mean((result - truth) ** 2))), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / "volume.json")
    arguments = parser.parse_args()
    truth = scene()
    noisy = NOISE.sample(torch.from_numpy(truth), generator=torch.Generator().manual_seed(0)).numpy()
    rows: list[dict[str, Any]] = [{"how": "input", "psnr": psnr(noisy, truth)}]
    best = max(BLURS, key=lambda sigma: psnr(gaussian_filter(noisy, (sigma[0], sigma[1], sigma[1])), truth))
    blurred = gaussian_filter(noisy, (best[0], best[1], best[1]))
    rows.append({"how": "blur of the best width", "sigma": best, "psnr": psnr(blurred, truth)})
    for how, axes in (("plane by plane", "SYX"), ("as a volume", "ZYX")):
        started = time.perf_counter()
        model = ivf.Denoiser.train(noisy, NOISE, axes=axes, preset="fast", std=False, progress=False)
        result = np.asarray(model.denoise(noisy, axes=axes))
        seconds = round(time.perf_counter() - started, 1)
        rows.append({"how": how, "psnr": psnr(result, truth), "seconds": seconds, "steps": model.description["steps"]})
        print(rows[-1], flush=True)
        write_result(arguments.output, {"shape": SHAPE, "noise": NOISE.to_dict(), "rows": rows})
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
