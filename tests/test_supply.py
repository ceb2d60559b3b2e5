"""The same result again, and what the package is built on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import determinism_run
from conftest import ROOT


def test_two_processes_give_the_same_bits() -> None:
    """Training, error bars and draws on a CPU, with the hash seed of Python different each time."""
    found = set()
    for number in ("1", "2"):
        line = [sys.executable, determinism_run.__file__, "1"]
        environment = {**os.environ, "PYTHONHASHSEED": number}
        done = subprocess.run(line, check=True, capture_output=True, text=True, env=environment, cwd=ROOT / "tests")
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert len(found.pop()) == 64


def test_oldest_versions_are_the_lower_bounds() -> None:
    line = [sys.executable, str(ROOT / "tools" / "oldest.py")]
    printed = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8") == printed
    assert "lightning==2.6.6\n" in printed  # older ones were malicious uploads, or have a known hole


def test_an_audit_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    """pip-audit ends with a traceback where there is no network; the target says so instead, and still fails."""
    tool = tmp_path / "pip-audit"
    line = [sys.executable, str(ROOT / "tools" / "audit_deps.py"), str(tool)]
    for words, code, said in (
        ("print('Found 2 known vulnerabilities'); sys.exit(1)", 1, "Found 2 known vulnerabilities"),
        ("sys.stderr.write('ConnectionError: Max retries exceeded\\n'); sys.exit(1)", 2, "cannot be reached"),
        ("print('No known vulnerabilities found')", 0, "No known vulnerabilities found"),
    ):
        tool.write_text(f"#!{sys.executable}\nimport sys\n{words}\n")
        tool.chmod(0o755)
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        assert done.returncode == code
        assert said in done.stdout + done.stderr
        assert (done.stdout + done.stderr).count("\n") == 1
