"""Every example and the demo run from an empty folder and write their figure and their numbers (with few steps)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

RUNS = {
    "eight_gaussians": ["--steps", "3"],
    "generate_clean": ["--steps", "3"],
    "custom_noise": ["--steps", "2"],
    "uncertainty": ["--steps", "2"],
    "navier_stokes": ["--steps", "2", "--count", "20", "--family", "simple", "--device", "cpu"],
}


def test_every_example_is_listed() -> None:
    assert set(RUNS) == {path.stem for path in (ROOT / "examples").glob("*.py")} - {"common"}


@pytest.mark.parametrize("name", sorted(RUNS))
def test_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--output", "out", *RUNS[name]]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert run.returncode == 0, run.stderr
    assert list((tmp_path / "out").glob("*.png"))
    figures = json.loads(next((tmp_path / "out").glob("*.json")).read_text())
    assert figures


def test_demo_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inverseflow.demo", "--steps", "2", "--device", "cpu"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    written = {path.name for path in (tmp_path / "demo_output").iterdir()}
    assert written == {"noisy.png", "denoised.png", "before_after.png", "figures.json", "model.safetensors"}
    figures = json.loads((tmp_path / "demo_output" / "figures.json").read_text())
    assert f"PSNR {figures['input_psnr']:.2f} dB -> {figures['output_psnr']:.2f} dB" in run.stdout
    wrong = subprocess.run([*command, "--device", "tpu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "Traceback" not in wrong.stderr
