"""TIFF, BigTIFF, ImageJ TIFF and OME-TIFF, through tifffile.

The file says which of the three dialects it speaks, and a file of the same dialect is written back: OME-XML, ImageJ's
description, or plain tags (with one line of JSON where there are more axes than a plain TIFF can name). What comes from
elsewhere is written as OME-TIFF, the dialect that can say most. Compression stays where it is lossless.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from ..errors import FileError, InverseflowError
from . import imagej, ome
from .bounds import check_contents
from .image import Image, settle_axes
from .lazy import target_dtype
from .ome import check_description
from .tiffdata import as_bytes, as_pages, as_tiles, images_in, lazy_series, opened

BIG = 2 * 2**30
_PAGE_BYTES = 32 * 2**20
_TILE = (256, 256)
_LOSSLESS = {5: "lzw", 8: "adobe_deflate", 32773: "packbits", 32946: "adobe_deflate", 34925: "lzma", 50000: "zstd"}
_CLASSIC = 2**32 - 2**27  # bytes of pixels in a file whose offsets have 32 bits; the rest is for what describes them
_RESOLUTION_UNITS = range(1, 6)
_COLOR_MAP = 320
_RATIONAL = 2**32 - 1
_LISTED = 4  # images of a file that a warning names
_KINDS = {"ome": "ome-tiff", "imagej": "imagej"}
_PER_CENTIMETRE = {"nm": 1e7, "µm": 1e4, "mm": 10.0, "cm": 1.0, "m": 0.01}


def read(path: Path, axes: str | None) -> Image:
    """The first image in the file; of a pyramid, its full resolution, which is what tifffile's series begin with."""
    with opened(path) as tif:
        check_description(path, tif)
        if not tif.series:
            raise FileError(f"{path} is a TIFF file without any image; save it again from its source.")
        series, *more = images_in(tif)
        check_contents(path, tuple(map(int, series.shape)), np.dtype(series.dtype))
        kind = _KINDS.get(series.kind, "tiff")
        fields, metadata = _describe(tif, series, kind)
        shape, found = _our_axes(series)
        if metadata.get("axes") and len(metadata["axes"]) == len(shape):
            found = metadata["axes"]
        if found is None:
            metadata.pop("ome_xml", None)  # it describes axes that we cannot name, so it cannot be written back
        letters = settle_axes(path, shape, found, axes)
        images = [
            f"{image.name or number} ({_size_words(image.shape)})" for number, image in enumerate([series, *more])
        ]
        data = lazy_series(path, series, shape)
    if len(images) > 1:
        listed = ", ".join(images[:_LISTED]) + (", ..." if len(images) > _LISTED else "")
        warnings.warn(
            f"{path.name} holds {len(images)} images: {listed}; the first is read, so to denoise another, save it as a "
            "file of its own.",
            stacklevel=3,
        )
    dtype = np.dtype(series.dtype).newbyteorder("=")
    return Image(data, letters, **fields, kind=kind, metadata=metadata, source_dtype=dtype)


def _size_words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _our_axes(series: tifffile.TiffPageSeries) -> tuple[tuple[int, ...], str | None]:
    """Shape and axes in our letters, or None where tifffile's letters do not say what an axis means.

    tifffile's S is the samples of a pixel: our C. Its other letters (I pages, Q unknown, ...) count only at length 1,
    where they can be left out.
    """
    pairs = [(a, int(n)) for a, n in zip(series.axes, series.shape, strict=True) if a in "TCZYX" or n > 1]
    shape, letters = tuple(n for _, n in pairs), "".join(a for a, _ in pairs)
    if "C" not in letters:
        letters = letters.replace("S", "C")
    return shape, letters if set(letters) <= set("TCZYX") and len(set(letters)) == len(letters) else None


