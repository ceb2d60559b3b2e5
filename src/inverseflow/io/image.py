"""`Image`: an array, the meaning of its axes, and what must survive the way through the denoiser.

`data` may be lazy: anything with `shape`, `dtype` and slicing that returns numpy will do, so a file larger than memory
is an ordinary `Image`. The axes are stated by the file or by the user; where neither does, `settle_axes` asks one
question and guesses nothing, because a Z stack that is denoised as a time series looks fine and is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import InputError

LETTERS = "STCZYX"
_EXAMPLES = {1: "X", 2: "YX or SC", 3: "TYX, ZYX or CYX", 4: "TZYX, TCYX or CZYX", 5: "TCZYX or TZCYX", 6: "STCZYX"}
_UNITS = {
    "µm": ("um", "μm", "\\u00b5m", "micron", "microns", "micrometer", "micrometre"),
    "nm": ("nanometer", "nanometre"),
    "mm": ("millimeter", "millimetre"),
    "cm": ("centimeter", "centimetre"),
    "m": ("meter", "metre"),
    "pm": ("picometer", "picometre"),
    "Å": ("angstrom",),
    "inch": ("in", "inches"),
    "s": ("sec", "second", "seconds"),
    "ms": ("msec", "millisecond"),
    "µs": ("us", "μs", "\\u00b5s", "usec", "microsecond"),
    "ns": ("nanosecond",),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "d": ("day", "days"),
}
_CANONICAL = {spelling: unit for unit, spellings in _UNITS.items() for spelling in spellings}


class ArrayLike(Protocol):
    """A numpy array, or something that gives one when it is sliced."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...


@dataclass(frozen=True, repr=False, eq=False)
class Image:
    """An image and what must survive: axes, sizes, names, and the metadata that writes the same kind of file again.

    `axes` has one of the letters S sample, T time, C channel, Z Y X space per dimension of `data`. `pixel_size` and
    `units` go by axis letter (T is the time between frames). `source_dtype` is the data type in the file, which
    `write(..., dtype="same")` returns to. `kind` says how the file was understood, `metadata` holds what only that
    kind of file knows.
    """

    data: ArrayLike
    axes: str
    pixel_size: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    channel_names: tuple[str, ...] = ()
    kind: str = "array"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source_dtype: np.dtype[Any] | None = None

    def __post_init__(self) -> None:
        check_axes(self.axes, self.shape)
        clean = _clean(self.pixel_size, self.units, self.channel_names)
        for name, value in zip(("pixel_size", "units", "channel_names"), clean, strict=True):
            object.__setattr__(self, name, value)
        if self.source_dtype is None:
            object.__setattr__(self, "source_dtype", self.dtype)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{a} {n:g} {self.units.get(a, '')}".strip() for a, n in self.pixel_size.items())
        named = "".join(f", {text}" for text in (sizes, "/".join(self.channel_names)) if text)
        return f"Image({self.axes} {self.shape}, {self.dtype}{named}, {self.kind})"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.data.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.data.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.data[...], dtype=dtype, copy=copy)

    def replace(self, data: ArrayLike, **changes: Any) -> Image:
        """The same image with other data (denoised, for example); the metadata and the source's data type stay."""
        return dataclasses.replace(self, data=data, **changes)


def check_axes(axes: str, shape: tuple[int, ...]) -> None:
    if len(axes) != len(shape):
        raise InputError(f"{axes} names {len(axes)} axes, but the array has {len(shape)} (shape {shape}).")
    if set(axes) - set(LETTERS) or len(set(axes)) < len(axes):
        raise InputError(f"The axes {axes} may use each of the letters {LETTERS} once.")


def settle_axes(path: Path, shape: tuple[int, ...], found: str | None, asked: str | None) -> str:
    """The axes that the user asked for, else those found in the file, else a question."""
    if asked is not None:
        asked = asked.upper()
        try:
            check_axes(asked, shape)
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from None
        return asked
    if found is None:
        raise InputError(
            f"What are the axes of {path.name}, shape {shape}? Say for example --axes "
            f"{_EXAMPLES.get(len(shape), 'TCZYX')} (axes=... in Python)."
        )
    return found


def unit_name(unit: Any) -> str:
    """One spelling per unit: "um", "micron" and "micrometer" are all "µm"; pixels are no unit."""
    text = str(unit).strip() if unit else ""
    known = _CANONICAL.get(text.lower(), text)
    return "" if known.lower() in ("pixel", "pixels", "px", "none") else known


def places(names: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where the channels that an image still has were in its source; None if their names do not tell."""
    if not wanted or len(set(names)) < len(names) or len(set(wanted)) < len(wanted) or not set(wanted) <= set(names):
        return None
    return [list(names).index(name) for name in wanted]


def printable(text: Any) -> str:
    """Text from a file without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in str(text)[:1000])


def _clean(sizes: Any, units: Any, names: Any) -> tuple[dict[str, float], dict[str, str], tuple[str, ...]]:
    """What a file says of its axes and channels, as far as it can be meant: finite sizes above 0, and text."""
    known = sizes.items() if isinstance(sizes, Mapping) else ()
    found = {a: float(n) for a, n in known if isinstance(n, int | float | np.number) and 0 < n < math.inf}
    words = units.items() if isinstance(units, Mapping) else ()
    listed = names if isinstance(names, list | tuple) else ()
    return found, {str(a): printable(unit) for a, unit in words}, tuple(printable(name) for name in listed)
