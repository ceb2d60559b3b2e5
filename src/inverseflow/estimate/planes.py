"""From what the user gives to planes: per channel a list of views (R, Y, X), R frames that show one view; of volumes
also slabs (R, Z, Y, X) of neighbouring planes.

Huge and lazy images are sampled: whole planes spread over all axes, of very large planes four windows, at most about
`VALUES` values in all. Pixels that a mask leaves out become NaN, and every block that holds one is dropped later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..io.image import Image, check_axes
from ..io.lazy import Stacked

Array = np.ndarray[Any, Any]
VALUES = 2**25
WINDOW = 1024
LARGEST_PLANE = 4 * WINDOW * WINDOW
SMALLEST_SIDE = 16
FRAMES = 8
"""Of a longer series of repeats, as many consecutive frames are read of each view."""
SLICES = 12
"""Neighbouring planes in a slab."""
SAME_VIEW = 0.9
"""Correlation of the 8 x 8 means of consecutive frames above which they are taken to show one view."""


@dataclass(frozen=True)
class Source:
    """One array of the user's, with its axes."""

    data: Any
    axes: str

    @property
    def size(self) -> dict[str, int]:
        return dict(zip(self.axes, self.data.shape, strict=True))

    def plane(self, place: dict[str, Any]) -> Array:
        """(Y, X), or (R, Y, X), (Z, Y, X), (R, Z, Y, X) where `place` leaves more axes whole."""
        values = self.data[tuple(place.get(letter, slice(None)) for letter in self.axes)]
        values = np.ma.filled(values.astype(np.float32), np.nan) if np.ma.isMaskedArray(values) else np.asarray(values)
        kept = [letter for letter in self.axes if not isinstance(place.get(letter, slice(None)), int)]
        order = sorted(range(len(kept)), key=lambda i: "ZYX".find(kept[i]))
        return np.ascontiguousarray(values.transpose(order), dtype=np.float32)


def as_sources(images: Any, axes: str | None) -> list[Source]:
    """Every array with its axes. Without `axes`: 2-D is YX, 4-D SCYX, 5-D SCZYX; an Image knows."""
    listed = list(images) if isinstance(images, list | tuple) else [images]
    if not listed:
        raise InputError("There are no images to estimate the noise from; give at least one.")
    return [_as_source(image, axes) for image in listed]


def _as_source(image: Any, axes: str | None) -> Source:
    if isinstance(image, str | Path):
        raise InputError(f"{str(image)!r} is the name of a file and not an image; give inverseflow.read of it.")
    if isinstance(image, Image):
        data, axes = image.data, image.axes
    else:
        data = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
        data = data if hasattr(data, "shape") and hasattr(data, "dtype") else np.asarray(data)
        axes = (axes or {2: "YX", 4: "SCYX", 5: "SCZYX"}.get(len(data.shape), "")).upper()
        if not axes:
            raise InputError(
                f"What are the axes of this {len(data.shape)}-D array of shape {tuple(data.shape)}? "
                "Pass for example axes='TYX', 'CYX' or 'ZYX'."
            )
        check_axes(axes, tuple(data.shape))
    if np.dtype(data.dtype).kind not in "biuf":
        raise InputError(f"Noise can be estimated from real numbers, not from {data.dtype}; convert the data first.")
    size = dict(zip(axes, data.shape, strict=True))
    if "Y" not in size or "X" not in size:
        raise InputError(f"Noise is estimated from images, which have the axes Y and X; these have {axes!r}.")
    if min(size["Y"], size["X"]) < SMALLEST_SIDE:
        raise InputError(
            f"An image of {size['Y']} x {size['X']} pixels is too small to estimate noise from; it needs at least "
            f"{SMALLEST_SIDE} x {SMALLEST_SIDE}."
        )
    return Source(data, axes)


def as_series(sources: list[Source], repeats: str | None, mask: Any) -> list[Source]:
    """Images that show one view, each in a file of its own, are the frames of one series: by default where they look
    it, with repeats="T" in any case.
    """
    first = sources[0]
    alike = all((one.axes, one.data.shape) == (first.axes, first.data.shape) for one in sources)
    wanted = (repeats is None or repeats.upper() == "T") and (mask is None or np.ndim(mask) == 2)
    if not wanted or not alike or len(sources) == 1 or "T" in first.axes:
        return sources
    series = Source(Stacked([one.data for one in sources]), f"T{first.axes}")
    return [series] if repeats or repeat_axis(series, None) else sources


