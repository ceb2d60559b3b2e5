"""The long runs of `make soak`, made short: a few kills, a few cycles."""

from __future__ import annotations

import json
import subprocess
import sys

from conftest import ROOT


def test_six_kills() -> None:
    """In a process of its own: what forks must not have threads."""
    code = "import json, sys; from soak import kills; print(json.dumps(kills.run(6, int(sys.argv[1]))))"
    done = subprocess.run([sys.executable, "-c", code, "7"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["kills"] == 6
    assert found["problems"] == []


def test_the_counts_see_a_leak() -> None:
    """Rows that grow and rows that do not."""
    from soak.endurance import figures

    still = {"rss_mb": 500.0, "open_files": 9, "threads": 8, "system_threads": 8}
    assert figures([still] * 20)["growth"] == 0
    leaking = [{**still, "rss_mb": 500.0 + k, "open_files": 9 + k} for k in range(20)]
    found = figures(leaking)
    assert found["growth"] > 0.02
    assert found["open_files"] == [5.5 + 9, 17.5 + 9]
