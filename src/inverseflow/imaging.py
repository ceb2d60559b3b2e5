"""Denoisers and image files: what of them is trained on, and how one is applied to an image of any size.

An image is a set of planes (Y, X) or volumes (Z, Y, X), the samples, that are denoised one by one; S and T always count
samples, Z does where planes are denoised (`choose_dimensions`). Only a band of one sample is ever in memory, and what
is finished goes to a file if it is large.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import tiling
from .axes import Layout
from .denoiser import Denoiser
from .disk import reserve, writing
from .errors import InputError
from .io import Image
from .io.lazy import LazyArray
from .masking import missing, refuse_missing
from .tiling import TILE_OVERLAP

IN_MEMORY = 2**28  # bytes of a result that are kept in memory; more goes to a scratch file
TRAIN_PIXELS = 2**26  # more are not read for training: 256 MB of float32
MIN_VOLUME = 8  # slices; fewer are denoised as planes
MAX_ANISOTROPY = 5.0  # of the distance between slices and pixels; beyond it neighbouring slices tell little
EXACT = {"f": 4, "i": 2, "u": 2}  # bytes of a number that float32 holds exactly
_METRES = {"Å": 1e-10, "nm": 1e-9, "µm": 1e-6, "mm": 1e-3, "cm": 1e-2, "m": 1.0}

Report = Callable[[float], None]


def choose_dimensions(image: Image, dim: int | None = None) -> tuple[str, str]:
    """The axes denoised together, "YX" or "ZYX", and why, in a few words."""
    if "Y" not in image.axes or "X" not in image.axes:
        raise InputError(f"The axes {image.axes} have no plane YX to denoise; say how the file is meant with --axes.")
    if "Z" not in image.axes:
        if dim == 3:
            raise InputError(f"The axes {image.axes} have no Z; denoise in 2D, or name the depth axis with --axes.")
        return "YX", "no Z axis"
    if dim is not None:
        return ("ZYX" if dim == 3 else "YX"), "as asked for"
    slices = image.shape[image.axes.index("Z")]
    if slices < MIN_VOLUME:
        return "YX", f"only {slices} slices"
    apart = _slices_apart(image)
    if apart is not None and apart > MAX_ANISOTROPY:
        return "YX", f"slices are {apart:.1f} pixels apart"
    return "ZYX", f"{slices} slices" + ("" if apart is None else f", {apart:.1f} pixels apart")


def _slices_apart(image: Image) -> float | None:
    """The distance between slices in pixels; None if the file does not say it, or in units that do not compare."""
    z, x = (image.pixel_size.get(letter) for letter in "ZX")
    if not z or not x:
        return None
    units = [image.units.get(letter, "") for letter in "ZX"]
    if units[0] == units[1]:
        return z / x
    metres = [_METRES.get(unit) for unit in units]
    return z * metres[0] / (x * metres[1]) if metres[0] and metres[1] else None


def select_channels(image: Image, channels: Sequence[int]) -> Image:
    """Some channels of an image, still unread."""
    count = image.shape[image.axes.index("C")] if "C" in image.axes else 1
    outside = [channel for channel in channels if not 0 <= channel < count]
    if outside:
        raise InputError(f"There is no channel {outside[0]}; the image has {count}, counted from 0.")
    if "C" not in image.axes:
        return image
    names = tuple(image.channel_names[channel] for channel in channels) if len(image.channel_names) == count else ()
    return image.replace(Chosen(image.data, image.axes.index("C"), channels), channel_names=names)


class Chosen(LazyArray):
    """An array of which only some places along one axis are there."""

    def __init__(self, data: Any, axis: int, chosen: Sequence[int]) -> None:
        self._data, self._axis, self.chosen = data, axis, list(chosen)
        self.shape = (*data.shape[:axis], len(self.chosen), *data.shape[axis + 1 :])
        self.dtype = data.dtype

    def read_box(self, start: tuple[int, ...], stop: tuple[int, ...]) -> np.ndarray[Any, Any]:
        box = [slice(a, b) for a, b in zip(start, stop, strict=True)]
        before, after = box[: self._axis], box[self._axis + 1 :]
        chosen = self.chosen[box[self._axis]]
        return np.stack([np.asarray(self._data[(*before, place, *after)]) for place in chosen], axis=self._axis)


def chosen_channels(image: Image) -> tuple[int, ...] | None:
    return tuple(image.data.chosen) if isinstance(image.data, Chosen) else None


class Samples:
    """The samples of an image: `for index in samples: samples.read(index, region)` gives (C, *region), in float32 where
    that holds the values. An image with missing values is refused unless they are to be masked.
    """

    def __init__(self, image: Image, spatial: str, nan: str = "refuse") -> None:
        self.image, self.spatial, self.nan = image, spatial, nan
        self.dtype = (
            np.float64 if image.dtype.kind in "iuf" and image.dtype.itemsize > EXACT[image.dtype.kind] else np.float32
        )
        size = dict(zip(image.axes, image.shape, strict=True))
        missing = [letter for letter in spatial if letter not in size]
        if missing:
            raise InputError(
                f"One image is denoised as {spatial}, but another has the axes {image.axes} without {missing[0]}; give "
                "them apart, or denoise all in 2D with --dim 2."
            )
        self.shape = tuple(size[letter] for letter in spatial)
        self.loops = [letter for letter in image.axes if letter not in spatial and letter != "C"]
        self._counts = [size[letter] for letter in self.loops]
        self.channels = size.get("C", 1)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(n) for n in self._counts))

    def __len__(self) -> int:
        return int(np.prod(self._counts, dtype=np.int64))

    def spread(self, wanted: int) -> list[tuple[int, ...]]:
        """So many of them, evenly spread."""
        numbers = [int((k + 0.5) * len(self) / wanted) for k in range(wanted)]
        return [tuple(map(int, np.unravel_index(n, self._counts))) if self._counts else () for n in numbers]

    def where(self, index: tuple[int, ...], region: tuple[slice, ...], channel: int) -> tuple[Any, ...]:
        """The place in the image's own order of axes."""
        place: dict[str, Any] = dict(zip(self.loops, index, strict=True)) | dict(zip(self.spatial, region, strict=True))
        place["C"] = channel
        return tuple(place[letter] for letter in self.image.axes)

    def read(self, index: tuple[int, ...], region: tuple[slice, ...]) -> Tensor:
        order = [letter for letter in self.image.axes if letter in self.spatial]
        planes = []
        for channel in range(self.channels):
            values = np.asarray(self.image.data[self.where(index, region, channel)], dtype=self.dtype)
            planes.append(values.transpose([order.index(letter) for letter in self.spatial]))
        x = torch.from_numpy(np.ascontiguousarray(np.stack(planes)))
        if self.nan == "refuse" and bool(missing(x).any()):
            refuse_missing(self.image.data, self.image.axes, "The image")
        return x


