"""The oldest versions that pyproject.toml allows, as constraints for pip.

    python tools/oldest.py > constraints-oldest.txt

torch is left out: its old releases for a CPU are not on PyPI, so the test of the oldest versions keeps the pinned one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
UNTESTED = {"docs", "bench", "bioio"}
"""Extras for building pages and for benchmarks, and readers that are not in the tests."""


def oldest() -> list[str]:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(line for name in extras if name not in UNTESTED for line in extras[name])]
    bounds = dict(found.groups() for line in listed if (found := re.fullmatch(r"([\w-]+)>=([\w.]+)", line)))
    return [f"{name}=={version}" for name, version in sorted(bounds.items(), key=str) if name != "torch"]


if __name__ == "__main__":
    sys.stdout.write("\n".join(oldest()) + "\n")
