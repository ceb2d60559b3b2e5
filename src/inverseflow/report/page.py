"""`write_report`: a run as one HTML file that needs nothing else, neither beside it nor from the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..whole import refuse, write_whole
from . import sections
from .planes import Plan, detail_corner, pictures, plan

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """What one run has to show. `before` and `after` may be lazy: they need shape and indexing, and one plane at a
    time is read. Everything after `axes` may be left out, and its part of the page with it."""

    title: str
    before: Any
    after: Any
    axes: str  # over STCZYX, one letter per dimension
    channel_names: tuple[str, ...] = ()
    pixel_size: dict[str, float] = field(default_factory=dict)  # by axis letter
    units: dict[str, str] = field(default_factory=dict)
    noise: str = ""
    noise_formula: str = ""
    noise_curve: tuple[Any, Any] | None = None  # signal, standard deviation of the noise
    noise_spectrum: Any = None  # (Y, X), power, zero frequency in the corner
    history: dict[str, list[dict[str, float]]] = field(default_factory=dict)  # stage -> the rows of metrics.jsonl
    audit: dict[str, Any] | None = None  # {"verdict", "checks": [{"name", "value", "limits", "verdict", "meaning"}]}
    std: Any = None  # the standard deviation of `after`, like it
    coverage: dict[str, float] = field(default_factory=dict)  # level of an interval -> the share it really held
    facts: dict[str, str] = field(default_factory=dict)


def write_report(path: str | Path, report: Report, *, overwrite: bool = False) -> None:
    """Write the page of a run; a reader sees the old file or the new one, never a part."""
    path = Path(path)
    refuse(path, overwrite=overwrite)
    page = render(report).encode("utf-8", "backslashreplace")  # a name of a file may hold bytes that are no text
    write_whole(path, page, overwrite=overwrite)


def render(report: Report) -> str:
    """The whole page."""
    shape = tuple(int(size) for size in report.before.shape)
    if shape != tuple(report.after.shape):
        raise InputError(
            f"A report needs before and after of the same shape, but they have {shape} and {tuple(report.after.shape)}."
        )
    shown = plan(shape, report.axes)
    corner = detail_corner(report.after, shown) if shown.factor > 1 else (0, 0)
    planes = list(pictures(report.before, report.after, shown, corner))
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return fill(
        (HERE / "page.html").read_text(encoding="utf-8"),
        {
            "csp": policy(script),
            "style": style,
            "script": script,
            "title": escape(report.title, quote=True),
            "verdict": sections.verdict(report),
            "summary": sections.summary(report),
            "planes": sections.plane_controls(report, shown),
            "views": "" if shown.factor > 1 else "hidden",
            "factor": str(shown.factor),
            "shown": sections.what_is_shown(shown),
            "residual": sections.residual(planes, first_plane(shown)),
            "errors": sections.errors(report, shown, first_plane(shown)),
            "noise": sections.noise(report),
            "training": sections.training(report),
            "audit": sections.audit(report),
            "facts": sections.facts(report),
            "data": data(report, shown, corner, planes),
        },
    )


def fill(template: str, values: dict[str, str]) -> str:
    """Replace each {{name}} once, in one pass: a value that contains {{...}} itself stays as it is."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def policy(script: str) -> str:
    """Nothing may be fetched, and no script may run but ours, which is known by its hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'"
    )


def first_plane(shown: Plan) -> int:
    """The number of the plane that the page opens with: the middle along every axis, the first channel."""
    number = 0
    for indices in shown.indices.values():
        number = number * len(indices) + len(indices) // 2
    return number * shown.channels


def data(report: Report, shown: Plan, corner: tuple[int, int], planes: list[dict[str, Any]]) -> str:
    """What the script needs, as JSON that can stand inside a script element."""
    size = report.pixel_size.get("X", 0.0)
    content = {
        "axes": [
            {"axis": axis, "size": shown.size(axis), "indices": indices} for axis, indices in shown.indices.items()
        ],
        "channels": sections.channel_names(report, shown.channels),
        "height": shown.size("Y"),
        "width": shown.size("X"),
        "factor": shown.factor,
        "corner": corner,
        "detail": shown.detail,
        "pixelSize": float(size) if sections.known(size) else None,
        "unit": sections.unit(report, "X"),
        "planes": [{"low": p["low"], "high": p["high"], "views": p["views"]} for p in planes],
    }
    encoded = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # "</script>" in a channel's name would end the element
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded
