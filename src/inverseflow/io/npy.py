"""NPY and NPZ, through numpy. An NPY file says nothing of its axes; an NPZ that we write carries them beside `data`."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import FileError
from .image import Image, check_contents, settle_axes
from .lazy import MappedArray, bands, cast, target_dtype

_ABOUT = "about"


def read(path: Path, axes: str | None) -> Image:
    if path.suffix.lower() == ".npz":
        return _read_npz(path, axes)
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = header(file)
            offset = file.tell()
    except ValueError as error:
        raise FileError(f"{path} is not a NumPy file, or it is damaged; save it again with numpy.save.") from error
    check_contents(path, shape, dtype)
    letters = settle_axes(path, shape, "YX" if len(shape) == 2 else None, axes)
    return Image(MappedArray(path, dtype, shape, offset, fortran=fortran), letters, kind="npy")


def _read_npz(path: Path, axes: str | None) -> Image:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [name for name in file.files if name != _ABOUT]
            chosen = "data" if "data" in names else names[0] if len(names) == 1 else None
            if chosen is None:
                listed = ", ".join(names) or "nothing"
                raise FileError(f"{path} holds {listed}; save the one array to denoise under the name data.")
            about = json.loads(str(file[_ABOUT])) if _ABOUT in file.files else {}
            data = file[chosen]
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise FileError(f"{path} is not a NumPy archive of plain arrays, or it is damaged; save it again.") from error
    data = data.astype(data.dtype.newbyteorder("="), copy=False)
    check_contents(path, data.shape, data.dtype)
    found = about.get("axes") or ("YX" if data.ndim == 2 else None)
    sizes = {name: about.get(name, {}) for name in ("pixel_size", "units")}
    letters = settle_axes(path, data.shape, found, axes)
    return Image(data, letters, **sizes, channel_names=tuple(about.get("channel_names", ())), kind="npz")


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
