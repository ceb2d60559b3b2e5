"""Arrays that stay in their file until a region is asked for, and bands of rows on the way back.

Reading: a `LazyArray` turns any basic slice into one box `start <= i < stop` per axis; a format only has to read a box.
Writing: `bands` walks through an image in the order of the file, some whole rows of one plane at a time. Every pixel is
read once, and no more than a band is in memory.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import FileError
from .image import Image

Array = np.ndarray[Any, Any]
Box = tuple[int, ...]
BAND_BYTES = 16 * 2**20


class LazyArray(ABC):
    """`shape`, `dtype` and slicing of something on disk; a subclass says how to read one box of it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @abstractmethod
    def read_box(self, start: Box, stop: Box) -> Array:
        """The values with start <= index < stop, in native byte order, owned by the caller."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        keys = list(key) if isinstance(key, tuple) else [key]
        if not any(k is Ellipsis for k in keys):
            keys.append(Ellipsis)
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) != self.ndim:
            raise IndexError(f"{key!r} has more indices than the {self.ndim} axes of the array.")
        start, stop, inner = [], [], []
        for k, n in zip(keys, self.shape, strict=True):
            chosen = range(n)[k] if isinstance(k, slice) else (range(n)[operator.index(k)],)
            start.append(min(chosen, default=0))
            stop.append(max(chosen, default=-1) + 1)
            inner.append(slice(None, None, k.step) if isinstance(k, slice) else 0)
        return self.read_box(tuple(start), tuple(stop))[tuple(inner)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[...], dtype=dtype)


class Reordered(LazyArray):
    """An array with its axes in another order."""

    def __init__(self, data: Any, order: Sequence[int]) -> None:
        self._data, self._order = data, tuple(order)
        self.shape, self.dtype = tuple(data.shape[axis] for axis in order), data.dtype

    def read_box(self, start: Box, stop: Box) -> Array:
        box = [slice(None)] * self.ndim
        for axis, a, b in zip(self._order, start, stop, strict=True):
            box[axis] = slice(a, b)
        return np.asarray(self._data[tuple(box)]).transpose(self._order)


class Stacked(LazyArray):
    """Arrays of one shape along a new first axis."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = list(parts)
        self.shape = (len(self._parts), *parts[0].shape)
        self.dtype = np.result_type(*(part.dtype for part in parts))

    def read_box(self, start: Box, stop: Box) -> Array:
        inside = tuple(map(slice, start[1:], stop[1:]))
        return np.stack([np.asarray(part[inside], self.dtype) for part in self._parts[start[0] : stop[0]]])


class MappedArray(LazyArray):
    """Uncompressed values that lie in one piece in a file."""

    def __init__(
        self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, *, fortran: bool = False
    ) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype.newbyteorder("=")
        self._stored, self._offset, self._order = dtype, offset, "F" if fortran else "C"
        end = offset + math.prod(shape) * dtype.itemsize
        if end > path.stat().st_size:
            raise FileError(f"{path} ends before its data does; it is truncated, so copy it again from its source.")

    def read_box(self, start: Box, stop: Box) -> Array:
        return read_mapped(self.path, self._stored, self.shape, self._offset, start, stop, self._order)


