"""Read and write image files with everything they say about the image.

One module per format; `_MODULES` says which suffix belongs to which. A format is a module with `read(path, axes)` and,
if it can be written, `check(image, dtype, name)`, which refuses what it cannot hold, and
`write(path, image, dtype, name)`.
"""

from __future__ import annotations

import glob
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import FileError
from ..whole import whole_or_absent
from . import npy, omezarr, other, raster, tiff
from .image import Image
from .lazy import target_dtype

__all__ = ["Image", "beside", "expand_paths", "read", "refuse_unwritable", "suffix_of", "write"]

_MODULES: dict[str, ModuleType] = {
    ".ome.tiff": tiff,
    ".ome.tif": tiff,
    ".ome.btf": tiff,
    ".tiff": tiff,
    ".tif": tiff,
    ".btf": tiff,
    ".tf8": tiff,
    ".png": raster,
    ".jpeg": raster,
    ".jpg": raster,
    ".npy": npy,
    ".npz": npy,
    ".ome.zarr": omezarr,
    ".zarr": omezarr,
    **dict.fromkeys(other.READERS, other),
}
Name = str | os.PathLike[str]
_RESULT = re.compile(r"(.+)_denoised(_(std|low|high|sample\d+))?")


def read(path: Name, *, axes: str | None = None) -> Image:
    """An image file with its metadata; large files stay on disk until a region of `data` is asked for.

    The axes come from the file. `axes`, a string like "TZYX" with one letter per dimension, overrides them, and must be
    given where the file does not say what its dimensions mean.
    """
    path = Path(path)
    if not path.exists():
        raise FileError(f"There is no file {path}; check the name and the folder.")
    if not path.is_file() and not path.is_dir():
        raise FileError(f"{path} is a pipe or a device and not a file; save what it gives to a file, and read that.")
    try:
        return (omezarr if path.is_dir() else _module(path)).read(path, axes)  # type: ignore[no-any-return]
    except FileError:
        raise
    except PermissionError as error:
        raise FileError(f"You may not read {path}; ask for the right to, or copy it.") from error
    except OSError as error:
        why = f"{error.strerror or error}; it is damaged or its disk fails, so copy it again"
        raise FileError(f"{path} cannot be read: {why}.") from error


def write(path: Name, image: Image, *, dtype: Any = None, overwrite: bool = False) -> None:
    """Write an image in the format of the suffix, with all metadata that the format can hold.

    Floating-point data are written as float32, integers as they are. `dtype="same"` returns to the source's type:
    values are rounded half to even and clipped to its range. PNG and JPEG hold integers only, so there `dtype="same"`
    is implied. The data may be lazy and larger than memory (not for PNG and JPEG). The file is whole or absent: it gets
    its name when it is complete, and an existing file is replaced, with `overwrite`, at that moment only.
    """
    path = Path(path)
    refuse_unwritable(path, image, dtype)
    needed = math.prod(image.shape) * target_dtype(image, dtype).itemsize
    with whole_or_absent(path, overwrite=overwrite, needed=needed) as temporary:
        _module(path).write(temporary, image, dtype, path.name)


def refuse_unwritable(path: Name, image: Image, dtype: Any = None) -> None:
    """What `write` would say of an image that the format cannot hold; to be asked before anything is computed."""
    path = Path(path)
    module = _module(path)
    if not hasattr(module, "write"):
        raise FileError(f"{path.name} cannot be written, only read; write {beside(path, '').name} instead.")
    module.check(image, dtype, path.name)


def suffix_of(path: Name) -> str:
    """The suffix that says the format, in lower case: ".ome.tif" and not ".tif" for cells.ome.tif; "" if unknown."""
    name = Path(path).name.lower()
    return next((suffix for suffix in _MODULES if name.endswith(suffix) and name != suffix), "")


def beside(path: Name, tag: str) -> Path:
    """The file's name with a tag before the suffix; a format that we cannot write becomes OME-TIFF."""
    path, suffix = Path(path), suffix_of(path)
    stem = path.name[: len(path.name) - len(suffix)]
    ending = path.name[len(stem) :] if hasattr(_MODULES.get(suffix), "write") else ".ome.tif"
    if not suffix and omezarr.is_zarr(path):  # an image of a plate, which is a folder without a suffix
        ending = ".ome.zarr"
    return path.with_name(f"{stem}{tag}{ending}")


def expand_paths(patterns: Name | Iterable[Name], *, results: bool = True) -> list[Path]:
    """Image files from names, glob patterns and folders (the images in them, not in their subfolders), without doubles.

    An OME-Zarr folder is one image. With `results=False`, what `denoise` has written beside other images of a folder
    or pattern is left out.
    """
    listed = [patterns] if isinstance(patterns, str | os.PathLike) else list(patterns)
    found: dict[Path, None] = {}
    for item in listed:
        path, pattern = Path(item), str(item)
        if path.is_dir() and not omezarr.is_zarr(path):
            chosen = sorted(p for p in path.iterdir() if _looks_like_image(p) and not p.name.startswith("."))
        elif path.exists():
            chosen = [path]
        else:
            chosen = sorted(filter(_looks_like_image, _matches(path)))
        if len(chosen) > 1 and not results:
            chosen = _without_results(chosen)
        if not chosen:
            raise FileError(f"No image matches {pattern}; give a file, a folder of images, or a quoted pattern.")
        found |= dict.fromkeys(chosen)
    if not found:
        raise FileError("No image is given; give files, folders of images, or quoted patterns.")
    return list(found)


def _looks_like_image(path: Path) -> bool:
    """By its name; a folder may be an OME-Zarr image only."""
    return bool(suffix_of(path)) and (not path.is_dir() or path.suffix.lower() == ".zarr")


def _matches(pattern: Path) -> Iterator[Path]:
    """What a pattern stands for; the folders in it that are there are meant as they are, brackets and all."""
    folder = next((parent for parent in pattern.parents if parent.is_dir()), Path())
    names = glob.iglob(str(pattern.relative_to(folder)), root_dir=folder, recursive=True)
    return (folder / name for name in names)


def _without_results(paths: list[Path]) -> list[Path]:
    stems = [path.with_name(path.name[: len(path.name) - len(suffix_of(path))]) for path in paths]
    made = [_RESULT.fullmatch(stem.name) for stem in stems]
    left = [
        path
        for path, stem, match in zip(paths, stems, made, strict=True)
        if not match or stem.with_name(match[1]) not in stems
    ]
    if len(left) < len(paths):
        warnings.warn(
            f"{len(paths) - len(left)} of {len(paths)} files are results of the others (_denoised) and left out; name "
            "a file to have it read.",
            stacklevel=3,
        )
    return left


def _module(path: Path) -> ModuleType:
    suffix = suffix_of(path)
    if not suffix:
        raise FileError(
            f"{path.name} has no suffix that is known; save it as TIFF, OME-TIFF, PNG, JPEG, NPY, NPZ or OME-Zarr "
            "(CZI, ND2 and LIF are read with pip install 'inverseflow[bioio]')."
        )
    return _MODULES[suffix]
