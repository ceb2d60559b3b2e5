"""The tables of docs/cells.md, made from results/cells.json: python -m benchmarks.cells_table prints them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.common import RESULTS

TITLES = {
    "pca": "PCA",
    "magic sqrt": "MAGIC, square roots",
    "magic log": "MAGIC, logarithms",
    "alra": "ALRA",
    "scvi latent": "scVI, its latent space",
    "scvi expression": "scVI, its expression",
    "snap": "snap to 30 centres (a cheat)",
    "paper": "the paper's protocol",
    "ours": "ours",
}


def by_set() -> list[str]:
    """Means over the seeds, with the standard error where there is more than one."""
    found = json.loads((RESULTS / "cells.json").read_text())
    rows = found["sets"]
    lines = ["| set | method | 2 | 6 | 20 | held-out molecules | genes |", "|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["set"] for row in rows):
        for method, title in TITLES.items():
            runs, foretold = (
                [row for row in kind if (row["set"], row["method"]) == (name, method)]
                for kind in (rows, found["molecules"])
            )
            if runs:
                cells = [_mean([run["accuracy"][k] for run in runs], 3) for k in ("2", "6", "20")]
                cells.append(_mean([run["held_out"] for run in runs if "held_out" in run], 2))
                cells.append(_mean([run["gain"] for run in foretold], 3))
                lines.append(f"| {name} | {title} | {' | '.join(cells)} |")
    return lines


def by_spikes() -> list[str]:
    """Noise that is found, over the spread that is seen, in the first component and in the others."""
    rows = json.loads((RESULTS / "cells.json").read_text())["spikes"]
    lines = ["| | component 1 | components 2 to 10: mean; least and most |", "|---|---|---|"]
    for key, title in (("spike_ins", "spike-ins"), ("drawn", "counts drawn at the same depths, nothing but counting")):
        share = 100 * np.mean([row[key]["found"] for row in rows], axis=0)
        rest = share[1:]
        lines.append(f"| {title} | {share[0]:.0f} % | {rest.mean():.0f} %; {rest.min():.0f} to {rest.max():.0f} % |")
    return lines


def by_simulation() -> list[str]:
    rows = json.loads((RESULTS / "cells.json").read_text())["simulated"]
    lines = [
        "| set | noise of counting, by component: mean error; worst | with fitting: mean; worst | PCA | MAGIC | ours |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        runs = [row for row in rows if row["set"] == name]
        errors = [_mean([run["error"][method] for run in runs], 3) for method in ("pca", "magic log", "ours")]
        off = [_off(runs, key) for key in ("counting_error", "noise_error")]
        lines.append(f"| {' | '.join([name, *off, *errors])} |")
    return lines


def _off(runs: list[dict[str, Any]], key: str) -> str:
    """Of the mean over the seeds."""
    error = np.mean([run[key] for run in runs], axis=0)
    return f"{100 * np.mean(error):+.1f} %; {100 * error[np.argmax(np.abs(error))]:+.1f} %"


def _mean(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}" if len(values) > 1 else mean


if __name__ == "__main__":
    print("\n".join([*by_set(), "", *by_simulation(), "", *by_spikes()]))
