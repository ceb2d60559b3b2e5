"""ImageJ's way of saying things: `key=value` lines in the description, calibration in the resolution tags.

The order of the planes is always TZC, each plane YX or, for 8-bit colour only, YX with interleaved samples. Pixels are
uint8, uint16, int16 or float32. XResolution counts pixels per `unit`; `spacing` is the step in Z in the same unit;
`finterval` is the time between frames. Letters beyond ASCII are escaped as Java does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .image import Image, places, unit_name

_COUNTS = ("images", "channels", "slices", "frames", "order", "hyperstack", "axes")


def parse(meta: Mapping[str, Any], resolution: tuple[float, float], channels: int) -> dict[str, Any]:
    """pixel_size, units and channel_names; `resolution` is in pixels per unit along X and Y, 0 where unknown."""
    size: dict[str, float] = {}
    unit = unit_name(_unescape(meta.get("unit", "")))
    if unit:
        size |= {letter: 1 / n for letter, n in zip("XY", resolution, strict=True) if n > 0}
        if meta.get("spacing"):
            size["Z"] = abs(float(meta["spacing"]))
    units = dict.fromkeys(size, unit)
    if meta.get("finterval"):
        size["T"], units["T"] = float(meta["finterval"]), unit_name(_unescape(meta.get("tunit", ""))) or "s"
    return {"pixel_size": size, "units": units, "channel_names": _names(meta, channels)}


def _names(meta: Mapping[str, Any], channels: int) -> tuple[str, ...]:
    """The names of the channels, where the labels of the planes repeat them."""
    labels = _listed(meta.get("Labels") or [])
    named = len(labels) >= channels > 1 and labels == labels[:channels] * (len(labels) // channels)
    return tuple(labels[:channels]) if named else ()


def order(image: Image, dtype: np.dtype[Any]) -> str:
    """The axes in the order of an ImageJ file; interleaved colour survives only in 8 bits."""
    rgb = image.axes.endswith("YXC") and image.shape[-1] in (3, 4) and dtype == np.uint8
    return "".join(letter for letter in ("TZYXC" if rgb else "TZCYX") if letter in image.axes)


def describe(image: Image, axes: str) -> dict[str, Any]:
    """What tifffile needs to write the description and ImageJ's own tags: the source's, and the image's sizes."""
    meta = {key: value for key, value in image.metadata.get("imagej", {}).items() if key not in _COUNTS}
    number = {letter: n for letter, n in zip(image.axes, image.shape, strict=True) if letter in axes.partition("Y")[0]}
    planes, channels = int(np.prod(list(number.values()), dtype=np.int64)), number.get("C", 1)
    labels = _listed(meta.pop("Labels", []))
    if len(image.channel_names) == channels and (channels > 1 or len(labels) != planes):
        labels = list(image.channel_names) * (planes // channels)  # C is the fastest axis of an ImageJ stack
    if len(labels) == planes:
        meta["Labels"] = labels
    if channels > 1:
        meta.setdefault("mode", "composite")
    meta = {key: value for key, value in meta.items() if key not in ("LUTs", "Ranges")} | _display(image, channels)
    if "X" in image.pixel_size:
        meta["unit"] = _escape(image.units.get("X") or "µm")
    if "Z" in image.pixel_size:
        meta["spacing"] = image.pixel_size["Z"]
    if "T" in image.pixel_size:
        meta["finterval"] = image.pixel_size["T"]
        if image.units.get("T", "s") != "s":
            meta["tunit"] = _escape(image.units["T"])
    said = {_escape(k): _escape(v) if isinstance(v, str) and k != "Info" else v for k, v in meta.items()}
    return {"axes": axes, **said}


def _display(image: Image, channels: int) -> dict[str, Any]:
    """The source's lookup tables and display ranges, of the channels that the image still has, in its order."""
    source = image.metadata.get("imagej", {})
    had = source["channels"] if isinstance(source.get("channels"), int) else channels
    chosen = places(_names(source, had), image.channel_names) or list(range(had))
    tables, bounds = _listed(source.get("LUTs", [])), source.get("Ranges")
    found: dict[str, Any] = {}
    if len(chosen) == channels and len(tables) == had:
        found["LUTs"] = [tables[place] for place in chosen]
    if len(chosen) == channels and isinstance(bounds, tuple | list) and len(bounds) == 2 * had:
        found["Ranges"] = tuple(bound for place in chosen for bound in bounds[2 * place : 2 * place + 2])
    return found


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list) else [values]


def _escape(text: str) -> str:
    return "".join(c if c.isascii() else f"\\u{ord(c):04X}" for c in text)


def _unescape(text: Any) -> str:
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), str(text))
