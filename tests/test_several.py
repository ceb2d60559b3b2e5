"""Several files in one run: no two results under one name, results are no inputs, and a stopped run goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from imageio.v3 import imwrite
from typer.testing import CliRunner, Result

import inverseflow as ivf
from inverseflow import commands
from inverseflow.cli import app
from inverseflow.io import expand_paths

NOISE = ("--noise", "gaussian:sigma=20", "--device", "cpu")
QUICK = (*NOISE, "--steps", "2", "--no-audit", "--seed", "3")


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_noisy(*names: str) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        tifffile.imwrite(name, rng.normal(500, 20, (48, 48)).astype(np.float32))


def test_two_results_never_share_a_name(here: Path) -> None:
    write_noisy("day/a.tif", "day/a.ome.tif", "night/a.tif")
    imwrite("day/a.png", np.full((48, 48), 9, np.uint8))
    for files, more, name in (
        (["day/a.tif", "day/a.png"], (), "day/a_denoised.html"),
        (["day/a.tif", "day/a.ome.tif"], ("-o", "out/"), "out/a_denoised.html"),
        (["day/a.tif", "day/a.png"], ("--std", "--no-page"), "day/a_denoised_std.tif"),
        (["day/a.tif", "night/a.tif"], ("-o", "out/", "--no-page"), "out/a_denoised.tif"),
    ):
        for force in ((), ("--force",)):
            result = run("denoise", *files, *QUICK, *more, *force)
            assert (result.exit_code, f"Two results would both become {name};" in result.stderr) == (2, True)
            assert "Learning" not in result.output


def test_results_of_others_are_left_out_of_folders_and_patterns(here: Path) -> None:
    made = ("a_denoised.tif", "a_denoised_std.tif", "a_denoised_sample12.tif", "b_denoised.ome.tif")
    kept = ("a.tif", "b.npy", "c_denoised.tif", "a_denoised_by_hand.tif", "a_std.tif")  # c itself is not here
    for name in (*made, *kept):
        (here / name).write_text("")
    for place in (here, str(here / "*"), str(here / "**" / "*")):
        assert {path.name for path in expand_paths(place)} == {*made, *kept}
        with pytest.warns(UserWarning, match="4 of 9 files are results of the others"):
            assert {path.name for path in expand_paths(place, results=False)} == set(kept)
    named = [here / "a.tif", here / "a_denoised.tif"]
    assert expand_paths(named, results=False) == named


@pytest.mark.filterwarnings("default:.*are results of the others")
def test_a_run_over_a_folder_that_was_stopped_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"day/{letter}.tif" for letter in "abc"]
    write_noisy(*names)
    write_noisy(*(name.replace("day", "undisturbed") for name in names))
    assert run("denoise", "undisturbed", *QUICK).exit_code == 0

    apply, stop = commands.apply, [1]

    def stopped(*arguments: Any) -> Any:
        if not stop[0]:
            raise KeyboardInterrupt
        stop[0] -= 1
        return apply(*arguments)

    monkeypatch.setattr(commands, "apply", stopped)
    assert run("denoise", "day", *QUICK).exit_code == 130
    first = Path("day/a_denoised.tif").read_bytes()
    assert not Path("day/b_denoised.tif").exists()
    again = run("denoise", "day", *QUICK)
    assert "inverseflow: 1 of 4 files are results of the others (_denoised) and left out" in again.stderr
    assert (again.exit_code, "a_denoised.tif exists" in again.stderr) == (1, True)

    stop[0] = 9
    result = run("denoise", "day", *QUICK, "--resume")
    assert result.exit_code == 0, result.output
    assert "a_denoised.tif was complete before." in result.output
    assert stop[0] == 7
    assert Path("day/a_denoised.tif").read_bytes() == first
    for name in "abc":
        found, wanted = (tifffile.imread(f"{folder}/{name}_denoised.tif") for folder in ("day", "undisturbed"))
        assert np.array_equal(found, wanted)
        assert Path(f"day/{name}_denoised.html").exists()
    assert [path.name for path in Path("day").iterdir() if path.name.startswith(".")] == []


def test_a_result_without_its_page_is_not_complete(here: Path) -> None:
    write_noisy("day/a.tif", "day/b.tif")
    model = ivf.Denoiser.train(tifffile.imread("day/a.tif"), ivf.Gaussian(20.0), axes="YX", device="cpu",
                               settings=ivf.Settings(steps=2, batch_size=2), progress=False)  # fmt: skip
    model.save("m.safetensors")
    command = ("denoise", "day/a.tif", "day/b.tif", "-m", "m.safetensors", "--device", "cpu", "--no-audit", "--resume")
    assert run(*command).exit_code == 0
    Path("day/b_denoised.tif").unlink()
    Path("day/b_denoised.html").unlink()
    assert "a_denoised.tif was complete before." in run(*command).output
    Path("day/b_denoised.html").unlink()
    result = run(*command)
    assert (result.exit_code, "b_denoised.tif exists" in result.stderr) == (1, True)
    Path("day/a_denoised.tif").write_text("older, and not of this run")
    result = run(*command, "--force")  # then what is there tells nothing
    assert result.exit_code == 0, result.output
    assert tifffile.imread("day/a_denoised.tif").shape == (48, 48)


def test_a_folder_that_cannot_be_written_is_said_before_the_training(here: Path) -> None:
    write_noisy("one/a.tif", "two/b.tif")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "two"], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("a disk could not be mounted")
    try:
        result = run("denoise", "one/a.tif", "two/b.tif", *QUICK)
    finally:
        subprocess.run(["umount", "-l", "two"], check=True)
    assert (result.exit_code, "two/b.tif" in result.output) == (1, True)
    assert "Learning" not in result.output
