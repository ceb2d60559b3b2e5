"""The page of a run: what it holds, and that it is safe and whole. test_report_browser.py opens it."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inverseflow.errors import FileError, InputError
from inverseflow.report import Report, charts, page, planes, write_report
from inverseflow.report.sections import text

NASTY = """<img src=x onerror=alert(1)> & "quoted" 'single' </script><script>alert(2)</script> {{data}}"""


def cells(channels: int = 2, depth: int = 5, height: int = 96, width: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Blobs that differ between channels and planes, and the same with photon noise: (before, after), CZYX."""
    rng = np.random.default_rng(0)
    z, y, x = np.mgrid[:depth, :height, :width]
    clean = np.full((channels, depth, height, width), 8.0)
    for c in range(channels):
        for _ in range(12):
            at = rng.uniform(0, 1, 3) * (depth, height, width)
            clean[c] += 90 * np.exp(-((z - at[0]) ** 2 / 2 + (y - at[1]) ** 2 / 70 + (x - at[2]) ** 2 / 70))
    return rng.poisson(clean).astype(np.float32) * 3, clean.astype(np.float32) * 3


def full_report(**changes: Any) -> Report:
    before, after = cells()
    level = np.linspace(0, 300, 50)
    rows = [{"step": s, "seconds": s / 40, "loss": 2 / s + 0.01, "lr": 1e-3} for s in range(10, 1000, 10)]
    checks = [
        {"name": "Variance", "value": 0.1, "limits": (0.2, 0.3), "verdict": "pass", "meaning": "Other noise."},
        {"name": "Correlation", "value": 0.2, "limits": (0.1, 0.3), "verdict": "doubtful", "meaning": NASTY},
    ]
    values: dict[str, Any] = {
        "title": "cells.ome.tif", "before": before, "after": after, "axes": "CZYX", "channel_names": ("DAPI", NASTY),
        "pixel_size": {"X": 0.26, "Y": 0.26, "Z": 0.5}, "units": {"X": "micrometer", "Y": "micrometer", "Z": "µm"},
        "noise": "PoissonGaussian(gain=3, sigma=0)", "noise_formula": "variance = gain · signal",
        "noise_curve": (level, np.sqrt(3 * level)), "noise_spectrum": np.random.default_rng(1).random((40, 40)),
        "history": {"Inverse flow": rows}, "audit": {"verdict": "doubtful", "checks": checks},
        "facts": {"Command line": "inverseflow denoise cells.ome.tif --seed 0", "torch": "2.13.0"},
    }  # fmt: skip
    return Report(**{**values, **changes})


