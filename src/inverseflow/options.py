"""The command line in plain values, and how it talks."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from .tiling import TILE_OVERLAP

DTYPES = (None, "same", "float32", "float64", "uint8", "uint16")


@dataclass(frozen=True)
class Options:
    """The command line, in plain values."""

    files: list[str]
    output: Path | None = None
    model: Path | None = None
    noise: list[str] | None = None
    repeats: str | None = None
    axes: str | None = None
    channels: str | None = None
    dim: int | None = None
    nan: str = "refuse"
    preset: str = "auto"
    estimate: str | float | None = None
    std: bool = False
    interval: float | None = None
    samples: int = 0
    generator: bool = False
    dtype: str | None = None
    device: str = "auto"
    seed: int = 0
    max_time: str | None = None
    steps: int | None = None
    devices: int = 1
    nodes: int = 1
    strategy: str = "ddp"
    accumulate: int = 1
    resume: bool = False
    workers: int = 0
    scheduler: str | None = None
    tile_size: int | None = None
    tile_overlap: int = TILE_OVERLAP
    page: bool = True
    audit: bool = True
    force: bool = False
    dry_run: bool = False
    json: bool = False
    quiet: bool = False
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        if not self.quiet and not self.json:
            Console(highlight=False, soft_wrap=True).print(text, markup=False)

    @property
    def bars(self) -> bool:
        return not self.quiet and not self.json

    def finish(self, result: dict[str, Any]) -> int:
        if self.json:
            sys.stdout.write(
                json.dumps(result | {"seconds": round(time.monotonic() - self.started, 1)}, indent=2) + "\n"
            )
        return 0
