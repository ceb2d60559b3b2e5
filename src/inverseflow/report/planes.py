"""Which planes a page shows, and how: read one at a time, encoded as 8-bit PNG, within a limit of bytes.

Each picture is encoded over its own range of values and states that range, so that the browser can go back to data
units and show both sides, or their difference, with the same contrast.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError

Plane = npt.NDArray[np.float32]

MAX_BYTES = 14_000_000  # of all pictures in base64; the rest of a page is small
MAX_POSITIONS = 64
LONG_SIDES = (1024, 768, 512, 384, 256, 192, 128, 64)
DETAIL = 512
CONTRAST = (0.1, 99.9)  # percentiles of the denoised plane
MAX_SAMPLE = 4_000_000  # pixels that are enough for a percentile


@dataclass(frozen=True)
class Plan:
    """What is shown of the data: the indices along S, T and Z, the reduction, and the place of the detail."""

    axes: str
    shape: tuple[int, ...]
    indices: dict[str, list[int]]  # of "S", "T", "Z", as far as the data has them
    factor: int  # the overview shows means of factor x factor pixels; 1: the whole plane as it is
    detail: tuple[int, int]  # height and width of the full-resolution part, used when factor > 1

    @property
    def channels(self) -> int:
        return self.size("C")

    @property
    def positions(self) -> list[dict[str, int]]:
        return [dict(zip(self.indices, chosen, strict=True)) for chosen in itertools.product(*self.indices.values())]

    def size(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)] if axis in self.axes else 1


def plan(shape: tuple[int, ...], axes: str) -> Plan:
    """As many evenly spaced planes, as sharp as fits into MAX_BYTES; at least three planes before full sharpness."""
    if len(set(axes)) != len(axes) or len(axes) != len(shape) or not {"Y", "X"} <= set(axes) <= set("STCZYX"):
        raise InputError(
            f"A report cannot show axes {axes!r} of an array of shape {shape}; give one letter of STCZYX per "
            f"dimension, with Y and X among them."
        )
    if 0 in shape:
        raise InputError(f"A report cannot show an array of shape {shape}, which has no pixel.")
    sizes = dict(zip(axes, shape, strict=True))
    stack = {axis: sizes[axis] for axis in "STZ" if axis in sizes}
    total = math.prod(stack.values())
    for side in LONG_SIDES:
        factor = -(-max(sizes["Y"], sizes["X"]) // side)
        detail = (min(sizes["Y"], DETAIL, side), min(sizes["X"], DETAIL, side))
        pixels = -(-sizes["Y"] // factor) * -(-sizes["X"] // factor) + (math.prod(detail) if factor > 1 else 0)
        # noise does not compress: count one byte per pixel, four thirds of it in base64, before and after
        fitting = int(MAX_BYTES / (sizes.get("C", 1) * 2 * (pixels + 200) * 4 / 3))
        if fitting >= min(3, total):
            break
    counts = thin(stack, min(max(fitting, 1), MAX_POSITIONS))
    indices = {axis: spaced(size, counts[axis]) for axis, size in stack.items()}
    return Plan(axes, shape, indices, factor, detail)


def thin(sizes: dict[str, int], most: int) -> dict[str, int]:
    """How many of each axis to keep so that at most `most` combinations remain; the longest axis gives first."""
    counts = dict(sizes)
    while math.prod(counts.values()) > most:
        longest = max(counts, key=lambda axis: counts[axis])
        others = math.prod(counts.values()) // counts[longest]
        second = max((n for axis, n in counts.items() if axis != longest), default=1)
        counts[longest] = min(counts[longest] - 1, max(most // others, second, 1))
    return counts


def spaced(size: int, count: int) -> list[int]:
    """`count` evenly spaced indices including both ends; a single one is the middle."""
    if count == 1:
        return [size // 2]
    return [round(i * (size - 1) / (count - 1)) for i in range(count)]


def read_plane(array: Any, shown: Plan, position: dict[str, int], channel: int) -> Plane:
    """One (Y, X) plane in single precision; only this plane is read from a lazy array."""
    at = {**position, "C": channel}
    key = tuple(slice(None) if axis in "YX" else at[axis] for axis in shown.axes)
    plane: Plane = np.asarray(array[key]).astype(np.float32)
    return plane.T if shown.axes.index("Y") > shown.axes.index("X") else plane


def block_mean(plane: Plane, factor: int) -> Plane:
    """Means of what is known of factor x factor pixels; the blocks at the lower and right edge may be smaller."""
    if factor == 1:
        return plane
    known = np.isfinite(plane)
    sums, counts = np.where(known, plane, 0.0).astype(np.float64), known.astype(np.float64)
    for axis, size in enumerate(plane.shape):
        starts = np.arange(0, size, factor)
        sums, counts = (np.add.reduceat(x, starts, axis=axis) for x in (sums, counts))
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0).astype(np.float32)


def finite_sample(plane: Plane) -> npt.NDArray[np.float64]:
    step = math.ceil(math.sqrt(plane.size / MAX_SAMPLE))
    sample = plane[::step, ::step].astype(np.float64)
    sample = sample[np.isfinite(sample)]
    return sample if sample.size else np.zeros(1)


def window(plane: Plane) -> tuple[float, float]:
    """The contrast limits of a denoised plane, never empty."""
    low, high = (float(value) for value in np.percentile(finite_sample(plane), CONTRAST))
    return (low, high) if high > low else (low, low + 1)


def encode(plane: Plane) -> dict[str, Any]:
    """The PNG of a plane, whose grey level g stands for low + g (high - low) / 255.

    The range is the plane's own, but at most one contrast window beyond the percentiles: a few hot pixels would
    otherwise take the 256 levels from everything else.
    """
    finite = finite_sample(plane)
    low, high = (float(value) for value in np.percentile(finite, CONTRAST))
    room = high - low or math.inf
    low, high = max(float(finite.min()), low - room), min(float(finite.max()), high + room)
    if not high > low:
        high = low + 1
    levels = np.nan_to_num((plane - low) * (255 / (high - low)), nan=0.0, posinf=255, neginf=0)
    return {"src": png(np.clip(np.rint(levels), 0, 255).astype(np.uint8)), "low": low, "high": high}


def png(levels: npt.NDArray[np.uint8]) -> str:
    """A grey picture as a data: address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def detail_corner(after: Any, shown: Plan) -> tuple[int, int]:
    """Where the full-resolution part starts (y, x): the part with most structure in the middle plane, all channels.

    Structure is the mean distance from the median, taken from the overview and made comparable between channels.
    """
    middle = shown.positions[len(shown.positions) // 2]
    box = [max(1, size // shown.factor) for size in shown.detail]
    score: Any = 0.0
    for channel in range(shown.channels):
        small = np.nan_to_num(block_mean(read_plane(after, shown, middle, channel), shown.factor).astype(np.float64))
        distance = np.abs(small - np.median(small))
        sums = np.pad(distance, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
        boxes = sums[box[0] :, box[1] :] - sums[: -box[0], box[1] :] - sums[box[0] :, : -box[1]]
        boxes = boxes + sums[: -box[0], : -box[1]]
        score = score + boxes / max(float(boxes.max()), 1e-30)
    y, x = np.unravel_index(int(np.argmax(score)), score.shape)
    limits = (shown.size("Y") - shown.detail[0], shown.size("X") - shown.detail[1])
    return min(int(y) * shown.factor, limits[0]), min(int(x) * shown.factor, limits[1])


def pictures(before: Any, after: Any, shown: Plan, corner: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """For each position and channel: contrast limits, the residual's figures, and one or two pairs of pictures."""
    part = tuple(slice(start, start + size) for start, size in zip(corner, shown.detail, strict=True))
    for position in shown.positions:
        for channel in range(shown.channels):
            noisy, clean = (read_plane(array, shown, position, channel) for array in (before, after))
            views = [[encode(block_mean(side, shown.factor)) for side in (noisy, clean)]]
            if shown.factor > 1:
                views.append([encode(side[part]) for side in (noisy, clean)])
            low, high = window(clean)
            yield {"low": low, "high": high, "views": views, "residual": residual(noisy, clean)}


def residual(noisy: Plane, clean: Plane) -> dict[str, Any]:
    """Mean, standard deviation and histogram of before - after, from all pixels of the plane at full resolution."""
    difference = (noisy - clean).ravel()
    difference = difference[np.isfinite(difference)]
    if not difference.size:
        difference = np.zeros(1, np.float32)
    mean, std = float(difference.mean(dtype=np.float64)), float(difference.std(dtype=np.float64))
    reach = 4.5 * (std or 1.0)
    counts, edges = np.histogram(difference, bins=72, range=(mean - reach, mean + reach))
    return {"mean": mean, "std": std, "counts": counts, "edges": edges, "size": difference.size}