def training_samples(images: Iterable[Samples], limit: int = TRAIN_PIXELS) -> list[Tensor]:
    """Samples (C, *S) in memory. If there are too many: some, or blocks of them, from all over the images."""
    images = list(images)
    pixels = sum(len(samples) * int(np.prod(samples.shape)) * samples.channels for samples in images)
    share = min(1.0, limit / pixels)
    chosen = []
    for samples in images:
        wanted = max(1, round(share * len(samples)))
        # A part of the samples, evenly spread; where even one is too large, a part of each of its long axes.
        part = min(1.0, share * len(samples) / wanted) ** (1 / len(samples.shape))
        for index in samples.spread(wanted):
            sizes = [max(min(n, 64), int(n * part)) for n in samples.shape]
            if part < 1:  # four blocks of a quarter each see more of the image than its centre alone
                sizes = [max(min(n, 64), size // 2) for n, size in zip(samples.shape, sizes, strict=True)]
            for corner in itertools.product(*((0.25, 0.75) if part < 1 else (0.5,) for _ in sizes)):
                starts = [int((n - k) * c) for n, k, c in zip(samples.shape, sizes, corner, strict=True)]
                chosen.append(samples.read(index, tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))))
    return chosen


@contextmanager
def scratch(shape: tuple[int, ...], folder: Path | None = None) -> Iterator[Any]:
    """A float32 array to be filled: in memory, or beyond a size in a temporary file in `folder`."""
    size = math.prod(shape) * 4
    if size <= IN_MEMORY:
        yield np.zeros(shape, np.float32)
        return
    with tempfile.TemporaryFile(dir=folder) as file:  # it has no name, so nothing is left of it, whatever happens
        with writing((folder or Path(tempfile.gettempdir())) / "a scratch file", size):
            reserve(file, size)
        yield _OnDisk(file, shape)


