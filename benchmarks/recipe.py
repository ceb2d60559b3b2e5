"""What gives the most decibels for the time? Variants of the recipe on one row, by steps, so that they can share a GPU.

    python -m benchmarks.recipe --row gaussian25 --data ../shared/data --workers 3 [--variants base,wide]

What was learned from it is in NOTES.md; a variant that won became the default.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import inverseflow as ivf
from benchmarks import run
from benchmarks.common import RESULTS, write_result
from benchmarks.datasets import load
from inverseflow.patches import allowed_operations

PATCHED = {"kind": "UNet", "widths": (128, 192, 256), "blocks": 2, "patch": 2}
LENGTH = {"steps": 2500, "batch_size": 32, "lr": 1e-3, "compile": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"net": PATCHED, "settings": LENGTH},
    "lr 5e-4": {"net": PATCHED, "settings": LENGTH | {"lr": 5e-4}},
    "lr 2e-3": {"net": PATCHED, "settings": LENGTH | {"lr": 2e-3}},
    "long": {"net": PATCHED, "settings": LENGTH | {"steps": 6000}},
    "full resolution": {"net": {"kind": "UNet"}, "settings": LENGTH},
    "wide": {"net": PATCHED | {"widths": (192, 256, 384)}, "settings": LENGTH},
    "deep": {"net": PATCHED | {"blocks": 4}, "settings": LENGTH},
    "four levels": {"net": PATCHED | {"widths": (128, 192, 256, 384)}, "settings": LENGTH},
    "half the batch": {"net": PATCHED, "settings": LENGTH | {"batch_size": 16, "steps": 5000}},
    "crops of 64": {"net": PATCHED, "settings": LENGTH | {"batch_size": 128}, "patch_size": 64},
    "supervised": {"net": PATCHED, "settings": LENGTH | {"steps": 5000}, "method": "supervised_fresh"},
}


def measure(row: str, name: str, data: Path, device: str) -> dict[str, Any]:
    torch.set_num_threads(2)
    asked = {"patch_size": 128} | run.read_row(row) | VARIANTS[name]
    task = load(asked, data)
    model, about = run.train(asked, task, run.Options(preset="balanced", device=device))
    estimates = {"mean": "flow"} if asked["method"] in run.SUPERVISED else run.ESTIMATES
    scores: dict[str, dict[str, float]] = {}
    for test, (noisy, truth) in task.tests.items():
        scores[test] = {
            title: run.score(model.denoise(noisy, estimate=which), truth, task.peak)["psnr"]
            for title, which in estimates.items()
        }
        scores[test]["turned"] = run.score(turned(model, estimates["mean"], noisy), truth, task.peak)["psnr"]
    return {"variant": name, "scores": scores} | {key: about[key] for key in ("steps", "seconds", "parameters")}


def turned(model: ivf.Denoiser, estimate: str, noisy: Tensor) -> Tensor:
    """The mean over the flips and quarter turns that leave the noise as it is."""
    total = torch.zeros_like(noisy)
    operations = allowed_operations(model.noise, 2)
    for permutation, flips in operations:
        axes = [axis + 2 for axis, flip in enumerate(flips) if flip]
        there = noisy.permute(0, 1, *(2 + axis for axis in permutation)).flip(axes)
        back = model.denoise(there, estimate=estimate).flip(axes)
        total += back.permute(0, 1, *(2 + permutation.index(axis) for axis in range(2)))
    return total / len(operations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default="gaussian25")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "recipe.json")
    given = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(given.workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        names = given.variants.split(",")
        for job in as_completed([pool.submit(measure, given.row, name, given.data, given.device) for name in names]):
            rows.append(job.result())
            print(rows[-1], flush=True)
            write_result(given.output, {"row": given.row, "workers": given.workers, "rows": rows})


if __name__ == "__main__":
    main()
