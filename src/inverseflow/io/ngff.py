"""NGFF, the metadata of OME-Zarr: what to take from them, and how to write them, through ome-zarr-models."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from .image import Image, places, unit_name

_UNITS = {
    "µm": "micrometer",
    "nm": "nanometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
    "pm": "picometer",
    "Å": "angstrom",
    "s": "second",
    "ms": "millisecond",
    "µs": "microsecond",
    "ns": "nanosecond",
    "min": "minute",
    "h": "hour",
    "d": "day",
}
_TYPES = {"T": "time", "C": "channel", "Z": "space", "Y": "space", "X": "space"}


def parse(path: Path, raw: Any, version: str) -> tuple[tuple[list[float], list[float]], Any, str | None]:
    """((scale, translation) of level 0, the library's model, our axes or None)."""
    models = importlib.import_module(f"ome_zarr_models.v{version.replace('.', '')}.multiscales")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", importlib.import_module("ome_zarr_models.exceptions").ValidationWarning)
            model = models.Multiscale.model_validate(raw)
    except ValueError as error:
        raise FileError(f"{path} has OME-Zarr {version} metadata that break the rules of the format.") from error
    scale, shift = [1.0] * len(model.axes), [0.0] * len(model.axes)
    steps = [*model.datasets[0].coordinateTransformations, *(model.coordinateTransformations or ())]
    for step in steps:
        factor, offset = getattr(step, "scale", None), getattr(step, "translation", None)
        if factor is not None:
            scale = [a * b for a, b in zip(scale, factor, strict=True)]
            shift = [a * b for a, b in zip(shift, factor, strict=True)]
        if offset is not None:
            shift = [a + b for a, b in zip(shift, offset, strict=True)]
    names = {"time": "T", "channel": "C"}
    letters = "".join(names.get(str(axis.type), str(axis.name)).upper() for axis in model.axes)
    known = len(letters) == len(model.axes) == len(set(letters)) and set(letters) <= set("TCZYX")
    return (scale, shift), model, letters if known else None


def attributes(image: Image, order: str, levels: int, version: str, window: list[float]) -> dict[str, Any]:
    models = importlib.import_module(f"ome_zarr_models.v{version.replace('.', '')}.multiscales")
    axes = importlib.import_module(f"ome_zarr_models.v{version.replace('.', '')}.axes")
    scale = [float(image.pixel_size.get(letter, 1.0)) for letter in order]
    shift = list(image.metadata.get("translation") or ()) if image.metadata.get("axes") == order else []
    shift = shift if len(shift) == len(order) else [0.0] * len(order)
    datasets = []
    for level in range(levels):
        factor = [2.0**level if letter in "YX" else 1.0 for letter in order]
        moved = [t + s * (f - 1) / 2 for t, s, f in zip(shift, scale, factor, strict=True)]
        sizes = [s * f for s, f in zip(scale, factor, strict=True)]
        datasets.append(models.Dataset.build(path=str(level), scale=sizes, translation=moved if any(moved) else None))
    units = {letter: _UNITS.get(unit, unit) for letter, unit in image.units.items()}
    named = [
        axes.Axis(name=letter.lower(), type=_TYPES[letter], **({"unit": units[letter]} if units.get(letter) else {}))
        for letter in order
    ]
    extra = {"version": version} if version == "0.4" else {}
    name = image.metadata.get("name") or "image"
    model = models.Multiscale(axes=tuple(named), datasets=tuple(datasets), name=name, type="mean", **extra)
    found: dict[str, Any] = dict(image.metadata.get("attributes") or {}) if image.kind == "ome-zarr" else {}
    found["multiscales"] = [model.model_dump(mode="json", exclude_none=True)]
    count = image.shape[image.axes.index("C")] if "C" in image.axes else 1
    if len(image.channel_names) == count:
        found["omero"] = _omero(found.get("omero") or {}, image.channel_names, window)
    else:
        found.pop("omero", None)
    return found if version == "0.4" else {"version": "0.5", **found}


def listed(omero: Any) -> list[dict[str, Any]]:
    """The channels of the display settings; none if they are not what the format says."""
    channels = omero.get("channels") if isinstance(omero, dict) else None
    return channels if isinstance(channels, list) and all(isinstance(c, dict) for c in channels) else []


def channel_names(channels: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(str(channel.get("label", number)) for number, channel in enumerate(channels))


def sizes(letters: str, axes: Any, scale: list[float]) -> tuple[dict[str, float], dict[str, str]]:
    """pixel_size and units. What the file says of a depth is not said of it once --axes calls it a time."""
    size: dict[str, float] = {}
    units: dict[str, str] = {}
    for letter, axis, length in zip(letters, axes, scale, strict=True):
        if letter not in "TZYX" or str(axis.type) not in ("None", _TYPES[letter]):
            continue
        unit = unit_name(axis.unit)
        if unit:
            size[letter], units[letter] = length, unit
        elif not axis.unit and length != 1:
            size[letter] = length
    return size, units


def _omero(omero: dict[str, Any], names: tuple[str, ...], window: list[float]) -> dict[str, Any]:
    """The source's display settings with the image's channel names; without any, white from minimum to maximum."""
    low, high = window if np.isfinite(window).all() else (0.0, 1.0)
    plain = {"color": "FFFFFF", "active": True, "window": {"min": low, "max": high, "start": low, "end": high}}
    channels = listed(omero)
    chosen = places(channel_names(channels), names)
    if chosen is not None:
        channels = [channels[place] for place in chosen]
    kept = channels if len(channels) == len(names) else [plain] * len(names)
    return {**omero, "channels": [{**channel, "label": name} for channel, name in zip(kept, names, strict=True)]}
