"""One 512 x 512 capture on two CPU cores: FMD, real noise, scored against the average of 50 captures.

    python -m benchmarks.cpu_single_image [--data DIR] [--methods ours,bm3d,...] [--samples A,B]
    python -m benchmarks.cpu_single_image --methods "careamics n2v" --careamics-python ENV/bin/python

The noise is measured from captures 2 to 4, never from the truth; capture 1 is denoised. PSNR with peak 255, and again
after the best affine fit to the truth (captures differ in brightness, which no denoiser can win back). Rows marked
"oracle" choose their parameter by the truth and are bounds, not methods; "J-tuned" filters take the parameters that
J-invariance chooses, "J-invariant" ones also predict every pixel from its neighbours alone. A run adds its rows to the
stored ones, each with the conditions that it was measured under.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imageio.v3 import imread

import inverseflow as ivf
from benchmarks import classical
from benchmarks.common import RESULTS, conditions
from inverseflow.metrics import psnr

SAMPLES = ("Confocal_BPAE_G", "TwoPhoton_MICE", "WideField_BPAE_R", "Confocal_BPAE_R", "WideField_BPAE_G")
N2V = "careamics n2v"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Method:
    """A denoiser of (noisy, noise, truth), the packages whose versions count, and whether it is told the noise."""

    run: Callable[[Array, ivf.Noise, Array], Array]
    packages: tuple[str, ...] = ("scikit-image",)
    told: bool = False


def ours(noisy: Array, noise: ivf.Noise, truth: Array) -> Array:
    result: Array = ivf.denoise(noisy, noise, axes="YX", preset="fast", device="cpu", progress=False)
    return result.astype(np.float64)


WAVELETS = ("scikit-image", "PyWavelets")
METHODS = {
    "ours": Method(ours, (), told=True),
    "blur (oracle)": Method(lambda noisy, noise, truth: classical.blur_oracle(noisy, truth), ("scipy",)),
    "nlm (estimated sigma)": Method(lambda noisy, noise, truth: classical.nlm(noisy)),
    "nlm (J-tuned)": Method(lambda noisy, noise, truth: classical.nlm_tuned(noisy)),
    "nlm (J-invariant)": Method(lambda noisy, noise, truth: classical.nlm_tuned(noisy, invariant=True)),
    "wavelet (estimated sigma)": Method(lambda noisy, noise, truth: classical.wavelet(noisy), WAVELETS),
    "wavelet (J-tuned)": Method(lambda noisy, noise, truth: classical.wavelet_tuned(noisy), WAVELETS),
    "wavelet (J-invariant)": Method(
        lambda noisy, noise, truth: classical.wavelet_tuned(noisy, invariant=True), WAVELETS
    ),
    "tv (J-tuned)": Method(lambda noisy, noise, truth: classical.tv_tuned(noisy)),
    "tv (J-invariant)": Method(lambda noisy, noise, truth: classical.tv_tuned(noisy, invariant=True)),
    "bm3d": Method(
        lambda noisy, noise, truth: classical.bm3d(noisy, noise, threads=torch.get_num_threads()),
        ("bm3d", "bm4d"),
        told=True,
    ),
}


def load(data: Path, sample: str) -> tuple[Array, Array]:
    """The four captures and the average of 50."""
    captures = np.stack([imread(data / "raw" / f"{sample}_{number}.png") for number in (1, 2, 3, 4)])
    return captures.astype(np.float64), imread(data / "gt" / f"{sample}_1.png").astype(np.float64)


def score(result: Array, truth: Array) -> dict[str, float]:
    slope, intercept = np.polyfit(result.ravel(), truth.ravel(), 1)
    plain, fitted = (
        psnr(torch.from_numpy(image), torch.from_numpy(truth), 255) for image in (result, slope * result + intercept)
    )
    return {"psnr": round(plain, 2), "psnr_affine": round(fitted, 2)}


def measure(method: Method, noisy: Array, found: ivf.NoiseEstimate, truth: Array) -> dict[str, Any]:
    started, used = time.perf_counter(), time.process_time()
    result = method.run(noisy, found.noise, truth)
    figures: dict[str, Any] = {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - used, 1),  # of all threads: what a busy machine does not change
    }
    if method.told:
        figures["noise"] = str(found)
    versions = {name: version(name) for name in method.packages}
    return score(result, truth) | figures | under_conditions(torch.get_num_threads(), versions)


def measure_n2v(python: Path, epochs: int, noisy: Array, truth: Array) -> dict[str, Any]:
    """CAREamics lives in an environment of its own: its pins and ours do not go together."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "noisy.npy", Path(folder) / "denoised.npy"
        np.save(source, noisy.astype(np.float32))
        script = Path(__file__).with_name("careamics_n2v.py")
        run = [str(python), str(script), str(source), str(target), "--epochs", str(epochs)]
        finished = subprocess.run(run, capture_output=True, text=True, check=False, cwd=folder)
        if finished.returncode:
            raise SystemExit(f"CAREamics failed: {finished.stderr[-2000:]}")
        told = json.loads(finished.stdout.splitlines()[-1])
        result = np.load(target).astype(np.float64)
    figures = {key: told[key] for key in ("seconds", "cpu_seconds", "epochs", "steps", "parameters")}
    return score(result, truth) | figures | under_conditions(told["threads"], told["versions"])


