"""The harness: every row can be run and stands in a table, its noise is the paper's, tables name what is missing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from imageio.v3 import imwrite

from conftest import ROOT, shared_data
from inverseflow.metrics import psnr
from inverseflow.noise import Gaussian, as_noise

sys.path.insert(0, str(ROOT))
from benchmarks import datasets, readme, run, table

TINY = {"kind": "UNet", "widths": [8], "blocks": 1}
SIMULATED = ("correlated", "jacobi", "poisson", "rayleigh", "poisson_gaussian", "rayleigh_gaussian")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like that of the data sets, with tiny pictures."""
    monkeypatch.setattr(datasets, "SIZE", 32)
    shapes = {
        "BSDS500/train/a.jpg": (40, 48, 3),
        "BSDS500/train/b.jpg": (48, 40, 3),
        "BSDS500/test/c.jpg": (40, 33, 3),
        "Kodak24_center256/kodim01.png": (32, 32, 3),
        "Set12/01.png": (36, 36),
        **{f"FMD/raw/TwoPhoton_MICE_{k}.png": (64, 64) for k in (1, 2, 3, 4)},
        "FMD/gt/TwoPhoton_MICE_1.png": (64, 64),
        **{f"OCT_SDOCT/1/{name}.png": (64, 64) for name in ("test", "average")},
    }
    folder, levels = tmp_path / "data", np.random.default_rng(0)
    for name, shape in shapes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        imwrite(folder / name, levels.normal(120, 20, shape).clip(0, 255).astype(np.uint8))
    (folder / "PtNP_TEM_sim").mkdir()
    tifffile.imwrite(folder / "PtNP_TEM_sim/a.tif", levels.uniform(0.3, 0.6, (40, 40)).astype(np.float32))
    return folder


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    return run.main()


@pytest.mark.parametrize("name", run.every_row())
def test_rows_can_be_read(name: str) -> None:
    row = run.read_row(name)
    assert row["method"] in (*run.OURS, *run.CLASSICAL, *run.SUPERVISED, *run.RIVALS)
    assert (row["data"] in ("photographs", "ptnp")) == ("noise" in row)
    for key in ("noise", "assumed"):
        if key in row:
            as_noise(row[key])
    if row["method"] in run.RIVALS and "noise" in row:
        run.RIVALS[row["method"]](run.ivf.Bridge(as_noise(row["noise"])))  # says so if it has no answer to this noise


def test_every_row_stands_in_a_table_and_every_cell_has_a_row() -> None:
    cells = {name for entry in table.read_tables() for name in table.wanted(entry)}
    assert cells == set(run.every_row())


def test_gaussian_rows_have_the_paper_s_noise() -> None:
    """Without clipping, the input's PSNR is -20 log10 sigma."""
    checked = 0
    for entry in table.read_tables():
        for name, figures in entry["rows"].items():
            noise = as_noise(run.read_row(name).get("noise", "poisson:gain=1"))
            for test in set(figures) & set(table.SETS):
                if isinstance(noise, Gaussian) and "input" in figures[test]:
                    assert figures[test]["input"] == pytest.approx(-20 * math.log10(noise.sigma), abs=0.03)
                    checked += 1
    assert checked == 20


@pytest.mark.parametrize("name", SIMULATED)
def test_other_noise_is_the_paper_s_too(name: str) -> None:
    """On the Kodak crops; gamma noise is left out: its input is 0.17 dB too good in the paper for k = 100."""
    clean = datasets._centres(shared_data(), "kodak", False)
    generator = torch.Generator().manual_seed(datasets.SEEDS["kodak"])
    noisy = as_noise(run.read_row(name)["noise"]).sample(clean, generator=generator)
    paper = next(t["rows"][name]["kodak"]["input"] for t in table.read_tables() if name in t["rows"])
    measured = sum(psnr(a, b) for a, b in zip(noisy, clean, strict=True)) / len(clean)
    assert measured == pytest.approx(paper, abs=0.03)


