"""The page's parts as HTML. Everything that comes from the user passes through `text`, which escapes it."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from .charts import Series, chart, number, steps
from .planes import Plan, block_mean, encode, finite_sample, read_plane

if TYPE_CHECKING:
    from .page import Report

UNITS = {"micrometer": "µm", "micrometre": "µm", "micron": "µm", "um": "µm", "nanometer": "nm", "nanometre": "nm"}
UNITS |= {"millimeter": "mm", "millimetre": "mm", "second": "s", "millisecond": "ms", "minute": "min"}
AXIS_NAMES = {"S": "Sample", "T": "Time", "Z": "Z"}
PLANE_NAMES = {"S": "Samples", "T": "Time points", "Z": "Planes"}
VERDICTS = {"pass": "good", "doubtful": "fair", "fail": "bad"}
MAX_SPECTRUM = 256
TIMES = "\u00d7"


def text(value: Any) -> str:
    """Any value as escaped text; numbers in the page's own form."""
    if isinstance(value, float | np.floating):
        return number(float(value))
    if isinstance(value, list | tuple):
        return " to ".join(text(one) for one in value) if len(value) == 2 else ", ".join(text(one) for one in value)
    return escape("\u2013" if value is None else str(value), quote=True)


def unit(report: Report, axis: str) -> str:
    name = report.units.get(axis, "")
    return UNITS.get(name.lower().removesuffix("s") if len(name) > 2 else name.lower(), name)


def section(key: str, title: str, lead: str, body: str) -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{key}"><h2>{title}</h2>{lead}{body}</section>' if body else ""


def verdict(report: Report) -> str:
    if report.audit is None:
        return ""
    word = str(report.audit.get("verdict", ""))
    return f'<p class="verdict {VERDICTS.get(word, "none")}"><span>Audit</span> {text(word)}</p>'


def summary(report: Report) -> str:
    """Shape and axes, pixel size, noise: each part stays whole when the line breaks."""
    shape = f" {TIMES} ".join(
        f"{size}\u202f{axis}" for size, axis in zip(report.before.shape, report.axes, strict=True)
    )
    parts = [shape]
    y, x = (report.pixel_size.get(axis, 0.0) for axis in "YX")
    if known(x):
        size = number(x) if not known(y) or math.isclose(x, y, rel_tol=1e-3) else f"{number(x)} {TIMES} {number(y)}"
        parts.append(f"pixel {size} {unit(report, 'X')}".rstrip())
    for axis, words in (("Z", "Z step"), ("T", "every")):
        if axis in report.axes and known(report.pixel_size.get(axis, 0.0)):
            parts.append(f"{words} {number(report.pixel_size[axis])} {unit(report, axis)}".rstrip())
    if report.noise:
        parts.append(report.noise)
    return "".join(f"<li>{text(part)}</li>" for part in parts)


def known(size: float) -> bool:
    return bool(math.isfinite(size) and size > 0)


def channel_names(report: Report, count: int) -> list[str]:
    """Those that have no name are counted from 0, as --channels does."""
    names = [str(name) for name in report.channel_names[:count]]
    return [name or f"Channel {i}" for i, name in enumerate(names + [""] * (count - len(names)))]


def plane_controls(report: Report, shown: Plan) -> str:
    """A choice for each axis along which the page has more than one plane."""
    rows = []
    if shown.channels > 1:
        names = enumerate(channel_names(report, shown.channels))
        options = "".join(f'<option value="{i}">{text(name)}</option>' for i, name in names)
        rows.append(f'<label class="row"><span>Channel</span><select id="channel">{options}</select></label>')
    for axis, indices in shown.indices.items():
        if len(indices) > 1:
            rows.append(
                f'<label class="row"><span>{AXIS_NAMES[axis]}</span><input type="range" class="axis" min="0" '
                f'max="{len(indices) - 1}" step="1" value="{len(indices) // 2}" data-axis="{axis}">'
                f"<output></output></label>"
            )
    return f'<fieldset class="planes"><legend>Plane</legend>{"".join(rows)}</fieldset>' if rows else ""


def what_is_shown(shown: Plan) -> str:
    """Says which planes the page holds and at what resolution."""
    sentences = []
    for axis, indices in shown.indices.items():
        size, listed = shown.size(axis), ", ".join(str(i + 1) for i in indices)
        if size > 1:
            which = f"all {size}" if len(indices) == size else f"{listed} of {size}"
            sentences.append(f"{PLANE_NAMES[axis]} shown: {which}.")
    if shown.factor > 1:
        height, width = shown.detail
        k = shown.factor
        sentences.append(
            f"The overview shows means of {k} {TIMES} {k} pixels, which hides part of the noise; the detail shows "
            f"{width} {TIMES} {height} pixels as they are."
        )
    return " ".join(sentences)


def residual(planes: list[dict[str, Any]], first: int) -> str:
    """One histogram with its figures per plane of the page; the script shows the one that the viewer shows."""
    parts = []
    for i, plane in enumerate(planes):
        figures = plane["residual"]
        mean, std, edges = figures["mean"], figures["std"], figures["edges"]
        series = [steps(figures["counts"], edges)]
        rounded = mean
        if std > 0:
            rounded = round(mean, 3 - math.floor(math.log10(std)))  # digits that mean something beside this std
            middle = (edges[:-1] + edges[1:]) / 2
            height = figures["size"] * (edges[1] - edges[0]) / (std * math.sqrt(2 * math.pi))
            series.append(Series(middle, height * np.exp(-(((middle - mean) / std) ** 2) / 2), "reference"))
        drawn = chart(series, x_label="before \u2212 after, data units", y_label="pixels", log_y=False, from_zero=True)
        parts.append(
            f'<div data-plane="{i}"{"" if i == first else " hidden"}><dl class="figures"><div><dt>Standard deviation'
            f"</dt><dd>{number(std)}</dd></div><div><dt>Mean</dt><dd>{number(rounded)}</dd></div></dl>{drawn}</div>"
        )
    return "".join(parts)


