"""The table of docs/noise.md, from the stored results.

python -m benchmarks.noise_estimation_table
"""

from __future__ import annotations

import json

from benchmarks.common import RESULTS

ROWS = {
    "gaussian 25": "Gaussian",
    "poisson 0.01": "photons (Poisson)",
    "poisson 0.01 + gaussian 10": "photons and read-out noise",
    "gamma k=100": "speckle (gamma)",
    "gamma k=100 + gaussian 10": "speckle and read-out noise",
    "clipped 8-bit gaussian 25": "Gaussian, clipped and 8-bit",
    "correlated a=2": "correlated",
}


def markdown() -> str:
    figures = json.loads((RESULTS / "noise_estimation.json").read_text())
    lines = [
        f"| noise | {figures['pool']} images | one image | two repeats | right kind, from one image |",
        "|---|---|---|---|---|",
    ]
    for case, name in ROWS.items():
        row = figures[case]
        worst = max(pool["rms"] for pool in row["pooled"])
        single, repeats = row["single"], row["two_repeats"]
        alone = f"{single['median']:.1f} % ({single['p90']:.1f} %)"
        kind = f"{100 * single['family_right']:.0f} %"
        lines.append(f"| {name} | {worst:.1f} % | {alone} | {repeats['median']:.1f} % | {kind} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
