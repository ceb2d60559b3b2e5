"""The README's results, made from the stored JSON: python -m benchmarks.readme prints them, a test compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAPER = {"gaussian25": ("28.16", "29.19"), "correlated25": ("27.64", "28.46"), "poisson001": ("29.91", "30.68")}
NAMES = {"gaussian25": "Gaussian, sigma 25", "correlated25": "correlated, a = 2", "poisson001": "Poisson, 0.01"}


def load(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return figures


def photographs() -> list[str]:
    lines = [
        "| noise | input | map | posterior mean | paper's ICM | seconds | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, title in NAMES.items():
        r = load(f"photographs_{key}")
        a, b = r["bsds500"], r["set12"]
        seconds = sum(r["seconds"].values())
        lines.append(
            f"| {title} | {a['input']:.2f} / {b['input']:.2f} | {a['flow']:.2f} / {b['flow']:.2f} |"
            f" **{a['mean']:.2f} / {b['mean']:.2f}** | {' / '.join(PAPER[key])} | {seconds:.0f} |"
            f" {r['conditions']['commit']} |"
        )
    return lines


def synthetic() -> list[str]:
    eight = load("eight_gaussians")
    lines = ["| experiment | figure | command |", "|---|---|---|"]
    for name in ("icm", "ifm"):
        a, b = eight[f"{name}_flow"], eight[f"{name}_mean"]
        lines.append(
            f"| 8 gaussians, {name.upper()}, map / mean | error {100 * a['rmse_over_noisy']:.0f} /"
            f" {100 * b['rmse_over_noisy']:.0f} %, energy distance {100 * a['energy_distance_over_noisy']:.1f} /"
            f" {100 * b['energy_distance_over_noisy']:.1f} % of the noisy points' |"
            f" `{eight['conditions']['command']}` |"
        )
    lines.append(
        f"| ICM against IFM (10 evaluations) | training step {eight['icm_faster_per_step']:.1f} times faster, denoising"
        f" {eight['icm_faster_to_denoise']:.1f} times | the same |"
    )
    for family in ("simple", "random"):
        r = load(f"navier_stokes_{family}_icm")
        lines.append(
            f"| Navier-Stokes turned back, {family} flows | {100 * r['ratio']:.0f} % of the error of doing nothing,"
            f" test fields | `{r['conditions']['command']}` at {r['conditions']['commit']} |"
        )
    return lines


def markdown() -> str:
    demo = load("demo")
    gain = demo["output_psnr"] - demo["input_psnr"]
    return "\n".join(
        [
            f"`make demo`, one photograph with photon and read-out noise: {demo['input_psnr']:.2f} dB to"
            f" {demo['output_psnr']:.2f} dB ({gain:+.2f}) in {demo['seconds']:.0f} s on two CPU cores.",
            "",
            "BSDS500 test / Set12, PSNR in dB, trained on one noisy copy of 200 images on one H200, one seed",
            "(`python -m benchmarks.photographs`; commands and versions in [benchmarks/results](benchmarks/results)):",
            "",
            *photographs(),
            "",
            *synthetic(),
        ]
    )


if __name__ == "__main__":
    print(markdown())