def errors(report: Report, shown: Plan, first: int) -> str:
    """The standard deviation of the estimate as a picture, one per plane, and how well intervals held."""
    if report.std is None:
        return ""
    pictures = []
    places = [(position, channel) for position in shown.positions for channel in range(shown.channels)]
    for i, (position, channel) in enumerate(places):
        plane = block_mean(read_plane(report.std, shown, position, channel), shown.factor)
        picture = encode(plane)
        pictures.append(
            f'<figure data-plane="{i}"{"" if i == first else " hidden"}><img class="spread" src="{picture["src"]}" '
            f'alt="Standard deviation of the denoised plane"><figcaption>From {number(picture["low"])} (black) to '
            f"{number(picture['high'])} (white), data units; half of the pixels below "
            f"{number(float(np.median(finite_sample(plane))))}.</figcaption></figure>"
        )
    rows = "".join(
        f"<tr><td>{100 * float(level):g} %</td><td>{100 * share:.1f} %</td></tr>"
        for level, share in report.coverage.items()
    )
    table = (
        "<table><thead><tr><th scope='col'>Interval</th><th scope='col'>Held</th></tr></thead><tbody>"
        f"{rows}</tbody></table><p>The share of simulated values, of which none was trained on, that lay in intervals "
        "of each level.</p>"
    )
    lead = "The standard deviation of the true value around the denoised one: where not to believe the last digit."
    columns = f'<div class="columns"><div>{"".join(pictures)}</div><div>{table if rows else ""}</div></div>'
    return section("errors", "Error bars", lead, columns)


def noise(report: Report) -> str:
    words = f'<p class="model">{text(report.noise)}</p>' if report.noise else ""
    words += f'<p class="formula">{text(report.noise_formula)}</p>' if report.noise_formula else ""
    figure = ""
    if report.noise_curve is not None:
        level, std = report.noise_curve
        drawn = chart(
            [Series(level, std)], x_label="signal, data units", y_label="noise, standard deviation", log_y=False,
            from_zero=True,
        )  # fmt: skip
        figure += f"<figure>{drawn}<figcaption>How strong the noise is at each signal.</figcaption></figure>"
    if report.noise_spectrum is not None:
        figure += spectrum(np.asarray(report.noise_spectrum, np.float32))
    if not words and not figure:
        return ""
    columns = f'<div class="{"columns" if words and figure else ""}"><div>{words}</div><div>{figure}</div></div>'
    return section("noise", "Noise", "What the instrument is taken to have added to the signal.", columns)


def spectrum(power: Any) -> str:
    """The logarithm of the power with zero frequency moved to the middle, as a small picture."""
    power = np.fft.fftshift(power)
    strides = tuple(slice(None, None, max(1, size // MAX_SPECTRUM)) for size in power.shape)
    power = np.where(np.isfinite(power) & (power > 0), power, np.nan)[strides]
    shown = encode(np.log10(power))
    return (
        f'<figure><img class="spectrum" src="{shown["src"]}" alt="Power spectrum of the noise">'
        f"<figcaption>Power of the noise by spatial frequency: zero in the middle, logarithmic, from "
        f"{number(10 ** shown['low'])} (black) to {number(10 ** shown['high'])} (white).</figcaption></figure>"
    )


def training(report: Report) -> str:
    figures = []
    for stage, rows in report.history.items():
        drawn = chart([Series([r["step"] for r in rows], [r["loss"] for r in rows])], x_label="step", y_label="loss")
        if drawn:
            last = rows[-1]
            seconds = f", {duration(last['seconds'])}" if "seconds" in last else ""
            caption = f"{number(last['step'])} steps{seconds}; last loss {number(last['loss'])}."
            figures.append(f"<figure><h3>{text(stage)}</h3>{drawn}<figcaption>{caption}</figcaption></figure>")
    return section("training", "Training", "", f'<div class="gallery">{"".join(figures)}</div>' if figures else "")


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{number(round(seconds, 1))} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def audit(report: Report) -> str:
    if report.audit is None:
        return ""
    rows = []
    for check in report.audit["checks"]:
        word = check["verdict"]
        rows.append(
            f'<tr><th scope="row">{text(check["name"])}</th><td data-label="Value">{text(check["value"])}</td>'
            f'<td data-label="Doubtful from">{text(check["limits"][0])}</td><td data-label="Result">'
            f'<span class="result {VERDICTS[word]}">{word}</span></td>'
            f'<td class="why">{text(check["meaning"])}</td></tr>'
        )
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("Check", "Value", "Doubtful from", "Result", "What it would mean")
    )
    body = f'<table class="checks"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    lead = "Whether what was removed looks like the declared noise, and what was kept can be believed."
    return section("audit", "Audit", lead, body if rows else "")


def facts(report: Report) -> str:
    rows = []
    for name, value in report.facts.items():
        shown = text(value)
        if name.strip().lower().startswith("command"):
            words = " ".join(f"<span>{word}</span>" for word in shown.split(" "))
            shown = f'<code>{words}</code><button type="button" class="copy">Copy</button>'
        rows.append(f"<div><dt>{text(name)}</dt><dd>{shown}</dd></div>")
    return section("facts", "How it was made", "", f'<dl class="facts">{"".join(rows)}</dl>' if rows else "")
