"""The command as a user meets it: files in, files out, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from imageio.v3 import imread, imwrite
from typer.testing import CliRunner, Result

import inverseflow as ivf
from inverseflow.cli import app

QUICK = ["--steps", "2", "--device", "cpu"]
NOISE = ["--noise", "gaussian:sigma=20"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def inverseflow(*arguments: str) -> Result:
    """Two steps teach nothing, and the audit would say so (tests/test_audit.py)."""
    unjudged = ["--no-audit"] if arguments[:1] == ("denoise",) else []
    return CliRunner().invoke(app, [*arguments, *unjudged])


def noisy(*shape: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[-2], : shape[-1]]
    clean = 300 + 100 * np.sin(x / 5) * np.cos(y / 7)
    return (clean + 20 * generator.standard_normal(shape)).round().astype(np.uint16)


def ome(path: str, shape: tuple[int, ...] = (2, 2, 3, 40, 36), axes: str = "TCZYX") -> np.ndarray:
    data = noisy(*shape)
    sizes = {"PhysicalSizeX": 0.1, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.1, "PhysicalSizeYUnit": "µm"}
    depth = {"PhysicalSizeZ": 0.9, "PhysicalSizeZUnit": "µm", "TimeIncrement": 1.5, "TimeIncrementUnit": "s"}
    names = {"Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite(path, data, ome=True, metadata={"axes": axes, **sizes, **depth, **names})
    return data


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def test_one_command_from_file_to_file(here: Path) -> None:
    data = ome("cells.ome.tif")
    result = inverseflow("denoise", "cells.ome.tif", *NOISE, *QUICK)
    assert result.exit_code == 0, result.output
    assert listing(here) == {"cells.ome.tif", "cells_denoised.ome.tif", "cells_denoised.html"}
    assert "cells_denoised.ome.tif and cells_denoised.html" in result.output
    before, after = ivf.read("cells.ome.tif"), ivf.read("cells_denoised.ome.tif")
    assert (after.axes, after.shape, after.dtype) == ("TCZYX", data.shape, np.float32)
    assert (after.pixel_size, after.units, after.channel_names) == (
        before.pixel_size,
        before.units,
        ("DAPI", "GFP"),
    )
    assert np.array_equal(np.asarray(before), data)  # the input is as it was
    residual = np.asarray(after) - data
    assert 0 < residual.std() < 40  # it did something, and not too much


def test_a_channel_by_name_and_the_input_s_type(here: Path) -> None:
    data = ome("cells.ome.tif")
    result = inverseflow(
        "denoise", "cells.ome.tif", *NOISE, *QUICK, "--channels", "GFP", "--dtype", "same", "-o", "out/gfp.ome.tif"
    )
    assert result.exit_code == 0, result.output
    image = ivf.read("out/gfp.ome.tif")
    assert (image.dtype, image.channel_names) == (np.uint16, ("GFP",))
    found = np.asarray(image).reshape(2, 3, 40, 36).astype(float)
    assert abs(found - data[:, 1]).mean() < abs(found - data[:, 0]).mean()
    assert inverseflow("denoise", "cells.ome.tif", *NOISE, *QUICK, "--channels", "RFP").exit_code == 2
    absent = inverseflow("denoise", "cells.ome.tif", *NOISE, *QUICK, "--channels", "7")
    assert "There is no channel 7; the image has 2" in absent.output


def test_one_model_for_many_files(here: Path) -> None:
    (here / "day1").mkdir()
    for number in range(3):
        tifffile.imwrite(here / "day1" / f"{number}.tif", noisy(40, 40 + number, seed=number))
    trained = inverseflow("train", "day1/*.tif", *NOISE, *QUICK, "-o", "m.safetensors", "--json")
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["noise"] == "Gaussian(sigma=20)"
    assert listing(here) == {"day1", "0.tif", "1.tif", "2.tif", "m.safetensors"}
    result = inverseflow("denoise", "day1", "--model", "m.safetensors", "-o", "out", "--no-page", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert listing(here / "out") == {f"{number}_denoised.tif" for number in range(3)}
    expected = ivf.Denoiser.load("m.safetensors", device="cpu").denoise(noisy(40, 41, seed=1), axes="YX")
    assert np.allclose(tifffile.imread(here / "out" / "1_denoised.tif"), expected, atol=1e-3)

    ome("cells.ome.tif")
    other = inverseflow("denoise", "cells.ome.tif", "--model", "m.safetensors")
    assert other.exit_code == 1
    assert "trained on 1 channels, but the image has 2" in other.output
    assert inverseflow("denoise", "day1", "--model", "m.safetensors", *NOISE).exit_code == 2
    assert "cannot all become one.tif" in inverseflow("denoise", "day1", *NOISE, "-o", "one.tif").output


def test_tiles_of_any_size_give_the_same(here: Path) -> None:
    imwrite("a.tif", noisy(200, 170))
    assert inverseflow("train", "a.tif", *NOISE, *QUICK, "-o", "m.safetensors").exit_code == 0
    for name, options in {"whole": [], "tiled": ["--tile-size", "96", "--tile-overlap", "32"]}.items():
        run = inverseflow("denoise", "a.tif", "-m", "m.safetensors", "-o", f"{name}.tif", "--no-page", *options)
        assert run.exit_code == 0, run.output
    whole, tiled = (tifffile.imread(f"{name}.tif") for name in ("whole", "tiled"))
    assert np.abs(whole - tiled).max() < 1e-3 * np.ptp(whole)


def test_volumes_or_planes(here: Path) -> None:
    tifffile.imwrite("z.tif", noisy(9, 24, 20), imagej=True, metadata={"axes": "ZYX", "spacing": 2.0, "unit": "um"})
    deep = inverseflow("denoise", "z.tif", *NOISE, *QUICK, "--no-page")
    assert deep.exit_code == 0, deep.output
    assert "of ZYX (9 slices" in deep.output
    flat = inverseflow("denoise", "z.tif", *NOISE, *QUICK, "--dim", "2", "-o", "flat.tif", "--no-page")
    assert "9 samples of YX (as asked for)" in flat.output
    assert ivf.read("flat.tif").axes == ivf.read("z_denoised.tif").axes == "ZYX"


def test_noises_compose_and_come_from_yaml(here: Path) -> None:
    imwrite("a.png", noisy(40, 40).astype(np.uint8))
    (here / "noise.yaml").write_text("noise: poisson:gain=2\n")
    plan = inverseflow(
        "denoise", "a.png", "--noise", "noise.yaml", "--noise", "gaussian:sigma=3", "--dry-run", "--json", *QUICK
    )
    assert plan.exit_code == 0, plan.output
    described = json.loads(plan.stdout)["plan"]
    assert described["noise"] == "Poisson(gain=2, offset=0) then Gaussian(sigma=3)"
    assert described["write"] == ["a_denoised.png", "a_denoised.html"]
    assert listing(here) == {"a.png", "noise.yaml"}
    (here / "bad.yaml").write_text("noise: [1, 2\n")
    assert (
        "bad.yaml is not YAML as a noise is written (line 2: "
        in inverseflow("denoise", "a.png", "--noise", "bad.yaml").output
    )


def test_nothing_is_overwritten_unless_forced(here: Path) -> None:
    imwrite("a.png", noisy(40, 40).astype(np.uint8))
    (here / "a_denoised.png").write_text("mine")
    refused = inverseflow("denoise", "a.png", *NOISE, *QUICK)
    assert refused.exit_code == 1
    assert "a_denoised.png exists; choose another name with -o, or replace it with --force" in refused.output
    assert (here / "a_denoised.png").read_text() == "mine"
    assert inverseflow("denoise", "a.png", *NOISE, *QUICK, "--force").exit_code == 0
    assert imread("a_denoised.png").shape == (40, 40)


def test_info_says_how_a_file_is_understood(here: Path) -> None:
    data = ome("cells.ome.tif", shape=(2, 2, 3, 64, 64))
    facts = json.loads(inverseflow("info", "cells.ome.tif", "--json").stdout)[0]
    assert facts["shape"] == "2 x 2 x 3 x 64 x 64"
    assert facts["axes"] == "TCZYX"
    assert facts["pixel_size"].startswith("Z 0.9 µm") or "X 0.1 µm" in facts["pixel_size"]
    assert facts["channels"] == "DAPI, GFP"
    assert facts["range"] == f"{data.min()} to {data.max()}"
    assert facts["repeated_frames"].startswith("yes")


BAD = {
    "missing.tif": ("No image matches missing.tif", 1),
    "text.tif": ("text.tif", 1),
    "truncated.tif": ("truncated.tif", 1),
    "nan.npy": ("NaN", 1),
    "constant.npy": ("constant", 1),
    "complex.npy": ("complex", 1),
    "empty.npy": ("length 0", 1),
    "stack.npy": ("What are the axes of stack.npy", 2),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_input_is_one_sentence_and_nothing_is_written(here: Path, name: str) -> None:
    tifffile.imwrite("whole.tif", noisy(40, 40))
    content = (here / "whole.tif").read_bytes()
    (here / "text.tif").write_text("not a picture")
    (here / "truncated.tif").write_bytes(content[: len(content) // 2])
    with_nan = np.random.default_rng(0).random((40, 40))
    with_nan[3, 4] = np.nan
    for title, array in {
        "nan": with_nan,
        "constant": np.ones((40, 40)),
        "complex": np.ones((40, 40), complex),
        "empty": np.ones((0, 40)),
        "stack": np.random.default_rng(0).random((3, 40, 40)),
    }.items():
        np.save(here / f"{title}.npy", array)
    before = listing(here)
    words, code = BAD[name]
    result = inverseflow("denoise", name, *NOISE, *QUICK)
    assert result.exit_code == code, result.output
    assert words in result.output
    assert len(result.output.strip().splitlines()) <= 3
    assert {n for n in listing(here) if not n.startswith(".")} <= before


def test_wrong_usage_is_code_2(here: Path) -> None:
    imwrite("a.png", noisy(40, 40).astype(np.uint8))
    assert "did you mean poisson?" in inverseflow("denoise", "a.png", "--noise", "poison:gain=1").output
    assert "names 3 axes, but the array has 2" in inverseflow("denoise", "a.png", *NOISE, "--axes", "ZYX").output
    assert "have no Z" in inverseflow("denoise", "a.png", *NOISE, "--dim", "3").output
    assert "--dtype must be same, float32" in inverseflow("denoise", "a.png", *NOISE, "--dtype", "banana").output
    assert "take at least 192" in inverseflow("denoise", "a.png", *NOISE, "--tile-size", "64").output
    assert listing(here) == {"a.png"}
    assert "is not a time" in inverseflow("denoise", "a.png", *NOISE, "--max-time", "soon").output
    wrong = (("--axes", "ZYX"), ("--dim", "3"), ("--dtype", "banana"), ("--max-time", "soon"), ("--preset", "slow"))
    for arguments in (("--noise", "poison:gain=1"), *((*NOISE, *words) for words in wrong)):
        assert inverseflow("denoise", "a.png", *arguments).exit_code == 2


@pytest.mark.parametrize("output", ["a.png", "a.jpg", "a.czi"])
def test_a_format_that_cannot_hold_the_result_is_refused_before_the_training(here: Path, output: str) -> None:
    tifffile.imwrite("movie.tif", noisy(5, 64, 64))
    result = inverseflow("denoise", "movie.tif", "--axes", "TYX", *NOISE, "-o", output)  # minutes, if it trained
    assert result.exit_code == 1
    assert "cannot" in result.output
    assert "Learning" not in result.output
    assert listing(here) == {"movie.tif"}


def test_the_noise_is_found_when_it_is_not_told(here: Path) -> None:
    tifffile.imwrite("a.tif", noisy(256, 256))
    found = inverseflow("noise", "a.tif", "-o", "noise.yaml", "--plot", "noise.png", "--json")
    assert found.exit_code == 0, found.output
    assert {"noise.yaml", "noise.png"} < listing(here)
    result = inverseflow("denoise", "a.tif", "--steps", "2", "--device", "cpu", "--no-page")
    assert result.exit_code == 0, result.output
    assert "Found Gaussian(sigma=2" in result.output  # 20 and what it leans high
    again = inverseflow("denoise", "a.tif", "--noise", "noise.yaml", *QUICK, "-o", "b.tif", "--no-page")
    assert again.exit_code == 0, again.output
    assert np.array_equal(tifffile.imread("b.tif"), tifffile.imread("a_denoised.tif"))
    low = inverseflow("denoise", "a.tif", "--noise", "gaussian:sigma=10", *QUICK, "-o", "c.tif", "--no-page")
    assert "% less noise than the images show" in low.output
    np.save(here / "flat.npy", np.ones((64, 64)))
    assert inverseflow("denoise", "flat.npy", *QUICK).exit_code == 2


def test_page_again(here: Path) -> None:
    imwrite("a.png", noisy(40, 40).astype(np.uint8))
    assert inverseflow("denoise", "a.png", *NOISE, *QUICK, "--no-page").exit_code == 0
    assert inverseflow("report", "a.png", "a_denoised.png").exit_code == 0
    assert "a.png" in (here / "a_denoised.html").read_text()
    assert inverseflow("report", "a.png", "a_denoised.png").exit_code == 1
    assert "Error bars" not in (here / "a_denoised.html").read_text()
    assert inverseflow("denoise", "a.png", *NOISE, *QUICK, "--std", "--force").exit_code == 0
    assert tifffile.imread("a_denoised_std.tif").dtype == np.float32  # 256 grey levels are too few for error bars
    assert inverseflow("report", "a.png", "a_denoised.png", "--force").exit_code == 0
    assert "Error bars" in (here / "a_denoised.html").read_text()


def test_error_bars_and_draws_lie_beside_the_result(here: Path) -> None:
    ome("cells.ome.tif", (2, 2, 40, 36), "TCYX")
    wanted = ["--std", "--interval", "0.9", "--samples", "2"]
    result = inverseflow("denoise", "cells.ome.tif", *NOISE, *QUICK, *wanted)
    assert result.exit_code == 0, result.output
    tags = ("", "_std", "_low", "_high", "_sample1", "_sample2")
    images = {tag: ivf.read(f"cells_denoised{tag}.ome.tif") for tag in tags}
    assert len({image.shape for image in images.values()}) == 1
    assert all(image.channel_names == ("DAPI", "GFP") and image.pixel_size["X"] == 0.1 for image in images.values())
    values = {tag: np.asarray(image) for tag, image in images.items()}
    assert (values["_std"] > 0).all()
    assert (values["_low"] < values["_high"]).all()
    assert not np.array_equal(values["_sample1"], values["_sample2"])
    assert "Intervals held of simulated values that were never trained on: 50 %" in result.output
    assert "Error bars" in Path("cells_denoised.html").read_text()
    again = inverseflow("denoise", "cells.ome.tif", *NOISE, *QUICK, "-o", "other.ome.tif", "--std")
    assert again.exit_code == 0
    assert np.array_equal(np.asarray(ivf.read("other_std.ome.tif")), values["_std"])


def test_a_failed_audit_holds_error_bars_back(here: Path) -> None:
    """Two steps teach nothing: with the audit on, its verdict is fail."""
    imwrite("a.png", noisy(128, 128).astype(np.uint8))
    command = ["denoise", "a.png", "--noise", "gaussian:sigma=2", *QUICK, "--std", "--samples", "1", "-o", "b.tif"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 3, result.output
    assert "no error bars or samples are written" in result.output
    assert listing(here) == {"a.png", "b.tif", "b.html"}
    assert "Error bars" not in Path("b.html").read_text()
    result = CliRunner().invoke(app, [*command, "--force"])
    assert result.exit_code == 3
    assert listing(here) == {"a.png", "b.tif", "b.html", "b_std.tif", "b_sample1.tif"}


def test_a_model_says_before_the_work_what_it_cannot_do(here: Path) -> None:
    imwrite("a.png", noisy(40, 40).astype(np.uint8))
    assert inverseflow("train", "a.png", *NOISE, *QUICK, "--samples").exit_code == 0
    good = inverseflow("denoise", "a.png", "-m", "model.safetensors", "--samples", "1", "--estimate", "0.5")
    assert good.exit_code == 0, good.output
    assert inverseflow("train", "a.png", *NOISE, *QUICK, "--estimate", "flow", "-o", "map.safetensors").exit_code == 0
    for arguments, words in (
        (["-m", "map.safetensors", "--std"], "has no error bars"),
        (["-m", "map.safetensors", "--samples", "2"], "cannot draw samples"),
        ([*NOISE, "--interval", "1.5"], "between 0 and 1"),
        ([*NOISE, "--samples", "-1"], "above 0"),
        ([*NOISE, "--estimate", "2"], "from 0 (mean) to 1 (flow)"),
        ([*NOISE, "--estimate", "flow", "--std"], "belong to the estimate mean"),
    ):
        result = inverseflow("denoise", "a.png", *arguments, "-o", "never.tif")
        assert result.exit_code in (1, 2), result.output
        assert words in result.output
    assert not list(here.glob("never*"))


def test_new_clean_images_from_noisy_ones(here: Path) -> None:
    tifffile.imwrite("a.tif", noisy(5, 40, 40))
    trained = inverseflow("train", "a.tif", *NOISE, *QUICK, "--generator", "-o", "new.safetensors", "--axes", "TYX")
    assert trained.exit_code == 0, trained.output
    result = inverseflow("generate", "new.safetensors", "-n", "5", "-o", "out", "--size", "32")
    assert result.exit_code == 0, result.output
    assert listing(here / "out") == {"sheet.png", *(f"generated_00{k}.tif" for k in range(1, 6))}
    first, second = (tifffile.imread(f"out/generated_00{k}.tif") for k in (1, 2))
    assert first.shape == (32, 32)
    assert not np.array_equal(first, second)
    assert imread("out/sheet.png").shape == (64, 96)
    assert "exists" in inverseflow("generate", "new.safetensors", "-n", "5", "-o", "out").output
    assert inverseflow("generate", "new.safetensors", "-n", "0", "-o", "none").exit_code == 2
    assert "is not an inverseflow generator" in inverseflow("generate", "a.tif").output


def test_an_interrupted_training_goes_on(here: Path) -> None:
    """Ctrl-C in a real process: no output, the checkpoint stays, the message says how to resume, and it does."""
    imwrite("a.png", noisy(64, 64).astype(np.uint8))
    command = [sys.executable, "-m", "inverseflow", "denoise", "a.png", *NOISE, "--device", "cpu", "--no-audit"]
    command += ["--steps", "60", "--no-page"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    metrics = here / ".a_denoised.png.training" / "flow" / "metrics.jsonl"
    deadline = time.monotonic() + 900
    while not (metrics.exists() and metrics.read_text()):
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "--resume" in message
    assert "Traceback" not in message
    assert not (here / "a_denoised.png").exists()
    assert (metrics.parent / "checkpoint.safetensors").exists()
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert again.returncode == 1
    assert "go on with --resume" in again.stderr
    other = inverseflow("denoise", "a.png", "--noise", "gaussian:sigma=5", *command[7:], "--resume")
    assert "run with other settings (noise)" in other.output
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, env=environment)
    assert resumed.returncode == 0, resumed.stderr
    assert listing(here) == {"a.png", "a_denoised.png"}


def test_a_full_disk_leaves_nothing_behind(here: Path, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("64k")
    imwrite("a.tif", noisy(300, 300))
    assert inverseflow("train", "a.tif", *NOISE, *QUICK, "-o", "m.safetensors").exit_code == 0
    result = inverseflow("denoise", "a.tif", "-m", "m.safetensors", "-o", str(disk / "a.tif"), "--no-page")
    assert result.exit_code == 1
    assert "full" in result.output or "space" in result.output
    assert not listing(disk)


def test_help_and_completion_need_no_torch() -> None:
    code = "import sys, inverseflow.cli; assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    asked = {**os.environ, "_INVERSEFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "inverseflow de", "COMP_CWORD": "1"}
    command = Path(sys.executable).with_name("inverseflow")
    completed = subprocess.run([str(command)], env=asked, capture_output=True, text=True, check=False)
    assert completed.stdout.split() == ["denoise"]
    version = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.strip() == f"inverseflow {ivf.__version__}"


def test_the_page_of_a_large_plane_shows_its_middle(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inverseflow.describe.SHOWN", 32)
    data = noisy(3, 80, 50)
    tifffile.imwrite("a.tif", data, imagej=True, metadata={"axes": "TYX"})
    from inverseflow import describe

    image = ivf.read("a.tif")
    page = describe.report("a.tif", image, image, None, "inverseflow")
    assert page.before.shape == (3, 32, 32)
    assert np.array_equal(page.before[1], data[1, 24:56, 9:41])
    assert np.array_equal(page.before[2, 3:5, ::2], data[2, 27:29, 9:41:2])
    assert np.array_equal(page.before[..., 0], data[:, 24:56, 9])
    assert page.facts["shown"] == "the middle 3 x 32 x 32 of 3 x 80 x 50"
    assert inverseflow("report", "a.tif", "a.tif", "-o", "a.html").exit_code == 0


def test_a_noise_that_is_found_can_be_used(here: Path) -> None:
    """What `noise -o` writes, `--noise` reads, for planes as for volumes."""
    imwrite("a.png", noisy(64, 64).astype(np.uint8))
    refused = inverseflow("noise", "a.png", "-o", "found.txt")
    assert (refused.exit_code, "give -o a name like noise.yaml, not found.txt" in refused.output) == (2, True)
    assert listing(here) == {"a.png"}

    white = np.random.default_rng(0).normal(0, 20, (13, 64, 65))
    tied = 300 + white[1:] + white[:-1]  # slices that share half of their noise, and so do pixels
    tifffile.imwrite("vol.tif", (tied[..., 1:] + tied[..., :-1]).astype(np.float32), metadata={"axes": "ZYX"})
    axes = {}
    for name, dim in (("volume", []), ("planes", ["--dim", "2"])):
        found = inverseflow("noise", "vol.tif", "-o", f"{name}.yaml", *dim)
        assert found.exit_code == 0, found.output
        axes[name] = ivf.NoiseEstimate.from_yaml(f"{name}.yaml").noise.kernel.ndim
        result = inverseflow("denoise", "vol.tif", "--noise", f"{name}.yaml", *dim, *QUICK, "-o", f"{name}.tif")
        assert result.exit_code == 0, result.output
        judged = inverseflow("audit", "vol.tif", f"{name}.tif", "--noise", f"{name}.yaml", *dim)
        assert judged.exit_code in (0, 3), judged.output
    assert axes == {"volume": 3, "planes": 2}
    assert inverseflow("audit", "vol.tif", "planes.tif", "--dim", "2").exit_code in (0, 3)
    both = inverseflow("audit", "vol.tif", "planes.tif", "--dim", "2", "-m", "none.safetensors")
    assert (both.exit_code, "leave --dim out" in both.output) == (2, True)
    unknown = inverseflow("noise", "vol.tif", "--repeats", "ZY")
    assert (unknown.exit_code, unknown.output.count("\n")) == (1, 1)
    assert "repeats='ZY' must be one letter" in unknown.output
