"""Small charts without a plotting library: curves as stretched SVG, labels as HTML.

The SVG fills whatever width the page gives it while lines keep their thickness (CSS: non-scaling-stroke) and labels
keep their size, so one chart serves a phone, a wide screen and paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

SCALE = 1000  # units of the SVG's sides
MAX_POINTS = 500


@dataclass(frozen=True)
class Series:
    x: Any
    y: Any
    kind: str = "line"  # "line", "area" or "reference"


def number(value: float) -> str:
    """Four significant digits, thin spaces between thousands, a true minus sign."""
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    if value == 0:
        return "0"
    if 1e4 <= size < 1e9:
        text = f"{value:,.0f}".replace(",", "\u202f")
    elif 1e-3 <= size < 1e4:
        text = f"{value:.4g}"
    else:
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        text = f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return text.replace("-", "\u2212")


def nice_ticks(low: float, high: float, count: float = 6.5) -> list[float]:
    """At most about `count` round values (1, 2 or 5 times a power of ten apart) within [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) if step > 1e-9 else i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within [low, high]; with few of them, also 2 and 5 times."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [m * 10.0**d for d in decades for m in factors if low <= m * 10.0**d <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: 1 + len(ticks) // 8]


def wants_log(values: npt.NDArray[np.float64]) -> bool:
    """A log axis helps where positive values span more than a factor of ten."""
    return bool(values.size and values.min() > 0 and values.max() > 10 * values.min())


def thinned(x: Any, y: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The finite points, at most MAX_POINTS: more are averaged in groups of neighbours."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= MAX_POINTS:
        return x, y
    groups = np.array_split(np.arange(len(x)), MAX_POINTS)
    return np.array([x[g].mean() for g in groups]), np.array([y[g].mean() for g in groups])


def chart(
    series: Sequence[Series], *, x_label: str, y_label: str, log_y: bool | None = None, from_zero: bool = False
) -> str:
    """The HTML of one chart; empty when there is nothing finite to draw. log_y=None: decided by the values."""
    drawn = [(one.kind, *thinned(one.x, one.y)) for one in series]
    drawn = [one for one in drawn if len(one[1]) > 1]
    if not drawn:
        return ""
    xs, ys = np.concatenate([x for _, x, _ in drawn]), np.concatenate([y for _, _, y in drawn])
    log = wants_log(ys) if log_y is None else log_y
    x_low, x_high = padded(float(xs.min()), float(xs.max()), 0.0)
    y_low, y_high = limits(ys, log=log, from_zero=from_zero)
    y_ticks = log_ticks(y_low, y_high) if log else nice_ticks(y_low, y_high)
    x_ticks = nice_ticks(x_low, x_high)

    def right(x: Any) -> Any:
        return (x - x_low) / (x_high - x_low)

    def down(y: Any) -> Any:
        if log:
            return (math.log(y_high) - np.log(y)) / (math.log(y_high) - math.log(y_low))
        return (y_high - y) / (y_high - y_low)

    grid = "".join(f"M0 {down(y) * SCALE:.1f}H{SCALE}" for y in y_ticks)
    paths = "".join(f'<path class="{kind}" d="{path(right(x), down(y), kind)}"/>' for kind, x, y in drawn)
    marks = "".join(f'<span class="y" style="top:{down(y) * 100:.2f}%">{number(y)}</span>' for y in y_ticks)
    marks += "".join(f'<span class="x" style="left:{right(x) * 100:.2f}%">{number(x)}</span>' for x in x_ticks)
    name = escape(f"{y_label} against {x_label}", quote=True)
    return (
        f'<div class="chart" role="img" aria-label="{name}"><p class="y-label">{escape(y_label)}</p><div class="plot">'
        f'<svg viewBox="0 0 {SCALE} {SCALE}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="grid" d="{grid}"/>{paths}</svg>{marks}</div><p class="x-label">{escape(x_label)}</p></div>'
    )


def path(x: Any, y: Any, kind: str) -> str:
    points = [f"{a:.1f} {b:.1f}" for a, b in zip(x * SCALE, y * SCALE, strict=True)]
    if kind == "area":
        return f"M{x[0] * SCALE:.1f} {SCALE}L{'L'.join(points)}L{x[-1] * SCALE:.1f} {SCALE}Z"
    return "M" + "L".join(points)


def padded(low: float, high: float, share: float) -> tuple[float, float]:
    if high <= low:
        return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    return low - share * (high - low), high + share * (high - low)


def limits(values: npt.NDArray[np.float64], *, log: bool, from_zero: bool) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if log:
        return low / 1.15, high * 1.15
    low, high = padded(min(low, 0.0) if from_zero else low, high, 0.06)
    return (0.0 if from_zero and values.min() >= 0 else low), high


def steps(counts: Any, edges: Any) -> Series:
    """A histogram as one area with vertical sides."""
    return Series(np.repeat(edges, 2)[1:-1], np.repeat(counts, 2), "area")
