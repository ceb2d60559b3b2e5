"""The audit on real captures (FMD): with the noise that is estimated from the capture itself, and with a wrong one.

    python -m benchmarks.audit_real [--data DIR] [--samples A,B] [--models DIR]

One capture is all that is seen, by the fast preset, as in `inverseflow denoise capture.png`. Wrong is white Gaussian
noise of the same root mean square, which none of these microscopes has. The limits come from photographs with simulated
noise. PSNR against the average of 50 captures, peak 255.
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


def both(data: Path, sample: str, models: Path) -> dict[str, Any]:
    noisy, truth = (
        torch.from_numpy(imread(data / folder / f"{sample}_1.png")).float()[None, None] for folder in ("raw", "gt")
    )
    estimated = ivf.estimate_noise(noisy.numpy(), axes="SCYX").noise
    white = ivf.Gaussian(float(estimated.std(estimated.project(noisy)).square().mean().sqrt()))
    return {
        "input_psnr": round(psnr(noisy, truth, 255), 2),
        "estimated": judge(noisy, truth, estimated, models / f"{sample}.safetensors"),
        "white": judge(noisy, truth, white, models / f"{sample} white.safetensors"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/FMD"))
    parser.add_argument("--samples", default=",".join(FMD))
    parser.add_argument("--models", type=Path, default=Path("out/audit_real"), help="kept, and used when they exist")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {}
    for sample in arguments.samples.split(","):
        figures[sample] = both(arguments.data, sample, arguments.models)
        print(sample, figures[sample], flush=True)
    write_result(RESULTS / "audit_real.json", figures)


if __name__ == "__main__":
    main()
