"""OME-Zarr 0.4 (zarr 2) and 0.5 (zarr 3): arrays through zarr, the NGFF metadata through ome-zarr-models.

The image is level 0 of a pyramid; it is read chunk by chunk. Written are as many levels as the source had, each the
mean of 2 x 2 pixels of the level before. With pixel centres at the coordinates, level k has its first centre shifted
by (2^k - 1) / 2 pixels of level 0; the metadata say so.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from . import ngff
from .bounds import is_damage
from .image import Image, settle_axes
from .lazy import Array, cast, target_dtype
from .zarrdata import check_metadata, open_array

_CHUNK = 512
_SHARD_BYTES = 64 * 2**20


def is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zattrs", ".zarray"))


def read(path: Path, axes: str | None) -> Image:
    zarr = _zarr()
    if not is_zarr(path):
        raise FileError(f"{path} is a folder and not an OME-Zarr image; give a file, or a pattern like '{path}/*.tif'.")
    group, attributes, version = _image_group(zarr, path)
    if len(attributes["multiscales"]) > 1:
        warnings.warn(f"{path.name} holds several images (multiscales); only the first is read.", stacklevel=3)
    (scale, shift), level, found = ngff.parse(path, attributes["multiscales"][0], version)
    arrays = [open_array(path, group, dataset.path) for dataset in level.datasets]
    data = arrays[0]
    if data.ndim != len(level.axes):
        raise FileError(f"{path} has {data.ndim} dimensions but names {len(level.axes)} axes; it is damaged.")
    letters = settle_axes(path, data.shape, found, axes)
    size, units = ngff.sizes(letters, level.axes, scale)
    names = ngff.channel_names(ngff.listed(attributes.get("omero")))
    metadata = {
        "version": version,
        "chunks": data.chunks,
        "shards": data.shards,
        "levels": len(arrays),
        "translation": shift,
        "name": level.name,
        "attributes": {key: value for key, value in attributes.items() if key not in ("multiscales", "version")},
        "axes": letters,
    }
    return Image(data, letters, size, units, names, kind="ome-zarr", metadata=metadata)


def _image_group(zarr: Any, path: Path) -> tuple[Any, dict[str, Any], str]:
    """The group that holds the image, its NGFF attributes and their version."""
    try:
        check_metadata(path)
        group = zarr.open_group(path, mode="r")
        attributes = dict(group.attrs)
        if "bioformats2raw.layout" in attributes.get("ome", attributes) and "0" in group:
            if "1" in group:
                warnings.warn(f"{path.name} holds several images; only the first is read.", stacklevel=4)
            check_metadata(path / "0")
            group = group["0"]
            attributes = dict(group.attrs)
    except FileError:
        raise
    except Exception as error:
        if not is_damage(error):
            raise
        if isinstance(error, zarr.errors.ContainsArrayError):
            raise FileError(
                f"{path} is one array of a Zarr, which does not say what its axes are; give the folder of the OME-Zarr "
                "image around it, or write the array as OME-Zarr."
            ) from None
        raise FileError(f"{path} is not an OME-Zarr image, or it is damaged; copy it again from its source.") from error
    inner = attributes.get("ome", attributes)
    if not isinstance(inner, dict) or not isinstance(inner.get("multiscales", []), list):
        raise FileError(f"{path} has OME-Zarr metadata that break the rules of the format.")
    if "plate" in inner or "well" in inner:
        raise FileError(f"{path} is a plate of many images; give one of them, like {path / 'A' / '1' / '0'}.")
    if not inner.get("multiscales"):
        raise FileError(f"{path} has no OME-Zarr metadata (multiscales); write it with an OME-Zarr tool.")
    return group, inner, "0.5" if "ome" in attributes else "0.4"


def check(image: Image, dtype: Any, name: str) -> None:
    _zarr()
    order = order_of(image)
    if len(order) < image.ndim or not set("YX") <= set(order):
        raise FileError(f"{name} cannot hold axes {image.axes}: OME-Zarr has T, C, Z, Y and X; write a .npy file.")
    target_dtype(image, dtype)


def write(path: Path, image: Image, dtype: Any, name: str) -> None:
    store = create(path, image, dtype, name)
    window = (np.inf, -np.inf)
    for level, array in enumerate(store.levels):
        for box in grid(array.shape, store.unit(level)):
            if level:
                store.halve(level, box)
            else:
                window = widest(window, store.fill(_source(image, store.order, box), box))
    store.describe(image, window)


@dataclass(frozen=True)
class Store:
    """An image that is being written: the arrays of its levels, with the axes `order`. Boxes of whole units of an array
    may be written in any order and by several processes.
    """

    group: Any
    order: str

    @property
    def levels(self) -> list[Any]:
        return [self.group[str(level)] for level in range(sum(1 for _ in self.group.array_keys()))]

    def unit(self, level: int) -> tuple[int, ...]:
        """What is written at once: a shard, or a chunk."""
        array = self.group[str(level)]
        return tuple(array.shards or array.chunks)

    def fill(self, block: Array, box: tuple[slice, ...]) -> tuple[float, float]:
        """Write a part of level 0; its least and largest value as they are stored."""
        array = self.group["0"]
        stored = cast(block, np.dtype(array.dtype))
        array[box] = stored
        known = stored[np.isfinite(stored)]
        return (float(known.min()), float(known.max())) if known.size else (np.inf, -np.inf)

    def halve(self, level: int, box: tuple[slice, ...]) -> None:
        """Write a part of a level from the one before."""
        array = self.group[str(level)]
        array[box] = cast(_halved(self.group[str(level - 1)], box), np.dtype(array.dtype))

    def describe(self, image: Image, window: tuple[float, float]) -> None:
        """The metadata, last of all: without them it is no image."""
        version = _version(image)
        attributes = ngff.attributes(image, self.order, len(self.levels), version, list(window))
        self.group.attrs.update({"ome": attributes} if version == "0.5" else attributes)


def create(path: Path, image: Image, dtype: Any, name: str) -> Store:
    """Empty arrays for an image of this shape and kind."""
    check(image, dtype, name)
    zarr, order = _zarr(), order_of(image)
    stored, version = target_dtype(image, dtype), _version(image)
    group = zarr.create_group(path, zarr_format=2 if version == "0.4" else 3)
    shape = tuple(image.shape[image.axes.index(letter)] for letter in order)
    chunks, shards = _chunks(image, order, shape, stored)
    for level in range(max(int(image.metadata.get("levels", 1)), 1)):
        if level:
            shape = (*shape[:-2], -(-shape[-2] // 2), -(-shape[-1] // 2))
        _create(group, str(level), order, shape, chunks, shards, stored, version)
    return Store(group, order)


def order_of(image: Image) -> str:
    """The axes as OME-Zarr wants them."""
    return "".join(letter for letter in "TCZYX" if letter in image.axes)


def reopen(path: Path, order: str) -> Store:
    return Store(_zarr().open_group(path, mode="r+"), order)


def widest(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), max(a[1], b[1])


def _version(image: Image) -> str:
    return str(image.metadata.get("version", "0.5"))


def _create(group: Any, name: str, order: str, shape: Any, chunks: Any, shards: Any, dtype: Any, version: str) -> None:
    fitting = tuple(min(c, n) for c, n in zip(chunks, shape, strict=True))
    if version == "0.4":
        encoding = {"name": "v2", "separator": "/"}
        group.create_array(name, shape=shape, chunks=fitting, dtype=dtype, chunk_key_encoding=encoding)
        return
    names = [letter.lower() for letter in order]
    group.create_array(
        name, shape=shape, chunks=chunks if shards else fitting, shards=shards, dtype=dtype, dimension_names=names
    )


def _chunks(image: Image, order: str, shape: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """As in the source; else one plane of 512 x 512 pixels. Shards only if one fits comfortably into memory."""
    kept = image.metadata if image.metadata.get("axes") == image.axes == order else {}
    default = tuple(min(n, _CHUNK) if letter in "YX" else 1 for letter, n in zip(order, shape, strict=True))
    shards = kept.get("shards")
    if shards and np.prod(shards, dtype=np.int64) * dtype.itemsize > _SHARD_BYTES:
        shards = None
    return tuple(kept.get("chunks") or default), tuple(shards) if shards else None


def grid(shape: tuple[int, ...], block: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    counts = [-(-n // b) for n, b in zip(shape, block, strict=True)]
    for index in np.ndindex(*counts):
        yield tuple(slice(i * b, min((i + 1) * b, n)) for i, b, n in zip(index, block, shape, strict=True))


def _source(image: Image, order: str, box: tuple[slice, ...]) -> Array:
    where = dict(zip(order, box, strict=True))
    block = np.asarray(image.data[tuple(where[letter] for letter in image.axes)])
    return block.transpose([image.axes.index(letter) for letter in order])


def _halved(array: Any, box: tuple[slice, ...]) -> Array:
    """The mean of 2 x 2 pixels; an odd last row or column counts twice."""
    wide = tuple(slice(2 * s.start, 2 * s.stop) for s in box[-2:])
    block = np.asarray(array[(*box[:-2], *wide)], dtype=np.float64)
    missing = [(0, 2 * (s.stop - s.start) - n) for s, n in zip(box[-2:], block.shape[-2:], strict=True)]
    block = np.pad(block, [(0, 0)] * (block.ndim - 2) + missing, mode="edge")
    return (block[..., ::2, ::2] + block[..., 1::2, ::2] + block[..., ::2, 1::2] + block[..., 1::2, 1::2]) / 4


def _zarr() -> Any:
    try:
        importlib.import_module("ome_zarr_models")
        return importlib.import_module("zarr")
    except ImportError as error:
        raise FileError("OME-Zarr needs two more packages: pip install 'inverseflow[zarr]'.") from error
