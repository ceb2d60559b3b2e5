"""The README's results, made from the stored JSON: python -m benchmarks.readme prints them, a test compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common import FMD
from benchmarks.table import read_tables

RESULTS = Path(__file__).parent / "results"
ROWS = ("gaussian25", "correlated", "jacobi", "poisson", "gamma", "rayleigh", "rgb")
SEEDS = (0, 1, 2)
OPTIMISERS = {None: "AdamW", "adamw": "AdamW", "auto": "Muon", "muon": "Muon"}
"""As settings call them; they did not before there was a choice."""


def load(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return figures


def photographs() -> list[str]:
    """The rows of the harness that are measured."""
    measured = [row for row in ROWS if (RESULTS / f"{row}.json").exists()]
    paper = {name: row for table in reversed(read_tables()) for name, row in table["rows"].items()}  # its first place
    lines = [
        "BSDS500 test / Kodak / Set12, PSNR in dB, trained on one noisy copy of 200 images, one seed,"
        f" {load(measured[0])['conditions']['device']}",
        "(`python -m benchmarks.run`; every table of the paper: `python -m benchmarks.table`; commands, commits and",
        "versions in [benchmarks/results](benchmarks/results)):",
        "",
        "| noise | input | map | posterior mean | paper's ICM | method, optimiser, seconds |",
        "|---|---|---|---|---|---|",
    ]
    for row in measured:
        r = load(row)
        ours = {
            name: " / ".join(f"{scores[name]['psnr']:.2f}" for scores in r["scores"].values())
            for name in ("input", "map", "mean")
        }
        theirs = " / ".join(f"{paper[row][test]['map']:.2f}" for test in r["scores"])
        lines.append(
            f"| {paper[row]['title']} | {ours['input']} | {ours['map']} | **{ours['mean']}** | {theirs} |"
            f" {r['method'].upper()}, {OPTIMISERS[r['settings']['flow'].get('optimizer')]},"
            f" {r['seconds']['in_all']:.0f} |"
        )
    return lines


RIVALS = {"bm3d": "BM3D, told the noise", "nlm (J-invariant)": "NLM", "careamics n2v (100 epochs)": "CAREamics N2V"}


def microscopy() -> list[str]:
    """The best of those that a user could have run is in bold."""
    titles = ["sample", "input", "Gaussian blur of the best width", *RIVALS.values(), "ours", "our seconds"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for sample, rows in load("cpu_single_image")["samples"].items():
        if "ours" not in rows:  # not measured yet
            continue
        scores = {name: rows[name]["psnr"] for name in (*RIVALS, "ours")}
        best = max(scores.values())
        shown = [f"**{score:.2f}**" if score == best else f"{score:.2f}" for score in scores.values()]
        known = [f"{rows[name]['psnr']:.2f}" for name in ("input", "blur (oracle)")]
        lines.append(f"| {' | '.join([sample, *known, *shown])} | {rows['ours']['seconds']:.0f} |")
    return lines


def captures() -> list[str]:
    """Four captures of one view, trained on those four alone; the best that a user could have run is in bold."""
    ours = {sample: load(f"fmd_{sample}") for sample in FMD}
    first = ours[FMD[0]]
    device = first["conditions"]["device"].partition(" (")[0]
    others = {"bm3d": "BM3D, told the noise", "noise2void": "Noise2Void", "noise2self": "Noise2Self"}
    titles = ["sample", "input", "Gaussian blur of the best width", *others.values(), "ours", "our seconds"]
    lines = [
        f"Four such captures together, `{first['preset']}` preset on {device}, noise measured on their differences,",
        "mean over the four (`python -m benchmarks.run`):",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for sample, found in ours.items():
        known = [found["scores"]["fmd"]["input"], load(f"fmd_{sample}_blur")["scores"]["fmd"]["mean"]]
        rivals = [load(f"fmd_{sample}_{kind}")["scores"]["fmd"]["mean"] for kind in others]
        scores = [score["psnr"] for score in (*rivals, found["scores"]["fmd"]["mean"])]
        shown = [f"**{score:.2f}**" if score == max(scores) else f"{score:.2f}" for score in scores]
        cells = [sample, *(f"{score['psnr']:.2f}" for score in known), *shown]
        lines.append(f"| {' | '.join(cells)} | {found['seconds']['in_all']:.0f} |")
    return lines


def audit() -> str:
    rates, alone = (load("audit_rates")[kind] for kind in ("with", "alone"))
    return (
        f"The audit, over {rates['cases']} simulated cases of right and wrong noise, over-smoothed and under-trained"
        f" results: {100 * rates['false_alarms']:.1f} % false alarms and {100 * rates['misses']:.1f} % misses; without"
        f" the denoiser, as for results of other tools, {100 * alone['false_alarms']:.1f} % and"
        f" {100 * alone['misses']:.1f} % (`python -m benchmarks.audit_rates`). Real captures (FMD, six samples):"
        f" {verdicts('pass', 'estimated', 'repeats')} results with the noise that the images show passed,"
        f" {verdicts('fail', 'white')} with white Gaussian noise in its place failed"
        " (`python -m benchmarks.audit_real`)."
    )


def verdicts(wanted: str, *kinds: str) -> str:
    found = [load("audit_real")[sample][kind]["verdict"] for sample in FMD for kind in kinds]
    return f"{found.count(wanted)} of {len(found)}"


def synthetic() -> list[str]:
    eight = [load(f"eight_gaussians_{seed}") for seed in SEEDS]
    lines = ["| experiment | figure | command |", "|---|---|---|"]

    def share(name: str, figure: str) -> str:
        """Mean over the seeds and, behind it, the range."""
        values = [100 * run[name][f"{figure}_over_noisy"] for run in eight]
        return f"{sum(values) / len(values):.0f} % ({min(values):.0f} to {max(values):.0f})"

    for name in ("icm", "ifm"):
        a, b = f"{name}_flow", f"{name}_mean"
        lines.append(
            f"| 8 gaussians, {name.upper()}: error of map; mean | {share(a, 'rmse')}; {share(b, 'rmse')} of the noisy"
            f" points' | `{eight[0]['conditions']['command']}` and seeds 1, 2 |"
        )
        distances = "; ".join(share(estimate, "energy_distance") for estimate in (a, b))
        lines.append(f"| energy distance of map; mean | {distances} | the same |")
    lines.append(f"| of a map that is told the 8 places | {share('told_the_places', 'energy_distance')} | the same |")
    step, denoise = (
        sum(run[f"icm_faster_{what}"] for run in eight) / len(eight) for what in ("per_step", "to_denoise")
    )
    lines.append(
        f"| ICM against IFM (10 evaluations) | training step {step:.1f} times faster, denoising"
        f" {denoise:.1f} times | the same |"
    )
    for family in ("simple", "random"):
        r = load(f"navier_stokes_{family}_icm")
        lines.append(
            f"| Navier-Stokes turned back, {family} flows | {100 * r['ratio']:.0f} % of the error of doing nothing,"
            f" test fields | `{r['conditions']['command']}` |"
        )
    new = {k.removeprefix("energy_distance_"): v for k, v in load("generate_clean").items() if k != "conditions"}
    ratio = {name: 100 * value / new["noisy_data"] for name, value in new.items()}
    lines.append(
        f"| new clean points from noisy ones: energy distance, by an ODE; in one pass |"
        f" {ratio['generated_clean_flow']:.0f} %; {ratio['generated_clean_consistency']:.0f} % of the noisy points' (a"
        f" generator of noisy points: {ratio['generated_from_noisy_flow']:.0f} %;"
        f" {ratio['generated_from_noisy_consistency']:.0f} %) |"
        f" `{load('generate_clean')['conditions']['command']}` |"
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
            *photographs(),
            "",
            "One 512 x 512 capture of real fluorescence microscopy (FMD), PSNR in dB against the average of 50,",
            "noise measured on three other captures, `fast` preset on two CPU cores",
            "(`python -m benchmarks.cpu_single_image`; the blur's width is chosen by the truth, which no user has):",
            "",
            *microscopy(),
            "",
            *captures(),
            "",
            audit(),
            "",
            *synthetic(),
        ]
    )


if __name__ == "__main__":
    print(markdown())
