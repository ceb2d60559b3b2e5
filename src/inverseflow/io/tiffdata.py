"""The pixels of a TIFF file, in both directions, without ever holding more than a few megabytes of them.

A TIFF page is a grid of segments, strips or tiles, each compressed on its own. Reading a region decodes only the
segments that it touches; the last ones are kept, because neighbouring regions share them. Values that lie uncompressed
in one piece need no decoding and are memory-mapped. Files are opened for each access, so nothing stays open.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from ..errors import FileError, InverseflowError
from .bounds import check_claim, is_damage
from .image import Image
from .lazy import Array, Box, LazyArray, MappedArray, bands, read_mapped, rows_per_band

CACHE_BYTES = 64 * 2**20
_JPEG = (6, 7, 34892, 33007)  # these keep tables outside the segments


@contextmanager
def opened(path: Path) -> Iterator[tifffile.TiffFile]:
    """The file, with what tifffile would log about damage raised as one sentence instead."""
    records: list[logging.LogRecord] = []

    mine = threading.get_ident()

    def listen(record: logging.LogRecord) -> bool:
        if record.thread == mine:
            records.append(record)
        return record.thread != mine

    logger = tifffile.logger()
    logger.addFilter(listen)
    try:
        with tifffile.TiffFile(path) as tif:
            yield tif
    except InverseflowError:
        raise
    except tifffile.TiffFileError as error:
        raise FileError(f"{path} is not a TIFF file, whatever its name says; save it as TIFF again.") from error
    except Exception as error:
        if not is_damage(error):
            raise
        raise FileError(f"{path} is a damaged or incomplete TIFF file; copy it again from its source.") from error
    finally:
        logger.removeFilter(listen)
    if any(record.levelno >= logging.ERROR for record in records):
        raise FileError(f"{path} is a damaged or incomplete TIFF file; copy it again from its source.")


def images_in(tif: tifffile.TiffFile) -> list[tifffile.TiffPageSeries]:
    """Those whose pixels lie in this very file: each file of a set describes the images of all."""
    here = [
        s for s in tif.series if s.keyframe.parent is tif or any(page is not None and page.parent is tif for page in s)
    ]
    return here or list(tif.series)


def lazy_series(path: Path, series: tifffile.TiffPageSeries, shape: tuple[int, ...]) -> LazyArray | Array:
    """The pixels of a series: mapped, page by page, or (for the rare layouts that are neither) read at once.

    `shape` is that of the series, less some axes of length 1.
    """
    dtype = np.dtype(series.dtype)
    if series.dataoffset is not None and series.transform is None:
        stored = dtype.newbyteorder(series.keyframe.parent.byteorder)
        return MappedArray(Path(series.keyframe.parent.filehandle.path), stored, shape, series.dataoffset)
    if series.transform is not None or leading(series, shape) is None:
        check_claim(path, math.prod(shape) * dtype.itemsize, path.stat().st_size)
        return np.asarray(series.asarray()).reshape(shape)
    return Pages(path, shape, series)


def leading(series: tifffile.TiffPageSeries, shape: tuple[int, ...]) -> int | None:
    """How many leading axes count the pages; None if the axes within a page are not those of its pixels."""
    inside = [n for n in series.keyframe.shaped if n > 1]
    for lead in range(len(shape) + 1):
        page = [n for n in shape[lead:] if n > 1]
        if page == inside and math.prod(shape[:lead]) == len(series.pages):
            return lead
    return None


class Pages(LazyArray):
    """A series of equal pages whose segments are decoded on demand; the last decoded ones stay, up to CACHE_BYTES."""

    def __init__(self, path: Path, shape: tuple[int, ...], series: tifffile.TiffPageSeries | None = None) -> None:
        self.path, self.shape = path, shape
        self._cache: OrderedDict[tuple[int, int], Array] = OrderedDict()
        self._lock = threading.Lock()
        if series is not None:
            self._load(series)
            return
        with opened(path) as tif:
            self._load(images_in(tif)[0])

    def _load(self, series: tifffile.TiffPageSeries) -> None:
        """Take from the open file what reading will need."""
        self.dtype = np.dtype(series.dtype).newbyteorder("=")
        self._pages: list[Any] = list(series.pages)
        self._key: Any = series.keyframe
        self._lead = leading(series, self.shape) or 0
        self._grid = _grid(self._key)
        self._decode = self._key.decode  # it looks into the file when it is made
        self._check()
        self._tables: list[dict[str, Any]] = []
        if self._key.compression in _JPEG:
            header = self._key.jpegheader
            self._tables = [{"jpegtables": page.jpegtables, "jpegheader": header} for page in self._pages]

    def __reduce__(self) -> tuple[type[Pages], tuple[Path, tuple[int, ...]]]:
        return Pages, (self.path, self.shape)  # a worker process opens the file itself

    def read_box(self, start: Box, stop: Box) -> Array:
        lead = self._lead
        out = np.empty([b - a for a, b in zip(start, stop, strict=True)], self.dtype)
        if not out.size:
            return out
        box = self._page_box(start[lead:], stop[lead:])
        for at in np.ndindex(*out.shape[:lead]):
            inside = [i + a for i, a in zip(at, start[:lead], strict=True)]
            number = int(np.ravel_multi_index(inside, self.shape[:lead])) if lead else 0
            out[at] = self._read_page(number, *box).reshape(out.shape[lead:])
        return out

    def _page_box(self, start: Box, stop: Box) -> tuple[list[int], list[int]]:
        """The box in the page's own five axes: separate samples, depth, length, width, contiguous samples."""
        bounds = iter([(a, b) for a, b, n in zip(start, stop, self.shape[self._lead :], strict=True) if n > 1])
        pairs = [next(bounds) if n > 1 else (0, 1) for n in self._key.shaped]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def _read_page(self, number: int, start: list[int], stop: list[int]) -> Array:
        page = self._pages[number]
        if self._key.is_final and page.is_contiguous:
            stored = self.dtype.newbyteorder(page.parent.byteorder)
            path, offset = Path(page.parent.filehandle.path), page.dataoffsets[0]
            return read_mapped(path, stored, self._key.shaped, offset, tuple(start), tuple(stop))
        out = np.empty([b - a for a, b in zip(start, stop, strict=True)], self.dtype)
        counts, extent = self._grid
        ranges = [range(a // n, -(-b // n)) for a, b, n in zip(start[:4], stop[:4], extent, strict=True)]
        for cell in product(*ranges):
            segment = self._segment(number, int(np.ravel_multi_index(cell, counts)))
            first = [i * n for i, n in zip(cell, extent, strict=True)]
            length = (1, *segment.shape[:3])
            low = [max(a, f) for a, f in zip(start[:4], first, strict=True)]
            high = [min(b, f + n) for b, f, n in zip(stop[:4], first, length, strict=True)]
            source = [slice(a - f, b - f) for a, b, f in zip(low, high, first, strict=True)]
            target = [slice(a - s, b - s) for a, b, s in zip(low, high, start[:4], strict=True)]
            out[tuple(target)] = segment[None][(*source, slice(start[4], stop[4]))]
        return out

    def _segment(self, number: int, index: int) -> Array:
        with self._lock:
            if (number, index) in self._cache:
                self._cache.move_to_end((number, index))
                return self._cache[number, index]
        page, tables = self._pages[number], self._tables[number] if self._tables else {}
        path = page.parent.filehandle.path
        try:
            with open(path, "rb") as file:
                file.seek(page.dataoffsets[index])
                data = file.read(page.databytecounts[index]) or None
            values, _, shape = self._decode(data, index, **tables)
            if shape[-1] != self._key.shaped[-1]:
                raise ValueError("a segment has not as many samples in a pixel as its page")
        except Exception as error:
            if not is_damage(error):
                raise FileError(f"{path} changed or disappeared while it was read ({error}); read it again.") from error
            packing = getattr(self._key.compression, "name", self._key.compression)
            raise FileError(
                f"{path} could not be decoded ({packing} compression); it is damaged, or save it "
                "again without compression."
            ) from error
        segment = np.full(shape, self._key.nodata, self.dtype) if values is None else np.asarray(values, self.dtype)
        with self._lock:
            self._cache[number, index] = segment
            while len(self._cache) > 1 and sum(s.nbytes for s in self._cache.values()) > CACHE_BYTES:
                self._cache.popitem(last=False)
        return segment

    def _check(self) -> None:
        """Every plane is there, and every segment ends before its file does."""
        if lost := sum(page is None for page in self._pages):
            raise FileError(
                f"{self.path} lacks {lost} of the {len(self._pages)} planes that it names; put the other files of its "
                "set beside it, or if the recording was stopped, save the planes that are there as a file of their own."
            )
        counts, extent = self._grid
        segment = math.prod(extent) * self._key.shaped[-1] * self.dtype.itemsize
        sizes: dict[str, int] = {}
        for page in self._pages:
            name = page.parent.filehandle.path
            size = sizes.setdefault(name, Path(name).stat().st_size)
            ends = np.asarray(page.dataoffsets, np.int64) + np.asarray(page.databytecounts, np.int64)
            if len(ends) < math.prod(counts):
                raise FileError(f"{name} says not where all of its image is; it is damaged, so copy it again.")
            if not page.is_contiguous or not self._key.is_final:
                check_claim(self.path, segment, max(page.databytecounts))
            if ends.max() > size or ends.min() < 0:
                raise FileError(f"{name} ends before its data does; it is truncated, so copy it again from its source.")


def _grid(key: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Segments along, and pixels per segment along, (separate samples, depth, length, width)."""
    separate, depth, length, width, _ = key.shaped
    if key.is_tiled:
        extent = (1, max(key.tiledepth, 1), key.tilelength, key.tilewidth)
    else:
        extent = (1, 1, min(key.rowsperstrip, length), width)
    return tuple(-(-n // m) for n, m in zip((separate, depth, length, width), extent, strict=True)), extent


def as_bytes(image: Image, order: str, dtype: np.dtype[Any], byteorder: str) -> Iterator[bytes]:
    """The pixels for an uncompressed file, band after band."""
    for band in bands(image, order, dtype):
        yield band.astype(dtype.newbyteorder(byteorder), copy=False).tobytes()  # type: ignore[arg-type]


def as_tiles(image: Image, order: str, dtype: np.dtype[Any], tile: tuple[int, int]) -> Iterator[Array]:
    """The pixels for a tiled file; a band is read once and cut, and the last tiles repeat their edge."""
    height, width = tile
    for band in bands(image, order, dtype, rows=-(-rows_per_band(image, order, height) // height) * height):
        for y in range(0, band.shape[0], height):
            for x in range(0, band.shape[1], width):
                part = band[y : y + height, x : x + width]
                missing = [(0, height - part.shape[0]), (0, width - part.shape[1]), (0, 0)][: part.ndim]
                yield np.ascontiguousarray(np.pad(part, missing, mode="edge"))


def as_pages(image: Image, order: str, dtype: np.dtype[Any]) -> Iterator[Array]:
    """The pixels for a file of small compressed pages, page after page."""
    yield from bands(image, order, dtype, rows=image.shape[image.axes.index("Y")])
