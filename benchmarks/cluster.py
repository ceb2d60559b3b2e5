"""Many processes, one OME-Zarr: seconds, memory of each worker, and whether the result is that of one process.

    python -m benchmarks.cluster [--side 20000] [--workers 1 2] [--folder DIR]

A uint16 image is denoised by `inverseflow denoise` alone and with --workers N. The efficiency of N workers is the time
of one over N times theirs, of the blocks alone and of the whole command with its start. Needs 4 GB of disk at the usual
side. The model is trained for a moment only; its quality plays no part.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result

CHUNK = 1024


def write_image(path: Path, side: int) -> None:
    """Counts around a slow wave, drawn for a block of rows and repeated below."""
    columns = np.arange(side)
    rows = np.arange(CHUNK)[:, None]
    block = np.random.default_rng(0).poisson(300 + 100 * np.sin(rows / 40) * np.cos(columns / 50)).astype(np.uint16)
    known = {"chunks": (CHUNK, CHUNK), "axes": "YX", "levels": 2}
    empty = ivf.Image(np.broadcast_to(np.uint16(0), (side, side)), "YX", {"Y": 0.1, "X": 0.1}, metadata=known)
    ivf.write(path, empty)
    array = zarr.open_group(path, mode="r+")["0"]
    for top in range(0, side, CHUNK):
        array[top : top + CHUNK] = block[: min(CHUNK, side - top)]


def measured(command: list[Any], threads: int | None = None) -> dict[str, Any]:
    """Seconds, and the peak memory of the largest worker and of the command itself, looked at every 0.2 s."""
    started = time.perf_counter()
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    whole = [sys.executable, "-m", "inverseflow", *map(str, command)]
    process = psutil.Popen(whole, stdout=subprocess.DEVNULL, env=environment)
    own = workers = 0
    first = None
    while process.poll() is None:
        try:
            own = max(own, process.memory_info().rss)
            children = process.children(recursive=True)
            workers = max([workers, *(child.memory_info().rss for child in children if child.is_running())])
        except psutil.NoSuchProcess:
            continue
        if first is None and any(_notes(command)):
            first = time.perf_counter()
        time.sleep(0.2)
    assert process.returncode == 0
    ended = time.perf_counter()
    found = {"seconds": round(ended - started, 1), "seconds_after_the_first_block": round(ended - (first or ended), 1)}
    return found | {"own_peak_mb": round(own / 2**20), "worker_peak_mb": round(workers / 2**20)}


def _notes(command: list[Any]) -> list[Path]:
    target = Path(command[command.index("-o") + 1])
    folder = target.with_name(f".{target.name}.blocks") / "done"
    return list(folder.iterdir()) if folder.exists() else []


def digest(store: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(p for p in store.rglob("*") if p.is_file()):
        found.update(str(path.relative_to(store)).encode() + path.read_bytes())
    return found.hexdigest()


def seams(store: Path) -> dict[str, float]:
    """The mean step between neighbouring pixels across borders of blocks, and everywhere else."""
    array = zarr.open_group(store, mode="r")["0"]
    rows = array[: 2 * CHUNK]
    steps = np.abs(np.diff(rows.astype(np.float64), axis=1)).mean(0)
    at = np.arange(CHUNK, array.shape[1], CHUNK) - 1
    others = np.setdiff1d(np.arange(len(steps)), at)
    return {"across_borders": round(float(steps[at].mean()), 4), "elsewhere": round(float(steps[others].mean()), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=20_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS / "cluster.json")
    given = parser.parse_args()
    figures: dict[str, Any] = {"side": given.side, "chunk": CHUNK, "threads_of_each_worker": 1, "runs": {}}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        source, model, small = folder / "in.ome.zarr", folder / "model.safetensors", folder / "small.ome.zarr"
        write_image(source, given.side)
        write_image(small, 512)
        measured(["train", small, "--noise", "poisson:gain=1", "--steps", 20, "--device", "cpu", "-o", model])
        hashes = {}
        for workers in (0, *given.workers):
            target = folder / f"out{workers}.ome.zarr"
            command = ["denoise", source, "-m", model, "--device", "cpu", "--no-page", "--no-audit", "-o", target]
            figures["runs"]["alone" if not workers else f"{workers} workers"] = found = measured(
                [*command, "--workers", workers], threads=1 if workers else None
            )
            hashes[workers] = digest(target)
            figures.setdefault("seams", seams(target))
            found["megapixels_per_second"] = round(given.side**2 / 1e6 / found["seconds"], 2)
            print(workers, found, flush=True)
            if workers:
                subprocess.run(["rm", "-r", target], check=True)
    figures["all_identical"] = len(set(hashes.values())) == 1
    one, many = (figures["runs"][f"{n} workers"] for n in (given.workers[0], given.workers[-1]))
    for key in ("seconds", "seconds_after_the_first_block"):
        figures[f"efficiency_{key}"] = round(given.workers[0] * one[key] / (given.workers[-1] * many[key]), 3)
    write_result(given.output, figures)
    print(figures)


if __name__ == "__main__":
    main()
