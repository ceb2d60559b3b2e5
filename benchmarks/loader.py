"""Can the files be read as fast as a training wants them, and does memory stay where it is?

    python -m benchmarks.loader [--gigabytes 10] [--minutes 10] [--workers 1] [--folder DIR]

A uint16 OME-Zarr of that size is made of 16 chunks that are repeated. Measured: batches per second that the training of
the preset `fast` uses on this CPU with data in memory, those that reading alone gives, and the memory of a training
that reads for some minutes, all its processes together, every 5 seconds.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import zarr

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result
from inverseflow.imaging import Samples, training_samples
from inverseflow.patches import allowed_operations
from inverseflow.recipe import PRESETS, SMALL_NET, as_data
from inverseflow.samples import Scaling

CHUNK, KINDS, PATCH = 1024, 16, 64
NOISE = ivf.Poisson(1.0)
FAST = PRESETS["fast"]


def write_image(path: Path, gigabytes: float) -> int:
    """Of so many bytes before compression; the number of its pixels."""
    many = round((gigabytes * 1e9 / 2) ** 0.5 / CHUNK)
    side = many * CHUNK
    empty = ivf.Image(
        np.broadcast_to(np.uint16(0), (CHUNK, side)), "YX", metadata={"chunks": (CHUNK,) * 2, "axes": "YX"}
    )
    ivf.write(path, empty)
    group = zarr.open_group(path, mode="r+")
    group["0"].resize((side, side))
    rng, wave = np.random.default_rng(0), np.arange(CHUNK)
    for kind in range(KINDS):
        mean = 300 + 100 * np.sin(wave[:, None] / (20 + kind)) * np.cos(wave / 50)
        group["0"][:CHUNK, kind * CHUNK : (kind + 1) * CHUNK] = rng.poisson(mean).astype(np.uint16)
    files = path / "0" / "c"
    for row in range(many):
        for column in range(many):
            kind = (row + 5 * column) % KINDS
            if row or column >= KINDS:
                target = files / str(row) / str(column)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files / "0" / str(kind), target)
    return side**2


def steps_per_second(samples: list[torch.Tensor], scaling: Scaling, seconds: float) -> float:
    """Of a training with its data in memory."""
    inner = scaling.carry(NOISE)
    method = ivf.InverseConsistency(ivf.Bridge(inner))
    model = method.prepare(ivf.NetSpec("UNet", **SMALL_NET).build(0), 0.3)
    data = as_data([scaling.apply(x[None])[0] for x in samples], NOISE, patch_size=PATCH, augment=True)
    settings = ivf.Settings(steps=None, seconds=seconds, batch_size=FAST.batch_size)
    return ivf.fit(model, method.loss, data, settings, device="cpu", progress=False).steps / seconds


def batches_per_second(files: ivf.Files, scaling: Scaling, seconds: float) -> float:
    data = files.patches(scaling, PATCH, allowed_operations(NOISE, 2))
    ahead = data.ahead(FAST.batch_size, torch.Generator().manual_seed(0))
    list(islice(ahead, 20))  # processes have started
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        next(ahead)
        count += 1
    return count / (time.perf_counter() - started)


class Watched:
    """The memory of this process and its children, in MB, every few seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self.rows: list[float] = []
        self._every, self._over = every, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._over.wait(self._every):
            family = [me, *me.children(recursive=True)]
            self.rows.append(round(sum(p.memory_info().rss for p in family if p.is_running()) / 2**20, 1))

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *rest: Any) -> None:
        self._over.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS / "loader.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        path = Path(name) / "in.ome.zarr"
        pixels = write_image(path, given.gigabytes)
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        figures: dict[str, Any] = {"gigabytes": pixels * 2 / 1e9, "stored_gigabytes": round(stored / 1e9, 2)}
        figures |= {"chunk": CHUNK, "patch": PATCH, "batch": FAST.batch_size, "workers": given.workers}
        files = ivf.Files((str(path),), ("YX",), "YX", workers=given.workers)
        some = training_samples([Samples(ivf.read(path), "YX")], limit=2**22)
        scaling = Scaling.of(some)
        figures["steps_per_second"] = round(steps_per_second(some, scaling, 30), 2)
        figures["batches_read_per_second"] = round(batches_per_second(files, scaling, 30), 2)
        figures["times_what_a_step_uses"] = round(figures["batches_read_per_second"] / figures["steps_per_second"], 2)
        print(figures, flush=True)
        with Watched() as memory:
            trained = ivf.Denoiser.train(
                some, NOISE, axes="CYX", source=files, preset="fast", estimate="flow", device="cpu", progress=False,
                settings=ivf.Settings(steps=None, seconds=60 * given.minutes, batch_size=FAST.batch_size),
            )  # fmt: skip
    rows = memory.rows[12:]  # the first minute starts processes
    slope = np.polyfit(np.arange(len(rows)) * 5 / 60, rows, 1)[0]
    figures |= {"training_minutes": given.minutes, "training_steps": trained.description["steps"]["flow"]}
    figures |= {"memory_mb": {"after_a_minute": rows[0], "at_the_end": rows[-1], "largest": max(rows)}}
    figures["memory_growth_mb_per_minute"] = round(float(slope), 3)
    write_result(given.output, figures)
    print(figures)


if __name__ == "__main__":
    main()
