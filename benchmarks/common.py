"""What every benchmark stores beside its figures: hardware, versions, commit, command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import inverseflow

RESULTS = Path(__file__).parent / "results"
FMD = (
    "Confocal_BPAE_B",
    "Confocal_BPAE_G",
    "Confocal_BPAE_R",
    "TwoPhoton_MICE",
    "WideField_BPAE_G",
    "WideField_BPAE_R",
)
"""Samples of real microscopy that are in the data, four captures each."""


def conditions() -> dict[str, Any]:
    gpu = torch.cuda.is_available()
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name() if gpu else f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "inverseflow": inverseflow.__version__,
        "commit": os.environ.get("COMMIT") or commit.stdout.strip() or None,  # a copy of the tree has no git
        "command": "python -m " + " ".join([f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
    }


def write_result(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**figures, "conditions": conditions()}, indent=2) + "\n")
