"""How fast: a training step, denoising, and the time to the paper's quality.

    python -m benchmarks.speed steps denoising quality --data ../shared/data

One JSON per part, results/speed_PART_DEVICE.json:

steps       milliseconds of an ICM step, our networks and the paper's U-Net (the authors' code: 445 ms as released, 175
            with TF32), as the loop takes them: compiled and recorded where that pays
denoising   megapixels per second of `Denoiser.denoise` on 2048 x 2048, from and to the host's memory
quality     PSNR on the BSDS500 test images, Gaussian 25, after some seconds of training by --method, compiling included
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import inverseflow as ivf
from benchmarks import datasets
from benchmarks.common import RESULTS, write_result
from benchmarks.run import Options, run
from inverseflow.engine import choose_device
from inverseflow.nets import count_parameters
from inverseflow.process import Bridge
from inverseflow.recipe import SMALL_NET, as_data

NETS: dict[str, tuple[ivf.NetSpec, int, int]] = {
    "fast, or little data": (ivf.NetSpec("UNet", **SMALL_NET), 32, 128),
    "balanced and best": (ivf.NetSpec("UNet"), 32, 128),
    "the paper's U-Net": (ivf.NetSpec("PaperUNet"), 32, 256),
}
"""A network, how many crops a step sees, and their side."""
STEPS, SIDE, REPEATS = 160, 2048, 5


def steps(given: argparse.Namespace) -> list[dict[str, Any]]:
    noise, device = ivf.Gaussian(0.3), choose_device()
    images = [torch.randn(1, 321, 481, generator=torch.Generator().manual_seed(k)) for k in range(50)]
    rows = []
    for name in given.nets:
        net, batch, side = NETS[name]
        for compiled in (False, True):
            method = ivf.InverseConsistency(Bridge(noise.to(device)))
            model = method.prepare(net.build(0), 0.3)
            settings = ivf.Settings(steps=STEPS, batch_size=batch, compile=compiled)
            torch.compiler.reset()
            crops = as_data(images, noise, patch_size=side, augment=True)
            fitted = ivf.fit(model, method.loss, crops, settings, phase=method.phase, progress=False)
            late = [row for row in fitted.history if row["step"] > 0.65 * STEPS]  # the last grid is recorded by then
            took = (late[-1]["seconds"] - late[0]["seconds"]) / (late[-1]["step"] - late[0]["step"])
            rows.append({"net": name, "batch": batch, "side": side, "compiled": compiled, "ms": round(1e3 * took, 2)})
            print(rows[-1], flush=True)
    return rows


def denoising(given: argparse.Namespace) -> list[dict[str, Any]]:
    image = torch.randn(1, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    rows = []
    for name in given.nets:
        net, _, _ = NETS[name]
        settings = ivf.Settings(steps=1, batch_size=2, compile=False)
        model = ivf.Denoiser.train(
            image[..., :256, :256], "gaussian:sigma=0.5", net=net, settings=settings, progress=False
        )
        for what, return_std in (("mean", False), ("mean and error bars", True)):
            model.denoise(image, return_std=return_std)
            times = []
            for _ in range(REPEATS if choose_device() == "cuda" else 1):  # minutes each on a CPU
                started = time.perf_counter()
                model.denoise(image, return_std=return_std)
                times.append(time.perf_counter() - started)
            speed = SIDE**2 / 1e6 / sorted(times)[len(times) // 2]
            rows.append(
                {"net": name, "parameters": count_parameters(model.flow), "what": what, "mpx_per_s": round(speed, 2)}
            )
            print(rows[-1], flush=True)
    return rows


def quality(given: argparse.Namespace) -> list[dict[str, Any]]:
    datasets.load({"data": "photographs", "noise": "gaussian:sigma=0.1"}, given.data)  # decoded once
    rows = []
    for budget in given.seconds:
        found = run("gaussian25" if given.method == "ifm" else "gaussian25_icm", given.data, Options(seconds=budget))
        scores = {test: values["mean"]["psnr"] for test, values in found["scores"].items()}
        rows.append({"method": given.method, "seconds_asked": budget, "psnr": scores})
        rows[-1] |= {key: found[key] for key in ("seconds", "steps")}
        print(rows[-1], flush=True)
    return rows


PARTS = {"steps": steps, "denoising": denoising, "quality": quality}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, nargs="+", default=[40.0, 60.0], help="budgets of the part quality")
    parser.add_argument("--method", choices=("icm", "ifm"), default="ifm", help="of the part quality")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS), help="of the parts steps and denoising")
    given = parser.parse_args()
    for part in given.parts:
        rows = PARTS[part](given)
        write_result(given.results / f"speed_{part}_{choose_device()}.json", {"rows": rows})


if __name__ == "__main__":
    main()
