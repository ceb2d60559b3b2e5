"""The tables of docs/audit.md, from the stored JSON: python -m benchmarks.audit_table prints them."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import FMD, RESULTS

KINDS = {
    "noise 20 % too small": "-20 %",
    "noise 40 % too large": "+40 %",
    "white assumed on correlated": "white assumed",
    "Gaussian assumed on Poisson": "gaussian assumed",
    "under-trained": "under-trained",
    "over-smoothed": "over-smoothed",
    "right, the noise as estimated from the image": "as estimated, right",
    "the clean image itself": "the truth, right",
    "right, all": "right",
}
"""How the names of the simulated cases end."""


def load(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return figures


def simulated() -> list[str]:
    """The share that passed, by kind, every case of a kind counting the same."""
    rates = load("audit_rates")

    def passed(kind: str, ending: str) -> str:
        shares = [found.get("pass", 0.0) for case, found in rates[kind]["verdicts"].items() if case.endswith(ending)]
        return f"{100 * sum(shares) / len(shares):.0f} % passed" if shares else "-"

    rows = [f"| {title} | {passed('with', end)} | {passed('alone', end)} |" for title, end in KINDS.items()]
    return ["| case | with the denoiser | without it |", "|---|---|---|", *rows]


def real() -> list[str]:
    found = load("audit_real")
    titles = ["FMD, one capture", "noisy", "noise as estimated", "noise from other captures", "white Gaussian instead"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for sample in FMD:
        one = found[sample]
        cells = [f"{one[kind]['verdict']}, {one[kind]['psnr']:.2f} dB" for kind in ("estimated", "repeats", "white")]
        lines.append(f"| {sample} | {one['input_psnr']:.2f} dB | {' | '.join(cells)} |")
    return lines


def main() -> None:
    print("\n".join([*simulated(), "", *real()]))


if __name__ == "__main__":
    main()