def _describe(tif: tifffile.TiffFile, series: Any, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the Image, and the metadata that writes the same kind of file again."""
    page, tags = series.keyframe, tif.pages.first.tags
    text = {name: str(tags[name].value) for name in ("Software", "DateTime", "ImageDescription") if name in tags}
    resolution = tuple(_ratio(tags[name].value) if name in tags else 0.0 for name in ("XResolution", "YResolution"))
    unit = tags["ResolutionUnit"].value if "ResolutionUnit" in tags else 1
    metadata: dict[str, Any] = {
        "compression": "" if page.compression == 1 else _LOSSLESS.get(int(page.compression), "adobe_deflate"),
        "predictor": page.predictor != 1,
        "tile": (page.tilelength, page.tilewidth) if page.is_tiled else None,
        "bigtiff": tif.is_bigtiff,
        "byteorder": tif.byteorder,
        "miniswhite": page.photometric == tifffile.PHOTOMETRIC.MINISWHITE,
        "colormap": page.colormap,
        "software": text.get("Software", ""),
        "datetime": text.get("DateTime", ""),
        "resolution": resolution if min(resolution) > 0 else None,
        "resolution_unit": int(unit) if unit in _RESOLUTION_UNITS else 1,
    }
    if kind == "ome-tiff":
        metadata["ome_xml"] = ome.own_first(str(tif.ome_metadata), tif.filename)
        return ome.parse(metadata["ome_xml"]), metadata
    if kind == "imagej":
        metadata["imagej"] = dict(tif.imagej_metadata or {})
        channels = dict(zip(series.axes, series.shape, strict=True)).get("C", 1)
        return imagej.parse(metadata["imagej"], (resolution[0], resolution[1]), channels), metadata
    ours = ((tif.shaped_metadata or ({},))[0]).get("inverseflow")
    if isinstance(ours, dict):
        metadata |= {"axes": ours.get("axes"), "description": ours.get("description", "")}
        fields = {name: ours.get(name, {}) for name in ("pixel_size", "units")}
        return {**fields, "channel_names": tuple(ours.get("channel_names", ()))}, metadata
    metadata["description"] = "" if tif.is_shaped else text.get("ImageDescription", "")
    # A resolution per centimetre is a measurement; one per inch is nearly always a printer's default.
    size = {letter: 1e4 / n for letter, n in zip("XY", resolution, strict=True) if n > 0 and unit == 3}
    return {"pixel_size": size, "units": dict.fromkeys(size, "µm")}, metadata


def check(image: Image, dtype: Any, name: str) -> None:
    if not set("YX") <= set(image.axes):
        raise FileError(f"{name} cannot hold axes {image.axes}: a TIFF image has Y and X; write a .npy file instead.")
    _kind(image, name)
    target_dtype(image, dtype)


def write(path: Path, image: Image, dtype: Any, name: str) -> None:
    """`name` is the final name: .ome.tif asks for OME-TIFF, .tif for the source's dialect."""
    kind = _kind(image, name)
    stored = _fit(target_dtype(image, dtype), kind)
    order = imagej.order(image, stored) if kind == "imagej" else _order(image)
    size = dict(zip(image.axes, image.shape, strict=True))
    shape, samples = tuple(size[letter] for letter in order), order.endswith("C")
    nbytes = math.prod(shape) * stored.itemsize
    options: dict[str, Any] = {
        "shape": shape,
        "dtype": stored,
        "maxworkers": 1,
        **_layout(image, nbytes // math.prod(shape[: order.index("Y")])),
    }
    options |= _tags(image, kind)
    options["photometric"] = "miniswhite" if image.metadata.get("miniswhite") else "minisblack"
    if samples:
        options |= {"planarconfig": "contig"} | ({"photometric": "rgb"} if shape[-1] in (3, 4) else {})
    if image.metadata.get("colormap") is not None and not samples and kind == image.kind:
        options |= _palette(image.metadata["colormap"], stored, kind)
    letters = order.replace("S", "Q")
    letters = letters[:-1] + "S" if samples else letters
    xml = image.metadata.get("ome_xml") if kind == "ome-tiff" else None
    document = ome.updated(xml, image, order, stored, samples=samples) if xml else None
    if kind == "imagej":
        options["metadata"] = imagej.describe(image, letters)
        if "resolution" not in options:
            options["metadata"].pop("unit", None)  # else the resolution of 1 that is written would count in it
        if nbytes > _CLASSIC:  # as ImageJ does: the first page has a place, the others follow
            options |= {"truncate": True, "compression": None, "predictor": False, "tile": None}
    elif kind == "ome-tiff":
        options |= {"description": document, "metadata": None} if document else {"metadata": ome.fresh(image, letters)}
    else:
        options |= _plain(image, letters, order)
    big = kind != "imagej" and (nbytes > BIG or bool(image.metadata.get("bigtiff")))
    byteorder: Any = image.metadata.get("byteorder") or "<"
    dialect: dict[str, Any] = {
        "imagej": kind == "imagej",
        "ome": kind == "ome-tiff" and not document,
        "shaped": kind == "tiff",
    }
    data = _pixels(image, order, stored, options, byteorder)
    with open(path, "w+b") as file:  # not the writer's own `with`: after an error it would try to finish the file
        writer = tifffile.TiffWriter(file, bigtiff=big, byteorder=byteorder, **dialect)
        try:
            writer.write(data, **options)
            writer.close()
        except InverseflowError:
            raise
        except (ValueError, struct.error) as error:
            raise FileError(f"{name} cannot be written as TIFF ({error}); write a .npy file instead.") from error


def _kind(image: Image, name: str) -> str:
    if ".ome." in name.lower():
        if "S" in image.axes:
            raise FileError(f"{name} cannot hold the sample axis of {image.axes}: write a .tif or .npy file instead.")
        return "ome-tiff"
    if "S" in image.axes:
        return "tiff"
    return image.kind if image.kind in ("imagej", "tiff") else "ome-tiff"


def _fit(dtype: np.dtype[Any], kind: str) -> np.dtype[Any]:
    """The nearest type that the dialect knows."""
    if kind == "imagej":
        return dtype if dtype.name in ("uint8", "uint16", "int16", "float32") else np.dtype(np.float32)
    if kind == "ome-tiff" and dtype.name not in ome.PIXEL_TYPES:
        return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    return dtype


def _order(image: Image) -> str:
    """Y and X last, then C if it is interleaved; the others stay in their order."""
    tail = "YXC" if image.axes.endswith("YXC") and image.shape[-1] > 1 else "YX"
    return "".join(letter for letter in image.axes if letter not in tail) + tail


def _layout(image: Image, page: int) -> dict[str, Any]:
    """Compression and tiles as in the source; large compressed pages are tiled, because they are written in parts."""
    compression, tile = image.metadata.get("compression") or None, image.metadata.get("tile")
    if tile is None and compression and page > _PAGE_BYTES:
        tile = _TILE
    if tile is not None and (tile[0] % 16 or tile[1] % 16):
        tile = _TILE
    return {
        "compression": compression,
        "predictor": bool(compression and image.metadata.get("predictor")),
        "tile": tile,
    }


def _tags(image: Image, kind: str) -> dict[str, Any]:
    """Who wrote the source, when, and its resolution; ImageJ counts in its own unit, the others in centimetres."""
    stamp = image.metadata.get("datetime") or ""
    tags: dict[str, Any] = {
        "software": (image.metadata.get("software") or "inverseflow").encode(errors="replace"),
        "datetime": stamp if stamp.isascii() and len(stamp) == 19 and stamp[16] == ":" else None,
    }
    sizes = [image.pixel_size.get(letter, 0.0) for letter in "XY"]
    scale = 1.0 if kind == "imagej" else _PER_CENTIMETRE.get(image.units.get("X") or "µm", 0.0)
    if min(sizes) > 0 and scale:
        resolution = (scale / sizes[0], scale / sizes[1])
        if all(1 / _RATIONAL <= n <= _RATIONAL for n in resolution):
            tags |= {"resolution": resolution, "resolutionunit": 1 if kind == "imagej" else 3}
    elif image.metadata.get("resolution"):
        tags |= {"resolution": image.metadata["resolution"], "resolutionunit": image.metadata["resolution_unit"]}
    return tags


def _palette(table: Any, dtype: np.dtype[Any], kind: str) -> dict[str, Any]:
    """A lookup table: what the values of 8 bits stand for, or how ImageJ shows the others."""
    if table.shape != (3, 256):
        return {}
    if dtype == np.uint8:
        return {"colormap": table, "photometric": "palette"}
    tag = (_COLOR_MAP, 3, table.size, tuple(table.ravel().tolist()), True)
    return {"extratags": [tag]} if kind == "imagej" else {}


def _plain(image: Image, letters: str, order: str) -> dict[str, Any]:
    """A single page speaks for itself and keeps its description; more axes need tifffile's line of JSON."""
    description = image.metadata.get("description") or ""
    if order in ("YX", "YXC"):
        return {"metadata": None, "description": description.encode() if description else None}
    ours = {
        "axes": order,
        "pixel_size": dict(image.pixel_size),
        "units": dict(image.units),
        "channel_names": list(image.channel_names),
        "description": description,
    }
    return {"metadata": {"axes": letters, "inverseflow": ours}}


def _pixels(image: Image, order: str, dtype: np.dtype[Any], options: dict[str, Any], byteorder: str) -> Iterator[Any]:
    if options["tile"]:
        return as_tiles(image, order, dtype, options["tile"])
    if options["compression"]:
        return as_pages(image, order, dtype)
    return as_bytes(image, order, dtype, byteorder)


def _ratio(value: Any) -> float:
    numerator, denominator = value
    return numerator / denominator if denominator else 0.0