def embedded(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def pixels(picture: dict[str, Any]) -> np.ndarray:
    """A picture of the page in data units."""
    data = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"))
    grey = np.asarray(Image.open(io.BytesIO(data)))
    assert grey.dtype == np.uint8
    assert grey.ndim == 2
    return picture["low"] + grey * ((picture["high"] - picture["low"]) / 255)


class Lazy:
    """An array that can only be read plane by plane, and remembers which."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.keys: list[Any] = []

    def __getitem__(self, key: tuple[Any, ...]) -> np.ndarray:
        assert sum(isinstance(k, slice) for k in key) == 2
        self.keys.append(key)
        return self.array[key]


def test_page_holds_every_section_and_escapes_what_users_write() -> None:
    rows = [{"step": step, "loss": 1.0, "seconds": 1.0, "lr": 1e-3} for step in (1, 2)]
    html = page.render(full_report(title=NASTY, noise=NASTY, facts={NASTY: NASTY}, history={NASTY: rows}))
    assert "<img src=x" not in html
    assert html.count("<script") == html.count("</script>") == 2
    assert html.count("{{data}}") >= 3  # the user's braces stay the user's
    assert embedded(html)["channels"] == ["DAPI", NASTY]
    unnamed = page.render(full_report(channel_names=()))
    assert embedded(unnamed)["channels"] == ["Channel 0", "Channel 1"]  # as --channels counts
    html = page.render(full_report())
    for name in ("compare", "residual", "noise", "training", "audit", "facts"):
        assert f'<section id="{name}">' in html
    assert '<p class="verdict fair"><span>Audit</span> doubtful</p>' in html
    assert '<span class="result fair">doubtful</span>' in html
    assert "pixel 0.26 µm" in html
    assert embedded(html)["unit"] == "µm"


def test_page_fetches_nothing_and_runs_only_our_script() -> None:
    html = page.render(full_report())
    assert "http://" not in html
    assert "https://" not in html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert policy[1].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "eval" not in (page.HERE / "page.js").read_text()
    assert all(source.startswith(("data:", "x onerror")) for source in re.findall(r'(?:src|href)="([^"]*)"', html))


def test_bare_report_has_no_empty_section() -> None:
    image = np.arange(48.0).reshape(6, 8)
    html = page.render(Report("a.npy", image, image, "YX"))
    assert re.findall(r'<section id="(\w+)"', html) == ["compare", "residual"]
    assert embedded(html)["pixelSize"] is None


def test_pictures_decode_to_the_data_in_any_order_of_axes() -> None:
    before, after = cells()
    reference = embedded(page.render(full_report()))["planes"]
    moved = full_report(before=before.transpose(3, 1, 2, 0), after=after.transpose(3, 1, 2, 0), axes="XZYC")
    assert embedded(page.render(moved))["planes"] == reference
    assert len(reference) == 10
    for number, plane in enumerate(reference):
        z, c = divmod(number, 2)
        for picture, array in zip(plane["views"][0], (before, after), strict=True):
            step = (picture["high"] - picture["low"]) / 255
            assert np.abs(pixels(picture) - array[c, z]).max() <= 0.501 * step
        assert (plane["low"], plane["high"]) == pytest.approx(tuple(np.percentile(after[c, z], (0.1, 99.9))))


def test_hot_pixels_and_missing_values_do_not_spoil_a_picture() -> None:
    plane = np.random.default_rng(0).normal(100, 5, (64, 64)).astype(np.float32)
    plane[3, 3], plane[5, 5], plane[7, 7] = 1e6, np.nan, np.inf
    shown = planes.encode(plane)
    assert shown["high"] < 200
    good = np.isfinite(plane) & (plane < 1e6)
    assert np.abs(pixels(shown) - plane)[good].max() < 0.3
    assert planes.window(np.full((4, 4), 7, np.float32)) == (7, 8)
    assert pixels(planes.encode(np.full((4, 4), 7, np.float32))) == pytest.approx(7)
    assert planes.window(np.full((4, 4), np.nan, np.float32)) == (0, 1)
    everything = np.full((4, 4), np.nan)
    assert "not finite" not in page.render(Report("nan", everything, everything, "YX"))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((15, 1024, 1024), "ZYX"),
        ((4, 30, 9000, 700), "CZYX"),
        ((12, 2048, 2048), "CYX"),
        ((3, 500, 20, 64, 64), "STZYX"),
    ],
)
def test_plan_stays_within_the_limit(shape: tuple[int, ...], axes: str) -> None:
    shown = planes.plan(shape, axes)
    height, width = -(-shown.size("Y") // shown.factor), -(-shown.size("X") // shown.factor)
    assert max(height, width) <= 1024
    area = height * width + (np.prod(shown.detail) if shown.factor > 1 else 0)
    assert len(shown.positions) * shown.channels * 2 * area * 4 / 3 <= planes.MAX_BYTES
    assert min(3, np.prod([shown.size(axis) for axis in "STZ"])) <= len(shown.positions) <= planes.MAX_POSITIONS


def test_planes_are_evenly_spaced_and_stated() -> None:
    assert planes.spaced(15, 3) == [0, 7, 14]
    assert planes.spaced(15, 1) == [7]
    assert planes.spaced(4, 4) == [0, 1, 2, 3]
    assert planes.thin({"T": 100, "Z": 15}, 30) == {"T": 5, "Z": 6}
    assert planes.thin({"S": 2, "T": 500}, 64) == {"S": 2, "T": 32}
    image = np.zeros((200, 4, 4), np.float32)
    html = page.render(Report("stack", image, image, "ZYX"))
    assert re.search(r"Planes shown: 1, 4, 7, [\d, ]+, 200 of 200\.", html)


def test_lazy_large_data_is_read_by_planes_with_a_sharp_detail() -> None:
    after = np.random.default_rng(0).normal(50, 1, (12, 1100, 1300)).astype(np.float32)
    after[:, 620:1000, 700:1180] += 80 * (np.arange(480) % 16 < 8)
    before = after + np.random.default_rng(1).normal(0, 9, after.shape).astype(np.float32)
    noisy, clean = Lazy(before), Lazy(after)
    html = page.render(Report("large", noisy, clean, "ZYX"))
    content = embedded(html)
    assert len(html) < 15e6
    assert content["factor"] == 2
    shown = content["axes"][0]["indices"]
    assert [key[0] for key in noisy.keys] == shown
    assert [key[0] for key in clean.keys] == [shown[len(shown) // 2], *shown]  # the first to place the detail
    (y, x), (high, wide) = content["corner"], content["detail"]
    assert (high, wide) == (512, 512)
    assert y <= 620
    assert y + high >= 1000
    assert x <= 700
    assert x + wide >= 1172  # where the last bright stripe ends
    overview, detail = content["planes"][0]["views"]
    blocks = after[0].reshape(550, 2, 650, 2).mean((1, 3))
    assert pixels(overview[1]) == pytest.approx(blocks, abs=0.4)
    assert pixels(detail[1]) == pytest.approx(after[0, y : y + high, x : x + wide], abs=0.4)
    assert "means of 2 \u00d7 2 pixels" in html


def test_block_means_at_the_edges() -> None:
    plane = np.arange(35, dtype=np.float32).reshape(5, 7)
    small = planes.block_mean(plane, 3)
    assert small.shape == (2, 3)
    assert small[0, 0] == plane[:3, :3].mean()
    assert small[1, 2] == plane[3:, 6:].mean()


def test_residual_figures() -> None:
    before, after = cells()
    figures = planes.residual(before[0, 0], after[0, 0])
    difference = before[0, 0] - after[0, 0]
    assert figures["std"] == pytest.approx(difference.std(), rel=1e-5)
    assert figures["counts"].sum() >= 0.995 * difference.size
    assert charts.number(figures["std"]) in page.render(full_report())


def test_charts() -> None:
    assert charts.nice_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert charts.nice_ticks(-0.13, 0.31) == [-0.1, 0, 0.1, 0.2, 0.3]
    assert charts.log_ticks(0.9, 1100) == [1, 10, 100, 1000]
    assert charts.log_ticks(0.8, 12) == [1, 2, 5, 10]
    assert [charts.number(v) for v in (-0.5, 12345.6, 1e-5, 2.0)] == ["\u22120.5", "12\u202f346", "1e\u22125", "2"]
    assert text(["<", 0.5]) == "&lt; to 0.5"
    values = np.r_[np.nan, np.inf, np.linspace(1, 2, 5000)]
    drawn = charts.chart([charts.Series(np.arange(5002), values)], x_label="a<b", y_label="y")
    found = re.search(r'class="line" d="M([^"]*)"', drawn)
    assert found
    assert len(found[1].split("L")) == charts.MAX_POINTS
    assert "nan" not in drawn
    assert "a<b" not in drawn
    assert charts.chart([charts.Series([1, 2], [np.nan, 1])], x_label="", y_label="") == ""
    constant = charts.chart([charts.Series([0, 1], [3, 3])], x_label="", y_label="")
    assert "nan" not in constant


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "run.html"
    write_report(path, full_report())
    first = path.read_bytes()
    assert first.startswith(b"<!doctype html>")
    with pytest.raises(FileError, match=r"run\.html exists; choose another name, or allow it to be replaced"):
        write_report(path, full_report())
    with pytest.raises(FileError, match="is a folder"):
        write_report(tmp_path, full_report(), overwrite=True)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(path, full_report(title="second"), overwrite=True)
    monkeypatch.undo()
    assert path.read_bytes() == first
    assert [p.name for p in path.parent.iterdir()] == ["run.html"]
    write_report(path, full_report(title="second"), overwrite=True)
    assert b"<h1>second</h1>" in path.read_bytes()


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((4, 4), "ZX", "axes 'ZX'"),
        ((4, 4, 4), "YX", "axes 'YX'"),
        ((4, 4, 4), "YYX", "axes 'YYX'"),
        ((0, 4), "YX", "no pixel"),
    ],
)
def test_impossible_input_is_one_sentence(shape: tuple[int, ...], axes: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        page.render(Report("x", np.zeros(shape), np.zeros(shape), axes))
    with pytest.raises(InputError, match="the same shape"):
        page.render(Report("x", np.zeros((4, 4)), np.zeros((4, 5)), "YX"))


def test_report_imports_neither_torch_nor_matplotlib() -> None:
    code = "import sys, inverseflow.report; assert not {'torch', 'matplotlib', 'skimage'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
