"""What every long run stores beside its figures, and the small image that it works on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import RESULTS, conditions

SIGMA = 100.0


def noisy_image(channels: int = 2, height: int = 200, width: int = 170) -> np.ndarray:
    rng = np.random.default_rng(0)
    clean = np.kron(rng.uniform(200, 2000, (channels, height // 20, -(-width // 20))), np.ones((1, 20, 20)))
    return (clean[:, :, :width] + rng.normal(0, SIGMA, (channels, height, width))).clip(0).astype(np.uint16)


def store(name: str, figures: dict[str, Any]) -> Path:
    """Beside the benchmarks' results, with the command, the versions and the commit."""
    asked = " ".join([f"soak.{name}", *sys.argv[1:]])
    path = RESULTS / f"soak_{name}.json"
    content = {**figures, "conditions": {**conditions(), "command": f"python -m {asked}"}}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
