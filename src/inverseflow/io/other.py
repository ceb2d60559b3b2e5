"""CZI, ND2, LIF and the other microscopes' formats, through bioio and its readers (read only)."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from .bounds import check_contents
from .image import Image, settle_axes
from .lazy import Array, Box, LazyArray

# Which package reads a suffix; bioio itself is only the frame that they plug into.
READERS = {
    ".czi": "bioio-czi",
    ".nd2": "bioio-nd2",
    ".lif": "bioio-lif",
    ".dv": "bioio-dv",
    ".sldy": "bioio-sldy",
    ".oir": "bioio-bioformats",
    ".oib": "bioio-bioformats",
    ".vsi": "bioio-bioformats",
    ".ims": "bioio-bioformats",
    ".lsm": "bioio-bioformats",
}


class Blocks(LazyArray):
    """A dask array, of which a box is computed when it is asked for."""

    def __init__(self, blocks: Any, shape: tuple[int, ...]) -> None:
        self._blocks, self.shape, self.dtype = blocks.reshape(shape), shape, np.dtype(blocks.dtype)

    def read_box(self, start: Box, stop: Box) -> Array:
        return np.asarray(self._blocks[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))])


def read(path: Path, axes: str | None) -> Image:
    package = READERS.get(path.suffix.lower(), "bioio-bioformats")
    try:
        reader = importlib.import_module("bioio").BioImage
    except ImportError as error:
        raise FileError(
            f"{path.name} needs two more packages to be read: pip install 'inverseflow[bioio]' {package}."
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the readers among themselves
            image = reader(path)
            blocks, order = image.dask_data, str(image.dims.order)
    except Exception as error:
        raise FileError(
            f"{path} could not be read by bioio: pip install {package} if it is missing, else the file is damaged."
        ) from error
    if len(image.scenes) > 1:
        warnings.warn(
            f"{path.name} holds {len(image.scenes)} scenes; only the first is read: save the others as files of their "
            "own.",
            stacklevel=3,
        )
    return _image(path, image, blocks, order, axes)


def _image(path: Path, source: Any, blocks: Any, order: str, axes: str | None) -> Image:
    check_contents(path, tuple(blocks.shape), np.dtype(blocks.dtype))
    pairs = [(letter, int(n)) for letter, n in zip(order, blocks.shape, strict=True) if n > 1 or letter in "YX"]
    letters, shape = "".join(letter for letter, _ in pairs), tuple(n for _, n in pairs)
    if "C" not in letters:
        letters = letters.replace("S", "C")  # bioio's S is the samples of a pixel, as in RGB
    found = letters if set(letters) <= set("TCZYX") and len(set(letters)) == len(letters) else None
    scale = source.physical_pixel_sizes
    size = {letter: float(n) for letter in "ZYX" if (n := getattr(scale, letter, None))}
    units = dict.fromkeys(size, "µm")
    if (interval := getattr(source, "time_interval", None)) is not None:
        seconds = interval.total_seconds() if hasattr(interval, "total_seconds") else float(interval)
        if seconds > 0:
            size["T"], units["T"] = seconds, "s"
    names = tuple(str(name) for name in source.channel_names or ())
    kind = path.suffix.lower().lstrip(".")
    data = Blocks(blocks, shape)
    return Image(data, settle_axes(path, shape, found, axes), size, units, names, kind=kind)