class _OnDisk:
    """An array in a file, mapped only while it is touched, so that its pages do not pile up in memory."""

    dtype = np.dtype(np.float32)

    def __init__(self, file: Any, shape: tuple[int, ...]) -> None:
        self.file, self.shape = file, shape

    def _mapped(self) -> np.ndarray[Any, Any]:
        return np.memmap(self.file, self.dtype, "r+", shape=self.shape)

    def __getitem__(self, key: Any) -> np.ndarray[Any, Any]:
        return np.array(self._mapped()[key])

    def __setitem__(self, key: Any, values: Any) -> None:
        self._mapped()[key] = values


def denoise_image(
    model: Denoiser,
    image: Image,
    targets: Sequence[Any],
    *,
    estimate: str | float | None = None,
    std: bool = False,
    quantiles: Sequence[float] = (),
    nan: str = "refuse",
    tile_size: int | None = None,
    tile_overlap: int = TILE_OVERLAP,
    report: Report | None = None,
) -> list[Image]:
    """Denoise into `targets` (see `scratch`), one for the estimate and for each further thing that is asked for, and
    return the image with each of them as data; `report` gets the part done.
    """
    function = model.function(estimate, std=std, quantiles=quantiles)
    _apply(model, function, samples_for(model, image, nan), targets, None, tile_size, tile_overlap, report)
    return [image.replace(target) for target in targets]


def sample_image(
    model: Denoiser,
    image: Image,
    target: Any,
    seed: int,
    *,
    nan: str = "refuse",
    tile_size: int | None = None,
    tile_overlap: int = TILE_OVERLAP,
    report: Report | None = None,
) -> Image:
    """One other possible truth, drawn into `target`."""
    _apply(model, model.sampler(), samples_for(model, image, nan), [target], seed, tile_size, tile_overlap, report)
    return image.replace(target)


def _apply(
    model: Denoiser,
    function: Callable[[Tensor], Tensor],
    samples: Samples,
    targets: Sequence[Any],
    seed: int | None,
    tile_size: int | None,
    tile_overlap: int,
    report: Report | None,
) -> None:
    """`function` on every sample, band by band. With a seed it is also shown standard normal values."""
    image, spatial = samples.image, samples.spatial
    tile, batch, overlap = model.tile(samples.shape, tile_size, tile_overlap)
    order = [spatial.index(letter) for letter in image.axes if letter in spatial]
    whole = [slice(0, n) for n in samples.shape]
    for number, index in enumerate(samples):

        def read(region: tuple[slice, ...], index: tuple[int, ...] = index, number: int = number) -> Tensor:
            x = samples.read(index, region)
            if seed is None:
                return x
            return torch.cat([x, normal_field((seed, number), samples.channels, samples.shape, region)])

        parts = tiling.bands(
            function, read, samples.shape, tile=tile, overlap=overlap, multiple=model.multiple, batch=batch
        )
        for rows, band in parts:
            for target, values in zip(targets, torch.split(band, samples.channels), strict=True):
                for channel, plane in enumerate(values.numpy()):
                    target[samples.where(index, (rows, *whole[1:]), channel)] = plane.transpose(order)
            if report:
                report((number + rows.stop / samples.shape[0]) / len(samples))


def samples_for(model: Denoiser, image: Image, nan: str = "refuse") -> Samples:
    """The samples of an image as a model sees them, if it can."""
    spatial = Layout(model.axes, ()).spatial
    if any(letter not in image.axes for letter in spatial):
        raise InputError(f"This model denoises {spatial}, but the image has the axes {image.axes}; train one for it.")
    samples = Samples(image, spatial, nan)
    if samples.channels != model.channels:
        raise InputError(
            f"This model was trained on {model.channels} channels, but the image has {samples.channels}; "
            "choose with --channels, or train a model for it."
        )
    return samples


def normal_field(seed: tuple[int, ...], channels: int, shape: Sequence[int], region: tuple[slice, ...]) -> Tensor:
    """The (C, *region) part of standard normal values of a whole sample, which neighbouring tiles must share: every row
    has its own generator.
    """
    rows = [
        np.random.default_rng((*seed, row)).standard_normal((channels, *shape[1:]), dtype=np.float32)
        for row in range(region[0].start, region[0].stop)
    ]
    return torch.from_numpy(np.stack(rows, axis=1)[(slice(None), slice(None), *region[1:])].copy())
