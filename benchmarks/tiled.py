"""Tiles against the whole: a trained network on a 2048 x 2048 image, in one pass and in tiles that are blended.

    python -m benchmarks.tiled [--steps 400]

`difference` is the largest absolute difference to the one pass, over the range of its result. `seam` is the mean
absolute step between neighbours across the lines where tiles begin, meet and end, over that across the other lines of
the network's grid, which all tiles start on; the same lines of the one pass show what a result without seams has there.
`grid` is the mean step across the borders of the 2 x 2 patches of the network over that inside of them, 1 if unseen.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result
from inverseflow.tiling import TILE_OVERLAP, windows

SIDE, CROP = 2048, 512
Array = np.ndarray[Any, Any]


def cells(side: int, seed: int) -> Array:
    """Blobs of three sizes on a background, with thin bright lines: both smooth and sharp over any distance."""
    rng = np.random.default_rng(seed)
    image = np.full((side, side), 20.0)
    for width, share, height in ((20, 2e-4, 80), (6, 1e-3, 120), (2, 3e-3, 60)):
        points = np.zeros((side, side))
        points[rng.random(points.shape) < share] = height
        image += gaussian_filter(points, width) * 2 * np.pi * width**2 * 0.3
    wave = gaussian_filter(rng.normal(size=(side, side)), 12)
    image[np.abs(wave) < 0.02 * wave.std()] += 100
    return gaussian_filter(image, 0.8)


def mean_steps(image: Array, axis: int) -> Array:
    """Of every line between neighbours along the axis, the mean absolute step across it."""
    steps: Array = np.abs(np.diff(image, axis=axis)).mean(axis=1 - axis)
    return steps


def grid(image: Array) -> float:
    lines = [mean_steps(image, axis) for axis in (0, 1)]
    return float(sum(steps[1::2].mean() for steps in lines) / sum(steps[::2].mean() for steps in lines))


def seam(image: Array, tile: tuple[int, int], multiple: int) -> float:
    """Mean absolute step across the tiles' lines, over that across other lines of the network's grid; both axes."""
    on, off = [], []
    for axis, size in enumerate(tile):
        steps = mean_steps(image, axis)
        lines = np.zeros(len(steps), bool)
        for window in windows(image.shape[axis], size, TILE_OVERLAP, multiple)[1:]:
            # Nothing of the new tile before a quarter of the overlap, nothing of the old one after three quarters.
            for part in (0, 1, 2, 3, 4):
                lines[window.start + part * window.overlap // 4 - 1] = True
        on.append(steps[lines])
        off.append(steps[multiple - 1 :: multiple][~lines[multiple - 1 :: multiple]])
    return float(np.concatenate(on).mean() / np.concatenate(off).mean())


def compare(model: ivf.Denoiser, noisy: Array, whole: Array, tile_size: int | None) -> dict[str, Any]:
    started = time.perf_counter()
    tiled = model.denoise(noisy, axes="YX", tile_size=tile_size)
    seconds = time.perf_counter() - started
    tile, *_ = model.tile(noisy.shape, tile_size)
    off = np.abs(tiled - whole)
    return {
        "tile": list(tile),
        "overlap": TILE_OVERLAP,
        "difference": float(off.max() / np.ptp(whole)),
        "difference_rms": float(np.sqrt((off**2).mean()) / np.ptp(whole)),
        "seam": round(seam(tiled, (tile[0], tile[1]), model.multiple), 5),
        "seam_of_whole": round(seam(whole, (tile[0], tile[1]), model.multiple), 5),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    noise = ivf.PoissonGaussian(gain=3.0, sigma=4.0)
    clean = torch.from_numpy(cells(SIDE, arguments.seed)).float()[None, None]
    noisy = noise.sample(clean, generator=torch.Generator().manual_seed(arguments.seed))[0, 0].numpy()
    model = ivf.Denoiser.train(
        noisy[:CROP, :CROP], noise, axes="YX", preset="fast", max_steps=arguments.steps, device="cpu", progress=False
    )
    figures: dict[str, Any] = {"side": SIDE, "steps": model.description["steps"], "threads": torch.get_num_threads()}
    figures["grid_of_clean"] = round(grid(clean[0, 0].numpy()), 4)
    for estimate in ("mean", "flow"):
        model.description["estimate"] = estimate
        whole = model.function()(torch.from_numpy(noisy)[None, None])[0, 0].numpy()
        errors = [float(np.sqrt(((image - clean[0, 0].numpy()) ** 2).mean())) for image in (noisy, whole)]
        figures[estimate] = {
            "rmse_noisy": round(errors[0], 2),
            "rmse": round(errors[1], 2),
            "grid": round(grid(whole), 4),
        }
        for name, size in (("default", None), ("small", 256)):
            figures[estimate][name] = compare(model, noisy, whole, size)
            print(estimate, name, figures[estimate][name], flush=True)
    write_result(RESULTS / "tiled.json", figures)


if __name__ == "__main__":
    main()