def repeat_axis(source: Source, repeats: str | None) -> str:
    """The axis of the repeated frames: the one asked for, else T where its frames show one view, else none ("")."""
    if repeats is not None:
        letter = repeats.upper()
        if letter and (letter not in [*source.axes] or letter in "CYX"):
            raise InputError(
                f"repeats={repeats!r} must be one letter of {source.axes!r}, the axis of the repeated frames, and not"
                " C, Y or X."
            )
        return letter if letter and source.size[letter] > 1 else ""
    if source.size.get("T", 1) < 2:
        return ""
    size, middle = source.size, {letter: n // 2 for letter, n in source.size.items() if letter not in "TYX"}
    place = middle | {letter: _middle(size[letter], WINDOW) for letter in "YX"}
    first, second, last = (block_means(source.plane(place | {"T": t})) for t in (0, 1, size["T"] - 1))
    return "T" if min(correlation(first, second), correlation(first, last)) > SAME_VIEW else ""


def views(sources: Sequence[Source], axes: Sequence[str], channel: int, mask: Any) -> Iterator[tuple[int, Array]]:
    """(image number, (R, Y, X)) of one channel, spread over the whole data set within the budget."""
    wanted = [(n, place) for n, source in enumerate(sources) for place in _places(source, axes[n], channel)]
    for n, stack in _sampled(sources, wanted, mask, VALUES):
        yield n, stack if stack.ndim == 3 else stack[None]


def slabs(sources: Sequence[Source], axes: Sequence[str], channel: int, mask: Any) -> Iterator[Array]:
    """(R, Z, Y, X) of one channel: neighbouring planes of volumes, R = 2 where there are repeats, else 1."""
    wanted = [
        (n, place)
        for n, source in enumerate(sources)
        if source.size.get("Z", 1) > 1 and axes[n] != "Z"
        for place in _slab_places(source, axes[n], channel)
    ]
    for _, slab in _sampled(sources, wanted, mask, VALUES // 2):
        yield slab if slab.ndim == 4 else slab[None]


def _sampled(
    sources: Sequence[Source], wanted: Sequence[tuple[int, dict[str, Any]]], mask: Any, values: int
) -> Iterator[tuple[int, Array]]:
    if not wanted:
        return
    channels = max(source.size.get("C", 1) for source in sources)
    total = sum(_values(sources[n], place) for n, place in wanted)
    step = max(1.0, total * channels / values)
    for i in np.unique(np.arange(0, len(wanted), step).astype(int)):
        n, place = wanted[i]
        stack = sources[n].plane(place)
        keep = np.isfinite(stack)
        if mask is not None:
            keep &= np.broadcast_to(_mask(mask, sources[n], place), stack.shape)
        yield n, stack if keep.all() else np.where(keep, stack, np.float32(np.nan))


def _places(source: Source, repeated: str, channel: int) -> Iterator[dict[str, Any]]:
    size = source.size
    for place in _loops(source, "CYX" + repeated, channel):
        if repeated:
            place[repeated] = _middle(size[repeated], FRAMES)
        if size["Y"] * size["X"] <= LARGEST_PLANE:
            yield place
            continue
        for y in _quarters(size["Y"]):
            for x in _quarters(size["X"]):
                yield place | {"Y": y, "X": x}


def _slab_places(source: Source, repeated: str, channel: int) -> Iterator[dict[str, Any]]:
    size = source.size
    window = {letter: _middle(size[letter], WINDOW) for letter in "YX"}
    window |= {repeated: _middle(size[repeated], 2)} if repeated else {}
    for place in _loops(source, "CZYX" + repeated, channel):
        for start in range(0, max(size["Z"] - SLICES, 0) + 1, SLICES):
            yield place | window | {"Z": slice(start, min(start + SLICES, size["Z"]))}


def _loops(source: Source, whole: str, channel: int) -> Iterator[dict[str, Any]]:
    """Every place along the axes that are not taken whole."""
    loops = [letter for letter in source.axes if letter not in whole]
    for index in np.ndindex(*(source.size[letter] for letter in loops)):
        yield dict(zip(loops, map(int, index), strict=True)) | ({"C": channel} if "C" in source.size else {})


def _values(source: Source, place: dict[str, Any]) -> int:
    sides = [place.get(letter, slice(0, n)) for letter, n in source.size.items()]
    return int(np.prod([side.stop - side.start for side in sides if isinstance(side, slice)]))


def _quarters(n: int) -> list[slice]:
    if n <= 2 * WINDOW:
        return [slice(0, n)]
    return [slice(start, start + WINDOW) for start in (n // 4 - WINDOW // 2, 3 * n // 4 - WINDOW // 2)]


def _middle(n: int, most: int) -> slice:
    side = min(n, most)
    return slice((n - side) // 2, (n - side) // 2 + side)


def _mask(mask: Any, source: Source, place: dict[str, Any]) -> Array:
    values = mask.cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    size = source.size
    if values.shape == (size["Y"], size["X"]):
        part: Array = values[place.get("Y", slice(None)), place.get("X", slice(None))].astype(bool)
        return part
    if values.shape == tuple(source.data.shape):
        return Source(values, source.axes).plane(place).astype(bool)
    raise InputError(
        f"The mask has the shape {values.shape}; it must have the shape {tuple(source.data.shape)} of the data or "
        f"({size['Y']}, {size['X']}) of a plane, and be true where pixels may be used."
    )


def block_means(plane: Array) -> Array:
    """Means of 8 x 8 blocks, which hardly have noise."""
    y, x = (n // 8 * 8 for n in plane.shape)
    means: Array = plane[:y, :x].reshape(y // 8, 8, x // 8, 8).mean((1, 3), dtype=np.float64).ravel()
    return means


def correlation(a: Array, b: Array) -> float:
    good = np.isfinite(a) & np.isfinite(b)
    a, b = a[good], b[good]
    if a.size < 4 or not (a.std() and b.std()):
        return 0.0
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()))