def under_conditions(threads: int, versions: dict[str, str]) -> dict[str, Any]:
    """The command is stored as one would type it elsewhere: quoted, and without this machine's environments."""
    words = list(sys.argv[1:])
    if "--careamics-python" in words:
        words[words.index("--careamics-python") + 1] = "ENV/bin/python"
    command = f"python -m benchmarks.cpu_single_image {shlex.join(words)}".strip()
    return {"threads": threads, "conditions": conditions() | {"command": command} | versions}


def store(path: Path, sample: str, rows: dict[str, Any]) -> None:
    """Add rows to those of earlier runs, in the order of the tables."""
    stored = json.loads(path.read_text()) if path.exists() else {"samples": {}}
    merged = stored["samples"].get(sample, {}) | rows
    order = {name: number for number, name in enumerate(("input", *METHODS))}
    stored["samples"][sample] = dict(sorted(merged.items(), key=lambda row: order.get(row[0], len(order))))
    ranks = {name: number for number, name in enumerate(SAMPLES)}
    stored["samples"] = dict(sorted(stored["samples"].items(), key=lambda row: ranks.get(row[0], len(ranks))))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stored, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/FMD"))
    parser.add_argument("--samples", default=",".join(SAMPLES))
    parser.add_argument("--methods", default=",".join(METHODS), help=f"names with commas between; also {N2V!r}")
    parser.add_argument("--careamics-python", type=Path, help="the interpreter of an environment with CAREamics")
    parser.add_argument("--epochs", type=int, default=100, help="of CAREamics")
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu_single_image.json")
    arguments = parser.parse_args()
    names = arguments.methods.split(",")
    unknown = [name for name in names if name not in (*METHODS, N2V)]
    if unknown:
        parser.error(f"there is no method {unknown[0]!r}; the methods are {', '.join((*METHODS, N2V))}")
    if N2V in names and arguments.careamics_python is None:
        parser.error(f"{N2V!r} needs --careamics-python")
    for sample in arguments.samples.split(","):
        captures, truth = load(arguments.data, sample)
        found = ivf.estimate_noise(captures[1:], axes="TYX", repeats="T")
        store(arguments.output, sample, {"input": score(captures[0], truth)})
        for name in names:
            title = f"{name} ({arguments.epochs} epochs)" if name == N2V else name
            try:
                if name == N2V:
                    row = measure_n2v(arguments.careamics_python, arguments.epochs, captures[0], truth)
                else:
                    row = measure(METHODS[name], captures[0], found, truth)
            except (ImportError, PackageNotFoundError) as error:
                print(f"{sample:18} {title:26} not installed ({error.name})", flush=True)
                continue
            store(arguments.output, sample, {title: row})
            print(
                f"{sample:18} {title:26} {row['psnr']:.2f} / {row['psnr_affine']:.2f}, {row['seconds']} s", flush=True
            )


if __name__ == "__main__":
    main()
