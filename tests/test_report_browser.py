"""The page of a run in a real browser: it asks for nothing, complains of nothing, and every control does its work."""

from __future__ import annotations

import base64
import io
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inverseflow.report import Report, write_report
from test_report import cells, full_report

FLAGS = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
FLAGS += ["disable-component-update", "disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        reason = "no chromium on this machine: the report's page was not tried in a browser"
        print(reason)
        pytest.skip(reason)
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:  # gives each start a fresh profile
        started = driver.chromium.launch(executable_path=path, headless=True, args=["--" + flag for flag in FLAGS])
        yield started
        started.close()


class Watched:
    """A page that is open, with everything it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.settle("[data-shown]")

    def settle(self, state: str = "") -> None:
        """Wait until the stage has `state` and the next frame is drawn."""
        self.page.wait_for_selector(f"#stage{state}")
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def pixels(self) -> np.ndarray:
        """The canvas of the stage, (Y, X), red of RGBA."""
        address = self.page.evaluate('document.getElementById("canvas").toDataURL("image/png")')
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))[..., 0]

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "stack & more.html"
    write_report(path, full_report())
    return path


def test_browser_divides_before_from_after(browser: Any, stack: Path) -> None:
    seen = Watched(browser, stack, viewport={"width": 1100, "height": 800})
    view, before, after = seen.page, *(array[0, 2] for array in cells())
    middle = seen.pixels()
    box = view.locator("#divider i").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    view.mouse.move(x, y)
    view.mouse.down()
    view.mouse.move(x + 200, y, steps=4)
    view.mouse.up()
    seen.settle()
    moved = seen.pixels()
    changed = np.flatnonzero((moved != middle).any(0))
    half = middle.shape[1] // 2
    assert changed.min() >= half - 2
    assert changed.max() <= half + 202
    assert len(changed) > 100
    view.focus("#divider")
    for key, value in (("Home", "0"), ("ArrowRight", "1")):
        view.keyboard.press(key)
        seen.settle()
        assert view.get_attribute("#divider", "aria-valuenow") == value

    # what is left of the divider is the noisy plane, what is right of it the denoised one, in the same contrast
    low, high = np.percentile(after, (0.1, 99.9))
    scale = middle.shape[0] / before.shape[0]
    for image, canvas, column in ((before, moved, 20), (after, moved, 110), (after, middle, 70)):
        rows = np.arange(2, 94)
        left = (middle.shape[1] - before.shape[1] * scale) / 2
        drawn = canvas[((rows + 0.5) * scale).astype(int), int(left + (column + 0.5) * scale)]
        expected = 255 * np.clip((image[rows, column] - low) / (high - low), 0, 1)
        assert np.abs(drawn - expected).max() <= 4
    assert not seen.problems
    view.close()


def test_browser_moves_through_the_stack(browser: Any, stack: Path, tmp_path: Path) -> None:
    seen = Watched(browser, stack, viewport={"width": 1100, "height": 800})
    view = seen.page
    shots = [seen.pixels()]
    view.select_option("#channel", "1")
    seen.settle('[data-shown="5/0"]')
    shots.append(seen.pixels())
    view.focus(".axis[data-axis=Z]")
    view.keyboard.press("ArrowRight")
    seen.settle('[data-shown="7/0"]')
    shots.append(seen.pixels())
    assert view.locator(".axis[data-axis=Z] + output").inner_text() == "4 / 5"
    assert view.locator("[data-plane]:visible").get_attribute("data-plane") == "7"
    for mode in ("before", "residual"):
        view.check(f'input[name=mode][value="{mode}"]', force=True)
        seen.settle(f'[data-mode="{mode}"]')
        shots.append(seen.pixels())
    for one, other in itertools.pairwise(shots):
        assert (one != other).mean() > 0.2
    assert abs(float(shots[-1].mean()) - 127.5) < 12  # mid-grey is a residual of zero
    view.screenshot(path=tmp_path / "stack.png", full_page=True)
    assert (tmp_path / "stack.png").stat().st_size > 20_000
    assert not seen.problems
    assert seen.requests[0] == stack.as_uri()
    assert all(url.startswith("data:") for url in seen.requests[1:])
    view.close()


def test_browser_zooms_pans_and_sets_contrast(browser: Any, stack: Path) -> None:
    seen = Watched(browser, stack, viewport={"width": 1100, "height": 800}, color_scheme="dark")
    view = seen.page
    view.check("input[name=mode][value=after]", force=True)
    seen.settle('[data-mode="after"]')
    fitted, bar = seen.pixels(), view.inner_text("#scalebar span")
    assert bar.endswith(" µm")
    box = view.locator("#stage").bounding_box()
    view.mouse.move(box["x"] + 300, box["y"] + 200)
    for _ in range(8):
        view.mouse.wheel(0, -200)
    seen.settle(".zoomed")
    zoomed = seen.pixels()
    rows = (zoomed[1:] != zoomed[:-1]).any(1)
    assert rows.mean() < 0.1  # large square pixels: few rows differ from the one above
    assert float(view.inner_text("#scalebar span").split()[0]) < float(bar.split()[0])
    view.mouse.down()
    view.mouse.move(box["x"] + 180, box["y"] + 150, steps=3)
    view.mouse.up()
    seen.settle()
    panned = seen.pixels()
    assert np.abs(panned[:-60, :-130].astype(int) - zoomed[50:-10, 120:-10]).mean() < 3
    view.click("#one")
    seen.settle()
    assert view.inner_text("#scale") == "100 %"
    view.click("#fit")
    seen.settle()
    assert (seen.pixels() == fitted).all()
    view.focus("#max")
    view.keyboard.press("Home")
    seen.settle()
    assert view.get_attribute("#auto", "aria-pressed") == "false"
    assert seen.pixels().mean() > fitted.mean() + 20
    view.click("#auto")
    seen.settle()
    assert (seen.pixels() == fitted).all()
    assert not seen.problems
    view.close()


def test_browser_on_a_phone(browser: Any, stack: Path, tmp_path: Path) -> None:
    seen = Watched(browser, stack, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert seen.overflow() == 0
    first = seen.pixels()
    box = seen.page.locator("#stage").bounding_box()
    session = seen.page.context.new_cdp_session(seen.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        where = [{"x": box["x"] + x, "y": box["y"] + y, "id": i} for i, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})

    touch("touchStart", (180, 130))
    for x in (160, 120, 90):
        touch("touchMove", (x, 130))
    touch("touchEnd")
    seen.settle()
    assert int(seen.page.get_attribute("#divider", "aria-valuenow")) == 25
    assert (seen.pixels() != first).any()
    touch("touchStart", (150, 140), (210, 140))
    for apart in (40, 60, 90):
        touch("touchMove", (180 - apart, 140), (180 + apart, 140))
    touch("touchEnd")
    seen.settle(".zoomed")
    seen.page.screenshot(path=tmp_path / "phone.png", full_page=True)
    assert not seen.problems
    seen.page.close()


def test_browser_shows_the_detail_of_a_large_plane(browser: Any, tmp_path: Path) -> None:
    after = np.zeros((1100, 1100), np.float32)
    after[200:500, 300:700] = 100 + 50 * (np.arange(400) % 2)
    path = tmp_path / "large.html"
    write_report(path, Report("large", after, after, "YX"))
    seen = Watched(browser, path, viewport={"width": 1500, "height": 900})
    assert seen.overflow() == 0
    overview = seen.pixels()
    seen.page.check('input[name=view][value="1"]', force=True)
    seen.settle('[data-shown="0/1"]')
    detail = seen.pixels()
    # stripes of one pixel are an even grey in the means, and black against white only in the detail
    assert (overview == 255).mean() < 0.02
    assert (detail == 255).mean() > 0.1
    assert not seen.problems
    seen.page.close()


EVIL = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">'\""


def test_names_from_files_are_text_on_the_page(browser: Any, tmp_path: Path) -> None:
    """Whatever a file says of itself, in every place of the page, is shown as it is and does nothing."""
    before = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    check = {"name": EVIL, "value": 0.5, "limits": (1.0, 2.0), "verdict": "pass", "meaning": EVIL}
    report = Report(
        EVIL,
        before,
        0.5 * before,
        "CZYX",
        channel_names=(EVIL, "{{script}}"),
        pixel_size={"X": 0.1, "Y": 0.1, "Z": 1.0},
        units={"X": EVIL, "Y": EVIL, "Z": EVIL},
        noise=EVIL,
        noise_formula=EVIL,
        history={EVIL: [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]},
        audit={"verdict": EVIL, "checks": [check]},
        facts={EVIL: EVIL, "command": f"inverseflow denoise {EVIL}"},
    )
    path = tmp_path / "evil.html"
    write_report(path, report)
    seen = Watched(browser, path, viewport={"width": 1100, "height": 800})
    assert seen.page.title() == f"{EVIL} \u00b7 denoised"
    assert seen.page.locator("h1").inner_text() == EVIL
    assert seen.page.locator("script").count() == 2  # the data and ours
    assert seen.page.locator("img[src=x]").count() == 0
    assert seen.page.locator("#channel option").all_inner_texts() == [EVIL, "{{script}}"]
    assert seen.page.locator("body").inner_text().count("document.title='hacked'</script>") >= 8
    assert not seen.problems
    assert all(url.startswith("data:") for url in seen.requests[1:])
    seen.page.close()
