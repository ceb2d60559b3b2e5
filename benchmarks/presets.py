"""What each preset gives on one real capture, and what the stop rule costs or saves: FMD, scored as in
`cpu_single_image`.

    python -m benchmarks.presets --data ../shared/data --presets fast,balanced [--samples A,B] [--workers 1]

"whole" runs the preset's steps to the end; "stopped" is the default, which ends when noise(x0_hat) no longer gets more
like the capture. Seconds mean something with one worker alone.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result
from benchmarks.cpu_single_image import score
from benchmarks.datasets import read
from inverseflow.recipe import PRESETS

SAMPLES = ("Confocal_BPAE_G", "TwoPhoton_MICE", "WideField_BPAE_R")


def measure(sample: str, preset: str, stop: bool, data: Path) -> dict[str, Any]:
    captures = np.stack(read(data, f"FMD/raw/{sample}_*.png")).astype(np.float64)
    truth = read(data, f"FMD/gt/{sample}_1.png")[0].astype(np.float64)
    noise = ivf.estimate_noise(captures[1:], axes="TYX", repeats="T").noise
    started = time.perf_counter()
    # Steps that are asked for are done to the last; a part of them would come on top for the best estimate.
    steps = None if stop else PRESETS[preset].steps
    model = ivf.Denoiser.train(captures[0], noise, axes="YX", preset=preset, max_steps=steps, progress=False)
    figures: dict[str, Any] = {"sample": sample, "preset": preset, "end": "stopped" if stop else "whole"}
    figures |= {"seconds": round(time.perf_counter() - started, 1), "steps": model.description["steps"]}
    for estimate in ("flow", "mean"):
        result = np.asarray(model.denoise(captures[0], estimate=estimate), dtype=np.float64)
        figures[estimate] = score(result, truth)["psnr"]
    return figures | {"input": score(captures[0], truth)["psnr"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--samples", default=",".join(SAMPLES))
    parser.add_argument("--presets", default="fast,balanced")
    parser.add_argument("--ends", default="stopped,whole")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "presets.json")
    arguments = parser.parse_args()
    rows = []
    wanted = [
        (sample, preset, end == "stopped", arguments.data)
        for preset in reversed(arguments.presets.split(","))  # the longest first
        for sample in arguments.samples.split(",")
        for end in arguments.ends.split(",")
    ]
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        for job in [pool.submit(measure, *one) for one in wanted]:
            rows.append(job.result())
            print(rows[-1], flush=True)
            write_result(arguments.output, {"workers": arguments.workers, "rows": rows})


if __name__ == "__main__":
    main()
