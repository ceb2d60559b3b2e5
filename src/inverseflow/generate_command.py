"""`inverseflow generate`: new clean images into a folder, and all of them on one sheet."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from .errors import UsageError
from .generator import Generator
from .io import Image, write
from .logs import bar
from .outputs import refuse_existing

AT_ONCE = 8


def generate_images(
    model: Path, count: int, output: Path, size: int | None, seed: int, device: str, *, force: bool, quiet: bool
) -> int:
    if count < 1:
        raise UsageError(f"How many images? Give -n a number above 0, not {count}.")
    generator = Generator.load(model, device=device)
    digits = max(3, len(str(count)))
    images = [output / f"generated_{number + 1:0{digits}}.tif" for number in range(count)]
    sheet = output / "sheet.png"
    refuse_existing([*images, sheet], force=force, inputs=[model])
    output.mkdir(parents=True, exist_ok=True)
    draws = []
    with bar("drawing", enabled=not quiet) as update:
        for first in range(0, count, AT_ONCE):
            part = min(AT_ONCE, count - first)
            draws.append(generator.sample(part, size=size, seed=1_000_003 * seed + first))
            update((first + part) / count)
    axes = generator.axes.removeprefix("S")
    for path, values in zip(images, torch.cat(draws).numpy(), strict=True):
        write(path, Image(values, axes), overwrite=force)
    write(sheet, Image(contact_sheet(torch.cat(draws).numpy()), "YX"), dtype="uint8", overwrite=force)
    Console(highlight=False, soft_wrap=True, quiet=quiet).print(f"Wrote {count} images and {sheet}.", markup=False)
    return 0


def contact_sheet(draws: np.ndarray) -> np.ndarray:
    """The first channel (and the middle slice of volumes) of all of them, in rows, as grey values 0 to 255."""
    planes = draws[:, 0]
    planes = planes[:, planes.shape[1] // 2] if planes.ndim == 4 else planes
    columns = math.ceil(math.sqrt(len(planes)))
    missing = -len(planes) % columns
    low, high = np.percentile(planes, (0.1, 99.9))
    grey = np.clip((planes - low) / max(high - low, 1e-30), 0, 1) * 255
    grey = np.concatenate([grey, np.zeros((missing, *grey.shape[1:]))]) if missing else grey
    rows = [np.concatenate(list(row), axis=1) for row in np.split(grey, len(grey) // columns)]
    return np.concatenate(rows).astype(np.float32)