def test_dose_of_the_electron_microscope_gives_the_paper_s_input() -> None:
    """Var = gain x0, so the PSNR is -10 log10 of gain times the mean."""
    clean = datasets._platinum(shared_data())
    noise = as_noise(run.read_row("ptnp")["noise"])
    assert -10 * math.log10(noise.gain * float(clean.mean())) == pytest.approx(23.70, abs=0.005)


def test_scores_clip_nothing() -> None:
    truth = torch.full((3, 1, 16, 16), 0.95)
    scores = run.score(truth + torch.tensor([0.1, 0.01, 0.001]).reshape(3, 1, 1, 1), truth, 1.0)
    assert scores["psnr"] == pytest.approx((20 + 40 + 60) / 3, abs=2e-3)  # the mean of ratios, not of errors
    assert run.score(255 * truth, 255 * truth + 25.5, 255)["psnr"] == pytest.approx(20, abs=1e-3)


def test_one_budget_for_all_stages() -> None:
    samples = [torch.zeros(1, 64, 64)]

    def seconds(method: str, **options: Any) -> list[tuple[float | None, int | None]]:
        stages = run.settings({"method": method}, samples, "balanced", run.Options(**options))
        return [(stage.seconds, stage.steps) for stage in stages]

    assert seconds("icm", seconds=300, mean_seconds=100) == [(200, None), (100, None)]
    assert sum(s for s, _ in seconds("icm", seconds=300)) == pytest.approx(300)
    assert seconds("noise2void", seconds=300)[0] == (300, None)
    assert seconds("ifm", seconds=300)[0] == (300, None)
    assert seconds("icm", steps=10) == [(None, 10), (None, 10)]
    assert seconds("icm") == [(None, 1250), (None, 1250)]
    assert seconds("noise2void")[0] == (None, 3333)  # 1250 (5 + 3) passes, three of them in a step
    assert seconds("ifm")[0] == (None, 2500)


@pytest.mark.parametrize(
    ("name", "sets", "channels"),
    [
        ("gaussian25", {"bsds500", "kodak", "set12"}, 1),
        ("gaussian25_icm", {"bsds500", "kodak", "set12"}, 1),
        ("jacobi_supervised", {"bsds500", "kodak", "set12"}, 1),
        ("rgb", {"bsds500", "kodak"}, 3),
        ("rgb_noise2score", {"bsds500", "kodak"}, 3),
        ("assumed50", {"bsds500", "kodak", "set12"}, 1),
        ("ptnp_noise2self", {"ptnp"}, 1),
        ("fmd_TwoPhoton_MICE", {"fmd"}, 1),
        ("oct_noise2void", {"oct"}, 1),
        ("oct_blur", {"oct"}, None),
    ],
)
def test_rows_run(name: str, sets: set[str], channels: int | None, data: Path) -> None:
    tiny = {"net": TINY | {"channels": channels}} if channels == 1 else {}  # of colours, see which net is chosen
    figures = run.run(name, data, run.Options(steps=2, preset="fast", device="cpu", patch_size=16, override=tiny))
    assert set(figures["scores"]) == sets
    estimates = {"input", "map", "mean"} if figures["method"] in run.OURS else {"input", "mean"}
    for scores in figures["scores"].values():
        assert set(scores) == estimates
        assert all(math.isfinite(value) for score in scores.values() for value in score.values())
    if channels:
        assert figures["net"]["channels"] == channels
        assert not figures["net"].get("separate")
        assert figures["steps"]["flow"] == (3 if figures["method"] == "ifm" else 2)  # those of the mean as well
        assert figures["parameters"] > 1000
    if name == "assumed50":
        assert figures["noise_told"] == "Gaussian(sigma=0.1961)"


def test_supervised_rows_learn_from_the_given_pairs(data: Path) -> None:
    """A clean image that is the noisy one, darker by 0.2: what is learned must be just that, not its opposite."""
    task = datasets.load(run.read_row("gaussian25"), data)
    darker = datasets.Task(task.noisy, task.noise, task.tests, 1.0, task.noisy - 0.2)
    how = {"lr": 1e-2, "ema": 0.9, "clip": None}
    row = {"method": "supervised", "net": TINY | {"channels": 1}, "settings": how}
    model, _ = run.train(row, darker, run.Options(steps=80, preset="fast", device="cpu", patch_size=16))
    change = model.denoise(task.noisy, estimate="flow") - task.noisy
    assert float(change.mean()) == pytest.approx(-0.2, abs=0.02)
    assert float(change.std()) < 0.05


