"""What the examples share: where results go, and the 8 gaussians."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor

import inverseflow

matplotlib.use("agg")


def output_folder(description: str, **options: Any) -> argparse.Namespace:
    """Parse --output and the example's own options, and make the folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=Path("out"))
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    return arguments


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write and print the figures, with the command and the versions that made them."""
    versions = {"inverseflow": inverseflow.__version__, "torch": torch.__version__, "python": platform.python_version()}
    command = " ".join(["python", f"examples/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    figures = {**figures, "conditions": {"command": command, "threads": torch.get_num_threads(), **versions}}
    path.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


def eight_gaussians(count: int, sigma: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Clean points (count, 2) on 8 places of the unit circle, and the same with Gaussian noise."""
    angle = torch.arange(8) * math.pi / 4
    centres = torch.stack([angle.cos(), angle.sin()], 1)
    x0 = centres[torch.randint(8, (count,), generator=generator)]
    return x0, x0 + sigma * torch.randn(x0.shape, generator=generator)
