"""NPY and NPZ, through numpy. An NPY file says nothing of its axes; an NPZ that we write carries them beside `data`."""

from __future__ import annotations

import json
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import FileError
from .bounds import PLAUSIBLE, check_claim, check_contents, is_damage
from .image import Image, printable, settle_axes
from .lazy import Array, MappedArray, bands, cast, target_dtype

_ABOUT = "about"
DAMAGE = (
    ValueError,
    TypeError,
    SyntaxError,
    KeyError,
    EOFError,
    OverflowError,
    RecursionError,
    MemoryError,
    RuntimeError,
    tokenize.TokenError,
)
"""What numpy and zipfile raise on damaged headers."""


def read(path: Path, axes: str | None) -> Image:
    if path.suffix.lower() == ".npz":
        return _read_npz(path, axes)
    try:
        with open(path, "rb") as file:
            shape, fortran, dtype = _read_header(file)
            offset = file.tell()
    except DAMAGE as error:
        raise FileError(f"{path} is not a NumPy file, or it is damaged; save it again with numpy.save.") from error
    check_contents(path, shape, dtype)
    letters = settle_axes(path, shape, "YX" if len(shape) == 2 else None, axes)
    return Image(MappedArray(path, dtype, shape, offset, fortran=fortran), letters, kind="npy")


def _read_npz(path: Path, axes: str | None) -> Image:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            names = [name for name in entries if name != _ABOUT]
            chosen = "data" if "data" in names else names[0] if len(names) == 1 else None
            if chosen is None:
                listed = printable(", ".join(names)) or "nothing"
                raise FileError(f"{path} holds {listed}; save the one array to denoise under the name data.")
            about = _about(_entry(path, archive, entries[_ABOUT])) if _ABOUT in entries else {}
            data = _entry(path, archive, entries[chosen])
    except FileError:
        raise
    except (*DAMAGE, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, struct.error) as error:
        if not is_damage(error):
            raise
        raise FileError(f"{path} is not a NumPy archive of plain arrays, or it is damaged; save it again.") from error
    data = data.astype(data.dtype.newbyteorder("="), copy=False)
    found = about.get("axes") or ("YX" if data.ndim == 2 else None)
    sizes = {name: about.get(name, {}) for name in ("pixel_size", "units")}
    letters = settle_axes(path, data.shape, found, axes)
    return Image(data, letters, **sizes, channel_names=about.get("channel_names", ()), kind="npz")


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if not all(type(n) is int for n in shape):  # numpy takes True for a length
        raise ValueError("a length is no number")
    return shape, fortran, dtype


def _entry(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """One array of an archive. What it says of its size, the archive must say too, and can hold."""
    check_claim(path, info.file_size, info.compress_size, PLAUSIBLE)
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file)
        if dtype.kind != "U":  # the text beside an array
            check_contents(path, shape, dtype)
        count = math.prod(shape)
        if file.tell() + count * dtype.itemsize != info.file_size or dtype.hasobject:
            raise ValueError("the array has not the size of its shape")
        values = np.frombuffer(file.read(), dtype, count)
    return values.reshape(shape[::-1]).transpose() if fortran else values.reshape(shape)


def _about(text: Array) -> dict[str, Any]:
    found = json.loads(str(text))
    if not isinstance(found, dict) or not isinstance(found.get("axes"), str | None):
        raise ValueError("what stands beside the array is not what we write")
    return found


def check(image: Image, dtype: Any, name: str) -> None:
    target_dtype(image, dtype)


def write(path: Path, image: Image, dtype: Any, name: str) -> None:
    stored = target_dtype(image, dtype)
    if name.lower().endswith(".npy"):
        with open(path, "wb") as file:
            _write_array(file, image, stored)
        return
    about = {
        "axes": image.axes,
        "pixel_size": dict(image.pixel_size),
        "units": dict(image.units),
        "channel_names": list(image.channel_names),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("data.npy", "w", force_zip64=True) as entry:
            _write_array(entry, image, stored)
        with archive.open(f"{_ABOUT}.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array(json.dumps(about)), allow_pickle=False)


def _write_array(file: IO[bytes], image: Image, dtype: np.dtype[Any]) -> None:
    """In C order, band by band; what is not an image with Y before X is small enough to be written at once."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": image.shape}
    np.lib.format.write_array_header_2_0(file, header)
    if "Y" not in image.axes:
        file.write(cast(np.asarray(image.data[...]), dtype).tobytes())
        return
    for band in bands(image, image.axes, dtype):
        file.write(band.tobytes())
