"""Every table of the paper beside our figures, from the stored results alone.

    python -m benchmarks.table [--table N] [--results DIR]

A cell holds the paper's figure and, behind the arrow, ours; what has not been measured is a dash, and the rows that are
missing are named below each table. The paper's figures in the columns of ours are those of its ICM. Seconds are those
of ours, training in all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from benchmarks.common import RESULTS

PAPER = Path(__file__).parent / "paper.yaml"
TITLES = {
    "input": "input",
    "supervised": "supervised",
    "supervised_fresh": "supervised, fresh noise",
    "bm3d": "BM3D",
    "nlm": "NLM",
    "wavelet": "wavelet",
    "blur": "best blur",
    "noise2noise": "Noise2Noise",
    "noise2void": "Noise2Void",
    "noise2self": "Noise2Self",
    "noise2score": "Noise2Score",
    "sure": "MC-SURE",
    "icm_map": "ICM map",
    "icm_mean": "ICM mean",
    "map": "ours, map",
    "mean": "ours, mean",
}
SETS = {"bsds500": "BSDS500", "kodak": "Kodak", "set12": "Set12", "ptnp": "", "fmd": "", "oct": ""}
ELSEWHERE = ("noise2noise",)
"""Columns that hold others' figures only."""


def place(row: str, column: str) -> tuple[str, str]:
    """The result that holds a column of a row, and the estimate's name in it."""
    if column in ("input", "map", "mean"):
        return row, column
    if column.startswith("icm_"):
        return f"{row}_icm", column.removeprefix("icm_")
    return f"{row}_{column}", "mean"


def wanted(table: dict[str, Any]) -> list[str]:
    """The results that a table is made from."""
    names = [
        place(row, column)[0]
        for row, entry in table["rows"].items()
        for column in table["columns"]
        if column not in entry.get("without", ()) and column not in ELSEWHERE
    ]
    return list(dict.fromkeys(names))


def read_tables() -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = yaml.safe_load(PAPER.read_text())
    return tables


def read_results(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    paths = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def markdown(table: dict[str, Any], folder: Path) -> str:
    results = read_results(folder, wanted(table))
    columns = table["columns"]
    lines = [
        f"### Table {table['table']}: {table['title']}",
        "",
        "| | " + " | ".join(TITLES[column] for column in columns) + " | seconds |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for row, entry in table["rows"].items():
        for test in (key for key in entry if key in SETS):
            cells = [_cell(results, row, column, test, entry) for column in columns]
            seconds = f"{results[row]['seconds']['in_all']:.0f}" if row in results else "-"
            title = f"{entry['title']} {SETS[test]}".strip()
            lines.append("| " + " | ".join([title, *cells, seconds]) + " |")
    missing = [name for name in wanted(table) if name not in results]
    if missing:
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    older = [name for name in table["rows"] if results.get(name, {}).get("method") == "icm"]
    if older:
        lines += ["", f"Still of the inverse consistency model, not of the default method: {', '.join(older)}."]
    return "\n".join(lines)


def _cell(results: dict[str, dict[str, Any]], row: str, column: str, test: str, entry: dict[str, Any]) -> str:
    """The paper's figure, an arrow and ours; one of them where there is no other to come."""
    theirs = entry[test].get(column)
    name, estimate = place(row, column)
    figures = [] if theirs is None else [f"{theirs:.2f}"]
    if column not in ELSEWHERE and column not in entry.get("without", ()):
        ours = results.get(name, {}).get("scores", {}).get(test, {}).get(estimate, {}).get("psnr")
        figures.append("-" if ours is None else f"{ours:.2f}")
    return " → ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, help="this one alone")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    tables = [table for table in read_tables() if arguments.table in (None, table["table"])]
    print("\n\n".join(markdown(table, arguments.results) for table in tables))


if __name__ == "__main__":
    main()
