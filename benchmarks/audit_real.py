"""The audit on real captures (FMD): with noise estimated from the capture itself, or from others, and with wrong noise.

    python -m benchmarks.audit_real [--data DIR] [--samples A,B] [--models DIR]

Capture 1 is learned from, by the fast preset. "estimated": all that is seen is that capture, as in `inverseflow denoise
capture.png`. "repeats": the noise is measured on captures 2 to 4. "white": wrong, white Gaussian noise of the estimated
root mean square, which none of these microscopes has. The limits come from photographs with simulated noise. PSNR
against the average of 50 captures, peak 255.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from imageio.v3 import imread

import inverseflow as ivf
from benchmarks.common import FMD, RESULTS, write_result
from inverseflow.metrics import psnr


def judge(noisy: torch.Tensor, truth: torch.Tensor, noise: ivf.Noise, kept: Path) -> dict[str, Any]:
    if not kept.exists():
        ivf.Denoiser.train(noisy, noise, preset="fast", std=False, progress=False).save(kept)
    model = ivf.Denoiser.load(kept, device="cpu")
    result = model.denoise(noisy)
    found = ivf.audit(noisy, result, model)
    beyond = {check.name: round(check.value / check.limits[0], 2) for check in found.checks if check.verdict != "pass"}
    return {"noise": str(noise), "verdict": found.verdict, "beyond": beyond, "psnr": round(psnr(result, truth, 255), 2)}


def every_noise(data: Path, sample: str, models: Path) -> dict[str, Any]:
    captures = [read(data / "raw" / f"{sample}_{number}.png") for number in (1, 2, 3, 4)]
    noisy, truth = captures[0], read(data / "gt" / f"{sample}_1.png")
    estimated = ivf.estimate_noise(noisy.numpy(), axes="SCYX").noise
    noises = {
        "estimated": estimated,
        "repeats": ivf.estimate_noise(torch.cat(captures[1:]).numpy(), axes="TCYX", repeats="T").noise,
        "white": ivf.Gaussian(float(estimated.std(estimated.project(noisy)).square().mean().sqrt())),
    }
    kept = {kind: models / f"{sample} {kind}.safetensors" for kind in noises}
    judged = {kind: judge(noisy, truth, noise, kept[kind]) for kind, noise in noises.items()}
    return {"input_psnr": round(psnr(noisy, truth, 255), 2), **judged}


def read(path: Path) -> torch.Tensor:
    return torch.from_numpy(imread(path)).float()[None, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/FMD"))
    parser.add_argument("--samples", default=",".join(FMD))
    parser.add_argument("--models", type=Path, default=Path("out/audit_real"), help="kept, and used when they exist")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {}
    for sample in arguments.samples.split(","):
        figures[sample] = every_noise(arguments.data, sample, arguments.models)
        print(sample, figures[sample], flush=True)
    write_result(RESULTS / "audit_real.json", figures)


if __name__ == "__main__":
    main()
