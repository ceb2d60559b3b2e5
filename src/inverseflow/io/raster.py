"""PNG and JPEG, through imageio; 16-bit colour PNG, which imageio's reader would cut to 8 bits, through imagecodecs.

These files hold one plane of integers, grey (YX) or colour (YXC), so what is written to them is always rounded and
clipped to 8 or 16 bits: `dtype="same"` is implied.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
from PIL import Image as Picture

from ..errors import FileError
from .bounds import check_claim, check_contents, is_damage
from .image import Image, settle_axes
from .lazy import Array, cast

_KEPT = ("exif", "icc_profile", "dpi")


def read(path: Path, axes: str | None) -> Image:
    kind = "png" if path.suffix.lower() == ".png" else "jpeg"
    try:
        with warnings.catch_warnings():
            # Pillow asks from 89 megapixels on whether a picture is an attack; a microscope's mosaic is none.
            warnings.filterwarnings("ignore", message="Image size .* exceeds limit", category=Warning)
            with Picture.open(path) as picture:  # reads the header alone
                check_claim(path, 4 * math.prod(picture.size), path.stat().st_size)
            found = _read_deep_colour(path) if kind == "png" else None
            with iio.imopen(path, "r", plugin="pillow") as file:
                frames = file.properties(index=...).n_images  # type: ignore[arg-type]
                metadata = file.metadata(index=0, exclude_applied=False)
                data = file.read(index=0) if found is None else found
    except FileError:
        raise
    except Exception as error:  # Pillow's readers raise anything on damaged files
        if not is_damage(error):
            raise
        if "decompression bomb" in str(error):
            raise FileError(f"{path} is too large for a {kind.upper()} reader; convert it to TIFF.") from error
        raise FileError(f"{path} is not a {kind.upper()} file, or it is damaged; save it again.") from error
    if (frames or 1) > 1:
        raise FileError(f"{path} is an animation of {frames} frames; save them as one TIFF stack.")
    if metadata.get("mode") == "CMYK":
        raise FileError(f"{path} is in the printer's colours CMYK; save it as RGB or grey.")
    if data.dtype.kind == "b":
        data = data.astype(np.uint8) * np.uint8(255)
    if data.dtype == np.int32:
        data = data.astype(np.uint16)  # how Pillow opens some 16-bit grey files
    check_contents(path, data.shape, data.dtype)
    letters = settle_axes(path, data.shape, "YX" if data.ndim == 2 else "YXC", axes)
    kept = {name: metadata[name] for name in _KEPT if metadata.get(name)}
    return Image(data, letters, kind=kind, metadata=kept)


def check(image: Image, dtype: Any, name: str) -> None:
    png = name.lower().endswith(".png")
    _integer_type(image, dtype, name, png=png)
    size = dict(zip(image.axes, image.shape, strict=True))
    many = [letter for letter, n in size.items() if letter not in "YXC" and n > 1]
    channels = size.get("C", 1)
    if many or not set("YX") <= set(size) or channels > 4:
        raise FileError(f"{name} cannot hold axes {image.axes} of shape {image.shape}; write a .tif file instead.")
    if not png and channels not in (1, 3):
        raise FileError(f"{name} cannot hold {channels} channels; write a .png or .tif file instead.")


def write(path: Path, image: Image, dtype: Any, name: str) -> None:
    png = name.lower().endswith(".png")
    stored = _integer_type(image, dtype, name, png=png)
    array = np.asarray(image.data[tuple(slice(None) if letter in "YXC" else 0 for letter in image.axes)])
    kept = [letter for letter in image.axes if letter in "YXC"]
    plane = cast(array.transpose([kept.index(letter) for letter in "YXC" if letter in kept]), stored)
    plane = plane[..., 0] if plane.ndim == 3 and plane.shape[-1] == 1 else plane
    with open(path, "wb") as file:
        file.write(_encode(plane, image, png=png))


def _encode(plane: Array, image: Image, *, png: bool) -> bytes:
    if plane.dtype == np.uint16 and plane.ndim == 3:
        from imagecodecs import png_encode

        return bytes(png_encode(plane))
    options: dict[str, Any] = {} if png else {"quality": 95, "subsampling": 0}
    options |= {name: image.metadata[name] for name in _KEPT if name in image.metadata}
    return bytes(iio.imwrite("<bytes>", plane, plugin="pillow", extension=".png" if png else ".jpg", **options))


def _integer_type(image: Image, dtype: Any, name: str, *, png: bool) -> np.dtype[Any]:
    """8 or 16 bits: what the caller asks for, else as in the source."""
    implied = dtype is None or (isinstance(dtype, str) and dtype == "same")
    wanted = np.dtype(image.source_dtype if implied else dtype)
    wanted = np.dtype(np.uint8) if wanted.kind == "b" else wanted
    if wanted == np.uint8 or (png and wanted == np.uint16):
        return wanted
    raise FileError(f"{name} cannot hold {wanted}; ask for uint8{' or uint16' * png}, or write a .tif file.")


def _read_deep_colour(path: Path) -> Array | None:
    """A PNG of 16 bits per sample with several samples per pixel; None for every other file."""
    with open(path, "rb") as file:
        head = file.read(26)
    if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < 26 or head[24] != 16 or head[25] == 0:
        return None
    from imagecodecs import png_decode

    return np.asarray(png_decode(path.read_bytes()))
