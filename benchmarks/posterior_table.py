"""The tables of docs/uncertainty.md, from the stored JSON: python -m benchmarks.posterior_table prints them."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.posterior import CONFOCAL

NOISES = {"gaussian25": "Gaussian 25", "correlated": "correlated 25"}
GREY_LEVELS = 255


def load(part: str) -> dict[str, Any]:
    """The figures of a part; none where it was not run yet."""
    path = RESULTS / f"posterior_{part}.json"
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return figures


def measured() -> list[str]:
    rows = [*_example(), *_exact(), *_photographs(), *_microscopy(), *_generated()]
    return ["| what | measured | by |", "|---|---|---|", *(f"| {a} | {b} | `{c}` |" for a, b, c in rows)]


def blends() -> list[str]:
    points = load("gaussian25").get("blends", {})
    if not points:
        return []
    noisy = points["noisy"]["distance"]
    rows = {
        "PSNR, dB": [f"{point['psnr']:.2f}" for point in points.values()],
        "distance to clean images": [f"{100 * point['distance'] / noisy:.1f} %" for point in points.values()],
    }
    lines = [f"| estimate | {' | '.join(points)} |", "|---" * (1 + len(points)) + "|"]
    return lines + [f"| {title} | {' | '.join(values)} |" for title, values in rows.items()]


def _example() -> list[tuple[str, str, str]]:
    """The picture of the page."""
    found: dict[str, Any] = json.loads((RESULTS / "uncertainty.json").read_text())
    said, true = found["said_rms_error"], found["true_rms_error"]
    draws = [found[f"psnr_{key}"] for key in ("mean", "one_draw", "mean_of_8_draws")]
    seconds = found["seconds"]
    held = f"{said:.2f}; {true:.2f} grey levels; {100 * found['held_by_90_percent_intervals']:.1f} %"
    cost = [100 * seconds[stage] / (seconds["flow"] + seconds.get("mean", 0)) for stage in ("spread", "sampler")]
    return [
        ("the photograph above: error said; true; held by 90 % intervals", held, "uncertainty"),
        ("PSNR of the mean; of one draw; of the mean of 8 draws", _joined(draws, "dB"), "uncertainty"),
        ("time for error bars; draws, of that for map and mean", f"{cost[0]:.0f} %; {cost[1]:.0f} %", "uncertainty"),
    ]


def _exact() -> list[tuple[str, str, str]]:
    rows = []
    if found := load("gaussian"):
        for name in ("ifm", "icm"):
            title = f"Gaussian data, signal / noise 2, 1, 1/2, {name.upper()}: error bars; draws, over the exact"
            ratios = [found[name][key] for key in ("std_over_exact", "spread_of_draws_over_exact")]
            rows.append((title, "; ".join(", ".join(f"{x:.3f}" for x in ratio) for ratio in ratios), "gaussian"))
    if found := load("moons"):
        for name, which in (("ifm", "IFM"), ("icm", "ICM"), ("icm_two_rounds", "ICM, two rounds")):
            one = found[name]
            excess = f"{100 * (one['mean_error_over_exact'] - 1):.1f} % above that of the exact posterior mean"
            held = f"{100 * one['draws_90']:.1f} %; {100 * one['intervals']['0.9']:.1f} %"
            rows.append((f"two moons, noise 0.3, {which}: squared error of the mean", excess, "moons"))
            rows.append(("held between the 5th and 95th percentile of 400 draws; by 90 % intervals", held, "moons"))
    return rows


def _photographs() -> list[tuple[str, str, str]]:
    rows = []
    for name, title in NOISES.items():
        if found := load(name):
            draws = [found[f"psnr_of_{key}"] for key in ("mean", "one_draw", "the_mean_of_8_draws")]
            rows += [
                (f"BSDS500 test images, {title}: held by 50 / 80 / 90 / 95 % intervals", _held(found), name),
                (ERROR, _error(found, GREY_LEVELS), name),
                ("PSNR of the mean; of one draw; of the mean of 8 draws", _joined(draws, "dB"), name),
                ("time for error bars, of that for map and mean", _cost(found), name),
            ]
    return rows


def _microscopy() -> list[tuple[str, str, str]]:
    rows = []
    for sample in CONFOCAL:
        if found := load("fmd").get(sample):
            bright = found["equal_brightness"]
            held = f"FMD {sample}, noise from repeats: held by 50 / 80 / 90 / 95 % intervals"
            again = "the same against the truth made as bright as each capture"
            rows += [(held, _held(found), "fmd"), (again, _held(bright), "fmd"), (ERROR, _error(bright, 1), "fmd")]
            if drawn := found.get("drawn_noise"):
                rows.append(("the same noise drawn on that truth", _held(drawn), "fmd"))
    return rows


def _generated() -> list[tuple[str, str, str]]:
    if not (found := load("patches")):
        return []
    titles = {
        "generated_clean": "new 64 x 64 patches, from noisy photographs: Fréchet distance to clean ones",
        "generated_clean_to_noisy": "the same patches: distance to noisy ones",
        "generated_noisy": "the same generator trained on the noisy photographs as they are",
        "clean_training_patches": "other clean patches",
    }
    noisy = found["noisy_patches"]
    return [(title, f"{100 * found[key] / noisy:.1f} % of the noisy ones'", "patches") for key, title in titles.items()]


ERROR = "root mean square error said; true, in grey levels; correlation by decile"


def _held(found: dict[str, Any]) -> str:
    return " / ".join(f"{100 * share:.1f} %" for share in found["coverage"].values())


def _error(found: dict[str, Any], levels: float) -> str:
    said, true = (levels * found["rms_error"][key] for key in ("said", "true"))
    return f"{said:.2f}; {true:.2f}; {found['correlation_by_decile']:.3f}"


def _joined(values: list[float], unit: str) -> str:
    return "; ".join(f"{value:.2f}" for value in values) + f" {unit}"


def _cost(found: dict[str, Any]) -> str:
    return f"{100 * found['cost_of_error_bars']:.0f} %"


def main() -> None:
    print("\n".join([*measured(), "", *blends()]))


if __name__ == "__main__":
    main()