def test_archive_holds_what_the_folder_holds(data: Path, tmp_path: Path) -> None:
    archive = datasets.pack(data, tmp_path / "packed")
    assert archive.name == datasets.ARCHIVE
    for pattern in (
        *datasets.PHOTOGRAPHS.values(),
        "BSDS500/train/*.jpg",
        "PtNP_TEM_sim/*.tif",
        "OCT_SDOCT/*/test.png",
    ):
        pairs = zip(datasets.read(data, pattern), datasets.read(archive.parent, pattern), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs), pattern
    with pytest.raises(FileNotFoundError, match="holds no"):
        datasets.read(data, "nothing/*.png")


def test_noisy_tests_are_the_same_for_every_method_and_seed(data: Path) -> None:
    first, second = (datasets.load(run.read_row(name), data) for name in ("gaussian25", "gaussian25_noise2void"))
    assert torch.equal(first.noisy, second.noisy)
    for name, (noisy, truth) in first.tests.items():
        assert torch.equal(noisy, second.tests[name][0])
        assert not torch.equal(noisy, truth)


def test_command_stores_each_row_and_tables_name_the_rest(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    monkeypatch.setenv("COMMIT", "abc1234")
    options = ["--data", str(data), "--results", str(results), "--steps", "2", "--preset", "fast", "--device", "cpu"]
    override = ["--override", json.dumps({"settings": {"batch_size": 2}, "net": TINY})]
    assert command(monkeypatch, "gaussian25_sure", *options, *override) == 0
    stored = json.loads((results / "gaussian25_sure.json").read_text())
    assert stored["settings"]["flow"]["batch_size"] == 2
    assert stored["conditions"]["commit"] == "abc1234"
    assert "bsds500 input" in capsys.readouterr().out

    first = table.read_tables()[0]
    text = table.markdown(first, results)
    assert f"| {stored['scores']['bsds500']['mean']['psnr']:.2f} |" in text
    assert "28.16 → -" in text
    missing = text.split("Not measured yet: ")[1].rstrip(".").split(", ")
    assert set(missing) == set(table.wanted(first)) - {"gaussian25_sure"}
    lines = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert len(set(lines)) == 1  # every line has as many cells as the head


def test_readme_is_made_from_the_rows_that_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {name: {"psnr": 20.0 + k} for k, name in enumerate(("input", "map", "mean"))}
    stored = {
        "scores": dict.fromkeys(("bsds500", "kodak", "set12"), one),
        "method": "ifm",
        "settings": {"flow": {"optimizer": "auto"}},
        "seconds": {"in_all": 299.7},
        "conditions": {"device": "a GPU"},
    }
    (tmp_path / "gaussian25.json").write_text(json.dumps(stored))
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    *_, last = readme.photographs()
    ours = " | ".join(["20.00 / 20.00 / 20.00", "21.00 / 21.00 / 21.00", "**22.00 / 22.00 / 22.00**"])
    assert last == f"| Gaussian 25 | {ours} | 28.16 / 29.08 / 29.19 | IFM, Muon, 300 |"


def test_a_row_that_fails_does_not_stop_the_others(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(data), "--results", str(tmp_path), "--steps", "2", "--device", "cpu"]
    told = ["--override", json.dumps({"noise": "jacobi:time=0.2", "net": TINY})]  # which SURE cannot have
    assert command(monkeypatch, "gaussian25_sure", "gaussian25_noise2void", *options, *told) == 1
    assert "independent Gaussian" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("*.json")] == ["gaussian25_noise2void.json"]
    with pytest.raises(SystemExit, match="no row 'gausian25'"):
        command(monkeypatch, "gausian25")
