"""The README is true: its Python examples run, its commands and pictures exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

README = (ROOT / "README.md").read_text()


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(snippets("python"))))
def test_python_examples_run(number: int, tmp_path: Path) -> None:
    """In an empty folder, as a newcomer would; training is cut short by a setting that the example does not show."""
    quick = (
        "import inverseflow as ivf\n"
        "short = ivf.Settings(steps=3, batch_size=2)\n"
        "import inverseflow.denoiser as denoiser\n"
        "denoiser.default_settings = lambda *_, **__: (short, short)\n"
    )
    script = tmp_path / "example.py"
    script.write_text(quick + snippets("python")[number])
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_example_is_short() -> None:
    first = [line for line in snippets("python")[0].splitlines() if line.strip()]
    assert len(first) <= 12


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", "\n".join(snippets("sh")), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_pictures_and_links_exist() -> None:
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path


def test_results_are_those_that_are_stored() -> None:
    sys.path.insert(0, str(ROOT))
    from benchmarks.readme import markdown

    assert markdown() in README
