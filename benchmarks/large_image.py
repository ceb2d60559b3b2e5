"""Memory and time of `inverseflow denoise` on an image that is much larger than a tile, streamed from TIFF to TIFF.

    python -m benchmarks.large_image [--side 16384] [--folder DIR]

Peak resident memory of the whole command, once on a 512 x 512 image and once on the large one: the difference is what
size costs beyond the libraries and the model. The model is trained for a moment only; its quality plays no part.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from benchmarks.common import RESULTS, write_result

MEASURE = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
)


def write_image(path: Path, side: int) -> None:
    """Counts around a slow wave, row band by row band: the benchmark itself must not hold the image."""
    target = tifffile.memmap(path, shape=(side, side), dtype=np.uint16)
    chance = np.random.default_rng(0)
    for top in range(0, side, 512):
        rows = np.arange(top, min(top + 512, side))[:, None]
        mean = 300 + 100 * np.sin(rows / 40) * np.cos(np.arange(side) / 50)
        target[rows[0, 0] : rows[-1, 0] + 1] = chance.poisson(mean).astype(np.uint16)
    target.flush()


def inverseflow(*arguments: str | Path) -> tuple[float, float]:
    """Peak resident memory in MB and seconds of one command."""
    started = time.perf_counter()
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "inverseflow", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(run.stdout.split()[-1]) / 1024, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=16384)
    parser.add_argument("--folder", type=Path, help="where the images lie meanwhile; needs 2 GB at the usual side")
    parser.add_argument("--output", type=Path, default=RESULTS / "large_image.json")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"side": arguments.side}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        for title, side in (("small", 512), ("large", arguments.side)):
            write_image(folder / f"{title}.tif", side)
        model = folder / "model.safetensors"
        inverseflow("train", folder / "small.tif", "--noise", "poisson:gain=1", "--steps", "20", "-o", model)
        for title in ("small", "large"):
            memory, seconds = inverseflow("denoise", folder / f"{title}.tif", "--model", model, "--device", "cpu")
            figures[title] = {"peak_mb": round(memory), "seconds": round(seconds, 1)}
            print(title, figures[title], flush=True)
        result = tifffile.TiffFile(folder / "large_denoised.tif").series[0]
        figures["written"] = {"shape": list(result.shape), "dtype": str(result.dtype)}
    figures["beyond_small_mb"] = figures["large"]["peak_mb"] - figures["small"]["peak_mb"]
    figures["megapixels_per_second"] = round(arguments.side**2 / 1e6 / figures["large"]["seconds"], 2)
    write_result(arguments.output, figures)
    print(figures)


if __name__ == "__main__":
    main()
