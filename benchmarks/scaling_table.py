"""The tables of docs/scaling.md, from the stored JSON: python -m benchmarks.scaling_table prints them."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import RESULTS

PETABYTE = 1e15 / 2 / 1e6  # megapixels of uint16
MARGIN = ((1024 + 2 * 64) / 1024) ** 2  # what is computed for a block, over what is kept
BYTES = 2 + 4  # of a pixel, read as uint16 and written as float32
DAY = 86_400


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def constants() -> list[str]:
    rows = [(f"denoising 2048 x 2048, {row['net']}, {where}", f"{row['mpx_per_s']:.3g} megapixels/s", "speed denoising")
            for kind, where in (("cuda", "one H200"), ("cpu", "two CPU cores"))
            for row in load(f"speed_denoising_{kind}")["rows"] if row["what"] == "mean"]  # fmt: skip
    runs = ("speed_steps_cuda", "speed_steps_paper_unet_cuda")  # of all networks; later of one alone
    steps = {row["net"]: row for name in runs for row in load(name)["rows"] if row["compiled"]}
    rows += [
        (f"a training step, {net}, {row['batch']} x {row['side']} x {row['side']}, one H200",
         f"{row['ms']:.1f} ms", "speed steps")
        for net, row in steps.items()
    ]  # fmt: skip
    found = load("cluster")
    alone, *many = found["runs"].items()
    side = f"{found['side']:,} x {found['side']:,}"
    rows.append((f"{side} uint16, OME-Zarr to OME-Zarr, two CPU cores, alone", _run(alone[1]), "cluster"))
    rows += [
        (f"the same, {name.replace('1 workers', '1 worker')} of one core", _run(run), "cluster") for name, run in many
    ]
    efficiency = found["efficiency_seconds_after_the_first_block"], found["efficiency_seconds"]
    rows.append(("efficiency of 2 workers against 1; with the start of all processes",
                 "; ".join(f"{100 * e:.0f} %" for e in efficiency), "cluster"))  # fmt: skip
    same = "bit for bit" if found["all_identical"] else "NOT the same"
    rows.append(("results alone, of 1 and of 2 workers", same, "cluster"))
    seams = found["seams"]
    rows.append(("mean step between pixels across borders of blocks; elsewhere",
                 f"{seams['across_borders']:.2f}; {seams['elsewhere']:.2f}", "cluster"))  # fmt: skip
    read = load("loader")
    rows += [
        (f"crops read from {read['gigabytes']:.0f} GB of OME-Zarr, {read['workers']} reading process",
         f"{read['batches_read_per_second']:.0f} batches/s, {read['times_what_a_step_uses']:.1f} times what `fast` uses"
         , "loader"),
        (f"memory of that training over {read['training_minutes']:.0f} minutes",
         f"{read['memory_mb']['after_a_minute']:.0f} MB, then {read['memory_growth_mb_per_minute']:+.1f} MB a minute",
         "loader"),
    ]  # fmt: skip
    return ["| what | measured | by |", "|---|---|---|", *(f"| {a} | {b} | `{c}` |" for a, b, c in rows)]


def petabyte() -> list[str]:
    lines = ["| network | GPU days | on 100 GPUs | bytes read and written by each |", "|---|---|---|---|"]
    for row in load("speed_denoising_cuda")["rows"]:
        if row["what"] == "mean":
            days = PETABYTE * MARGIN / row["mpx_per_s"] / DAY
            traffic = row["mpx_per_s"] / MARGIN * BYTES
            lines.append(f"| {row['net']} | {days:.0f} | {days / 100:.1f} days | {traffic:.0f} MB/s |")
    return lines


def _run(run: dict[str, Any]) -> str:
    peak = run["worker_peak_mb"] or run["own_peak_mb"]
    return f"{run['seconds']:.0f} s, {run['megapixels_per_second']:.2f} megapixels/s, {peak} MB in a process"


if __name__ == "__main__":
    print("\n".join([*constants(), "", *petabyte()]))
