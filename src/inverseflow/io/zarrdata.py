"""The arrays of a Zarr folder that anybody may have written: what they claim is checked, what fails is one sentence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..disk import size_words
from ..errors import FileError
from .bounds import check_contents, is_damage
from .lazy import Array, Box, LazyArray
from .unpacked import PACKERS, fits

MAX_METADATA = 32 * 2**20
MAX_CHUNK, MAX_PARTS = 2**31, 2**22
"""Bytes of a chunk when it is unpacked; chunks in one shard."""
REMEMBERED = 100_000  # chunks that were looked at
NOWHERE = 2**64 - 1
"""The place of a chunk in its shard that is not there."""


class Chunks(LazyArray):
    """A Zarr array of which a region is read when it is asked for. Chunks that are not there are its fill value."""

    def __init__(self, path: Path, array: Any) -> None:
        self._path, self._array = path, array
        self.shape, self.dtype = tuple(map(int, array.shape)), np.dtype(array.dtype).newbyteorder("=")
        self.chunks, self.shards = tuple(array.chunks), array.shards and tuple(array.shards)
        check_contents(path, self.shape, self.dtype)
        size = math.prod(self.chunks) * self.dtype.itemsize
        if size > MAX_CHUNK:
            raise FileError(
                f"{path} has chunks of {size / 2**30:.3g} GB, too large for any memory; write smaller ones."
            )
        if self.shards and math.prod(self.shards) > MAX_PARTS * math.prod(self.chunks):
            raise FileError(f"{path} has shards of too many chunks; write smaller shards.")
        if "pickle" in str(array.metadata).lower():
            raise FileError(f"{path} is packed as Python pickles, which could run any code, so it is not read.")
        filters, names = array.filters, [_name(codec) for codec in (*array.filters, *array.compressors)]
        if sum(name in PACKERS for name in names) > 1 or (self.shards and not _is_plain_shard(array)):
            raise FileError(f"{path} is packed twice over, or in shards of an unknown kind; write it with one codec.")
        self._packer = next((name for name in names if name in PACKERS), "")
        self._most = size * (8 if filters else 1) + 64  # a filter may store bytes as doubles; checksums take a few more
        self._seen: set[Box] = set()

    def read_box(self, start: Box, stop: Box) -> Array:
        unit = self.shards or self.chunks
        for index in itertools.product(*(range(a // n, -(-b // n)) for a, b, n in zip(start, stop, unit, strict=True))):
            if index not in self._seen:
                self._look_at(index)
        try:
            return np.asarray(self._array[tuple(map(slice, start, stop))], self.dtype)
        except Exception as error:  # each codec has its own
            if isinstance(error, MemoryError):
                raise
            if not is_damage(error):
                raise FileError(
                    f"{self._path} changed or disappeared while it was read ({error}); read it again."
                ) from error
            raise FileError(
                f"{self._path} has a chunk that cannot be unpacked; it is damaged, so copy it again from its source."
            ) from error

    def _look_at(self, index: Box) -> None:
        """Refuse a stored chunk, or a shard with one, that would unpack to more than its metadata say."""
        file = self._path / self._array.path / self._array.metadata.encode_chunk_key(index)
        if not file.is_file():  # all of it is the fill value
            return
        with open(file, "rb") as stored:
            for place, length in self._pieces(stored, file.stat().st_size):
                if length > 2 * self._most + 2**20 or not fits(self._packer, stored, place, length, self._most):
                    raise FileError(
                        f"{file} holds more than the {size_words(self._most)} of its chunk; it is damaged or made to "
                        "do harm, so get it again from its source."
                    )
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        self._seen.add(index)

    def _pieces(self, stored: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
        """Where each chunk lies in its file: all of it, or what the index of a shard says."""
        if not self.shards:
            yield 0, size
            return
        count = math.prod(self.shards) // math.prod(self.chunks)
        codec = self._array.metadata.codecs[0]
        stored.seek(
            0 if codec.index_location.value == "start" else max(0, size - 16 * count - 4 * len(codec.index_codecs[1:]))
        )
        found = np.frombuffer(stored.read(16 * count), "<u8")
        for place, length in found[: len(found) // 2 * 2].reshape(-1, 2).tolist():
            if place != NOWHERE and place + length <= size:  # zarr itself refuses what lies elsewhere
                yield place, length


def _name(codec: Any) -> str:
    """Of Zarr 2 and 3."""
    return str(getattr(codec, "codec_id", None) or codec.to_dict()["name"]).removeprefix("numcodecs.")


def _is_plain_shard(array: Any) -> bool:
    """One shard around chunks that are no shards, with the index that everybody writes."""
    codecs = array.metadata.codecs
    index = [part.to_dict() for part in codecs[0].index_codecs] if len(codecs) == 1 else []
    plain = [part["name"] for part in index] in (["bytes"], ["bytes", "crc32c"])
    return plain and index[0]["configuration"]["endian"] == "little" and _name(array.serializer) == "bytes"


def open_array(path: Path, group: Any, name: str) -> Chunks:
    """An array of the group, which must lie in it."""
    if not isinstance(name, str) or name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        raise FileError(f"{path} says that its pixels are in {name!r}, outside of it; that is not read.")
    try:
        array = group[name]
        if not hasattr(array, "chunks"):
            raise KeyError(name)
    except KeyError as error:
        raise FileError(f"{path} lacks a level that its metadata name; copy it again from its source.") from error
    except Exception as error:  # zarr and its codecs have many
        if not is_damage(error):
            raise
        raise FileError(
            f"{path} is damaged, or packed in a way that is not known here (level {name}: {_first_line(error)}); copy "
            "it again, or write it with zlib, zstd or blosc."
        ) from error
    return Chunks(path, array)


def check_metadata(path: Path) -> None:
    """Metadata are text, which unpacks to many times its size."""
    for file in (
        found for name in ("zarr.json", ".zattrs", ".zarray", ".zgroup", ".zmetadata") for found in path.glob(name)
    ):
        if file.stat().st_size > MAX_METADATA:
            raise FileError(f"{file} is larger than {MAX_METADATA // 2**20} MB, which metadata are not.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
