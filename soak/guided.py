"""Files that a fuzzer makes to reach new code (atheris): every reader ends well or with one sentence.

    pip install atheris
    python -m soak.guided --seconds 60 --store

Each kind of file is fuzzed in a process of its own, from whole files on. The fuzzer follows inverseflow's Python and
that of the libraries that read for it, and stops at the first exception that is not one of ours, at 10 s, or at 2 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = (".tif", ".npy", ".npz", ".png", ".jpg", ".safetensors", ".yaml")
LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0")


def readers() -> dict[str, Callable[[Path], object]]:
    """What a user's command would do first with such a file."""
    import imageio.plugins.pillow  # noqa: F401 (imported now, as later it would not be followed)
    import numpy as np

    from inverseflow.denoiser import Denoiser
    from inverseflow.header import FORMATS, read_header
    from inverseflow.io import read
    from inverseflow.noise.file import read_noise

    def image(path: Path) -> object:
        data = read(path).data
        return np.asarray(data[tuple(slice(0, 64) for _ in data.shape)])

    def model(path: Path) -> object:
        read_header(path, *FORMATS)
        return Denoiser.load(path, device="cpu")

    return dict.fromkeys(KINDS, image) | {".safetensors": model, ".yaml": read_noise}


def one(kind: str, corpus: str, seconds: int) -> None:
    """In a process of its own: libFuzzer does not return, and what it follows must not be imported before."""
    import atheris

    with atheris.instrument_imports(include=["inverseflow", "tifffile", "imageio", "yaml"]):
        read = readers()[kind]
    import inverseflow as ivf

    warnings.simplefilter("ignore")
    path = Path(corpus).with_name(f"a{kind}")

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(ivf.InverseflowError):
            read(path)

    where = f"-artifact_prefix={path.parent}/"
    atheris.Setup([sys.argv[0], *LIMITS, where, f"-max_total_time={seconds}", corpus], attempt)
    atheris.Fuzz()


def together(seconds: int) -> dict[str, Any]:
    from .damage import make_wholes

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as place:
        (Path(place) / "whole").mkdir()
        wholes = [path for path in make_wholes(Path(place) / "whole").values() if path.is_file()]
        for kind in KINDS:
            corpus = Path(place) / kind[1:]
            corpus.mkdir()
            for path in wholes:
                if path.suffix == kind and "checkpoint" not in path.name:
                    shutil.copy(path, corpus)
            line = [sys.executable, "-m", "soak.guided", "--kind", kind, str(corpus), "--seconds", str(seconds)]
            done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
            units = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
            found[kind] = {"inputs": int(units[1]) if units else 0, "ended well": done.returncode == 0}
            print(kind, found[kind], flush=True)
            if done.returncode:
                print(done.stderr[-4000:])
    return {"inputs": sum(kind["inputs"] for kind in found.values()), "by_kind": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=60, help="for each kind of file")
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    if given.kind:
        one(given.kind, given.corpus, given.seconds)
    found = together(given.seconds)
    if given.store:
        from .common import store

        store("guided", found)
    return 0 if all(kind["ended well"] for kind in found["by_kind"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
