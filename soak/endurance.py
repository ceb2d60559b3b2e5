"""Train and denoise without a pause in one process: does its memory grow, does it leave files or threads open?

    python -m soak.endurance --minutes 30 --store

A cycle is what a day of work is, made short: a training with checkpoints and metrics, its model saved and loaded, an
image denoised into TIFF and OME-Zarr with error bars, audit and page. The first part of the cycles is warm-up:
libraries load and caches fill. The growth is that of the resident memory from the median of a part after it to the
median of the last part.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

import inverseflow as ivf
from inverseflow.commands import denoise_files, train_model
from inverseflow.options import Options

from .common import SIGMA, noisy_image, store

WARM_UP, WINDOW = 0.2, 0.2  # parts of the cycles: not looked at; of which the median is taken, after it and at the end
STEPS = 20


def cycle(folder: Path, number: int) -> None:
    model = folder / "model.safetensors"
    common: dict[str, Any] = {"device": "cpu", "quiet": True, "force": True, "seed": number}
    noise = [f"gaussian:sigma={SIGMA}"]
    sources = [str(folder / "in.ome.tif"), str(folder / "in.ome.zarr")]
    assert train_model(Options(sources[:1], output=model, noise=noise, steps=STEPS, **common)) == 0
    for source in sources:
        assert denoise_files(Options([source], model=model, std=True, interval=0.9, **common)) in (0, 3)


def open_files() -> int:
    """Of every kind: sockets and pipes too."""
    return len(os.listdir("/proc/self/fd"))


def measure() -> dict[str, float]:
    gc.collect()
    return {
        "rss_mb": psutil.Process().memory_info().rss / 1e6,
        "open_files": open_files(),
        "threads": threading.active_count(),
        "system_threads": psutil.Process().num_threads(),
    }


def run(seconds: float, least: int = 0) -> dict[str, Any]:
    """Cycles for so long, and at least so many."""
    torch.set_num_threads(1)
    rows, started = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="endurance-") as place:
        folder = Path(place)
        image = ivf.Image(noisy_image(), "CYX", {"Y": 0.2, "X": 0.2}, {"Y": "µm", "X": "µm"}, ("one", "two"))
        for name in ("in.ome.tif", "in.ome.zarr"):
            ivf.write(folder / name, image)
        while time.monotonic() - started < seconds or len(rows) < least:
            cycle(folder, len(rows))
            rows.append(measure())
    return {
        **figures(rows),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "rows": rows[:: max(1, len(rows) // 50)],
    }


def figures(rows: list[dict[str, float]]) -> dict[str, Any]:
    begin, count = int(WARM_UP * len(rows)), max(1, int(WINDOW * len(rows)))
    early, late = rows[begin : begin + count], rows[-count:]

    def middle(part: list[dict[str, float]], name: str) -> float:
        return statistics.median(row[name] for row in part)

    memory = [middle(part, "rss_mb") for part in (early, late)]
    return {
        "cycles": len(rows),
        "rss_mb": [round(value, 1) for value in memory],
        "growth": round(memory[1] / memory[0] - 1, 5),
        **{name: [middle(early, name), middle(late, name)] for name in ("open_files", "threads", "system_threads")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/soak_endurance.json")
    asked = parser.parse_args()
    found = run(60 * asked.minutes)
    print(
        f"{found['cycles']} cycles in {found['minutes']} min: memory {found['rss_mb'][0]} to {found['rss_mb'][1]} MB "
        f"({100 * found['growth']:+.2f} %), open files {found['open_files'][0]:g} to {found['open_files'][1]:g}, "
        f"threads {found['system_threads'][0]:g} to {found['system_threads'][1]:g}"
    )
    if asked.store:
        store("endurance", found)
    leaks = any(found[name][1] > found[name][0] for name in ("open_files", "threads", "system_threads"))
    raise SystemExit(found["growth"] >= 0.01 or leaks)


if __name__ == "__main__":
    main()