def read_mapped(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int, start: Box, stop: Box, order: Any = "C"
) -> Array:
    """Copy a box out of a file, run by run. No memory map: under one, a disk that fails kills the process."""
    if order == "F":
        return read_mapped(path, dtype, shape[::-1], offset, start[::-1], stop[::-1]).T
    size = tuple(b - a for a, b in zip(start, stop, strict=True))
    cut = max((axis for axis, n in enumerate(shape) if size[axis] < n), default=0)  # behind it, all is taken
    found = np.empty(size, dtype)
    if not found.size:
        return found
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = sum(a * step for a, step in zip(start, strides, strict=True))
    runs = found.reshape(math.prod(size[:cut]), -1).view(np.uint8)
    try:
        with open(path, "rb", buffering=0) as file:
            for run, index in zip(runs, np.ndindex(*size[:cut]), strict=False):
                place = first + sum(i * step for i, step in zip(index, strides, strict=False))
                file.seek(offset + place * dtype.itemsize)
                fill(file, run)
    except (OSError, ValueError, OverflowError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else "it is shorter than it was"
        raise FileError(f"{path} changed or disappeared while it was read ({said}); read it again.") from error
    return found.astype(dtype.newbyteorder("="), copy=False)


def fill(file: IO[bytes], run: Array) -> None:
    done = 0
    while done < len(run):
        got = file.readinto(run[done:])  # type: ignore[attr-defined]
        if not got:
            raise ValueError("the file ends")
        done += got


def bands(image: Image, order: str, dtype: np.dtype[Any], *, rows: int = 0) -> Iterator[Array]:
    """The image with its axes in another order, as blocks of whole rows of one plane: (rows, X) or (rows, X, C).

    `order` names every axis; what stands before Y is walked through, Y is cut into bands of `rows` (0: as many as fit
    the budget), what stands after Y is whole.
    """
    at = order.index("Y")
    size = dict(zip(image.axes, image.shape, strict=True))
    kept = [letter for letter in image.axes if letter in order[at:]]
    rows = rows or rows_per_band(image, order)
    for index in np.ndindex(*(size[letter] for letter in order[:at])):
        where: dict[str, Any] = dict(zip(order[:at], index, strict=True))
        for y in range(0, size["Y"], rows):
            where["Y"] = slice(y, min(y + rows, size["Y"]))
            block = np.asarray(image.data[tuple(where.get(letter, slice(None)) for letter in image.axes)])
            yield cast(block.transpose([kept.index(letter) for letter in order[at:]]), dtype)


def rows_per_band(image: Image, order: str, multiple: int = 1) -> int:
    """Rows that fit the budget in double precision, a multiple of the source's chunk (or the target's) if possible."""
    size = dict(zip(image.axes, image.shape, strict=True))
    row = 8 * int(np.prod([size[letter] for letter in order[order.index("Y") + 1 :]], dtype=np.int64))
    chunks = getattr(image.data, "chunks", None)
    if multiple == 1 and chunks and isinstance(chunks[0], int):
        multiple = chunks[image.axes.index("Y")]
    return min(max(BAND_BYTES // max(row, 1) // multiple, 1) * multiple, size["Y"])


def cast(block: Array, dtype: np.dtype[Any]) -> Array:
    """To the type of the file: integers are rounded half to even and clipped, never wrapped around."""
    if block.dtype == dtype or dtype.kind == "f" or block.dtype.kind == "b":
        return np.ascontiguousarray(block, dtype=dtype)
    info = np.iinfo(dtype)
    low, high = info.min, info.max
    if block.dtype.kind == "f":
        if np.isnan(block).any():
            raise FileError(f"The image has NaN, which {dtype} cannot hold; write it as float32.")
        # In double precision every bound but the 64-bit ones is exact; those step inwards.
        ceiling = float(high) if int(float(high)) <= high else float(np.nextafter(float(high), 0))
        return np.clip(np.rint(block.astype(np.float64)), float(low), ceiling).astype(dtype, order="C")
    have = np.iinfo(block.dtype)
    return np.clip(block, max(low, have.min), min(high, have.max)).astype(dtype, order="C")


def target_dtype(image: Image, dtype: Any) -> np.dtype[Any]:
    """None: floating point as float32, integers as they are. "same": as in the source. Else what the caller says."""
    if dtype is None:
        chosen = np.dtype(np.float32) if image.dtype.kind == "f" else image.dtype
    else:
        chosen = np.dtype(image.source_dtype if isinstance(dtype, str) and dtype == "same" else dtype)
    if chosen.kind not in "biuf" or image.dtype.kind not in "biuf":
        raise FileError(f"An image of {image.dtype} cannot be written as {chosen}; give real numbers.")
    return np.dtype(np.uint8) if chosen.kind == "b" else chosen.newbyteorder("=")
