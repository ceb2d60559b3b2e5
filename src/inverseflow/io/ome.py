"""OME-XML: what to take from it, and how to give it back with nothing lost.

The microscope's own document (instrument, objective, channels' colours, annotations) is kept as it is; only what
describes the pixels themselves is set anew: sizes, type, order, physical sizes, and where the planes lie in the file.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ..errors import FileError
from .image import Image, places, printable, unit_name

MOST_ELEMENTS, MOST_PLANES = 2_000_000, 10_000_000
_LENGTHS = ("km", "m", "dm", "cm", "mm", "µm", "nm", "pm", "fm", "Å", "thou", "in", "ft", "yd", "mi", "ua", "ly", "pc")
_TIMES = ("ks", "s", "ds", "cs", "ms", "µs", "ns", "ps", "fs", "min", "h", "d")
"""Units that OME-XML knows; a document with one that it does not know, Bio-Formats refuses to read."""
PIXEL_TYPES = {
    **{name: name for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")},
    "float32": "float",
    "float64": "double",
}


def check_description(path: Path, tif: Any) -> None:
    """Refuse a document that would grow, count planes without end, or name files outside of the folder.

    It is looked at as text: whoever parses it has lost already.
    """
    text = str(tif.pages.first.description or "") if len(tif.pages) else ""
    if "<!DOCTYPE" in text or "<!ENTITY" in text or text.count("<") > MOST_ELEMENTS:
        raise FileError(f"{path} has a description that would fill the memory when read; get it again from its source.")
    for pixels in re.findall(r"<(?:\w+:)?Pixels\b[^>]*", text):
        planes = math.prod(int(n[:20]) for n in re.findall(r"\bSize[CTZ]\s*=\s*[\"'](\d+)", pixels))
        if planes > MOST_PLANES:
            raise FileError(f"{path} claims {planes:.3g} planes; it is damaged, so get it again from its source.")
    for name in _other_files(text) if "FileName" in text else ():
        parts = name.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in parts[0]:
            raise FileError(
                f"{path} says that a part of it is the file {printable(name)}, outside of its folder; that is not read."
            )


def _other_files(text: str) -> list[str]:
    """The files that tifffile looks for pixels in: those of a set whose UUID is not that of this one."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:  # nobody else can read it either
        return []
    own = root.get("UUID")
    parts = (element for element in root.iter() if element.tag.endswith("UUID"))
    return [part.get("FileName", "") for part in parts if "FileName" in part.attrib and (not own or part.text != own)]


def own_first(xml: str, name: str) -> str:
    """The document with the image that lies in the file of this name before those of the other files of a set."""
    root = ElementTree.fromstring(xml)
    space, own = _namespace(root), root.get("UUID")
    images = root.findall(f"{space}Image")

    def is_here(image: ElementTree.Element) -> bool:
        for data in image.findall(f"{space}Pixels/{space}TiffData"):
            part = data.find(f"{space}UUID")
            if part is None or (part.text == own if own else part.get("FileName", "").lower() == name.lower()):
                return True
        return False

    here = next(filter(is_here, images), None)
    if here is None or here is images[0]:
        return xml
    root.remove(here)
    root.insert(list(root).index(images[0]), here)
    ElementTree.register_namespace("", space.strip("{}"))
    return ElementTree.tostring(root, encoding="unicode")


def parse(xml: str) -> dict[str, Any]:
    """pixel_size, units and channel_names of the first image."""
    root = ElementTree.fromstring(xml)
    pixels = root.find(f"{_namespace(root)}Image/{_namespace(root)}Pixels")
    found: dict[str, Any] = {"pixel_size": {}, "units": {}, "channel_names": ()}
    if pixels is None:
        return found
    names = {"X": "PhysicalSizeX", "Y": "PhysicalSizeY", "Z": "PhysicalSizeZ", "T": "TimeIncrement"}
    for letter, name in names.items():
        size = _number(pixels.get(name, ""))
        unit = unit_name(pixels.get(f"{name}Unit", "s" if letter == "T" else "µm"))
        if size > 0 and unit:  # pixels are no unit: such a size says nothing
            found["pixel_size"][letter], found["units"][letter] = size, unit
    channels = pixels.findall(f"{_namespace(root)}Channel")
    if any("Name" in channel.attrib for channel in channels):
        found["channel_names"] = _names(channels)
    return found


def _names(channels: list[ElementTree.Element]) -> tuple[str, ...]:
    return tuple(channel.get("Name") or channel.get("ID") or str(i) for i, channel in enumerate(channels))


def _number(text: str) -> float:
    """0 where it is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def sizes(image: Image) -> dict[str, Any]:
    """The attributes of Pixels that hold physical sizes and the time between frames, where OME-XML knows the unit."""
    found: dict[str, Any] = {}
    for letter, value in image.pixel_size.items():
        name = "TimeIncrement" if letter == "T" else f"PhysicalSize{letter}"
        unit = image.units.get(letter) or ("s" if letter == "T" else "µm")
        unit = "in" if unit == "inch" else unit
        if unit in (_TIMES if letter == "T" else _LENGTHS):
            found[name], found[f"{name}Unit"] = value, unit
    return found


def fresh(image: Image, axes: str) -> dict[str, Any]:
    """What tifffile needs to write a new OME-XML document."""
    count = image.shape[image.axes.index("C")] if "C" in image.axes else 1
    named = len(image.channel_names) == count and "S" not in axes
    return {"axes": axes, **sizes(image), **({"Channel": {"Name": list(image.channel_names)}} if named else {})}


def updated(xml: str, image: Image, order: str, dtype: np.dtype[Any], *, samples: bool) -> bytes | None:
    """The source's document for other pixels in the order of the file; None if its channels are not those of the image.

    `samples`: the channels lie interleaved within one plane, as in RGB.
    """
    root = ElementTree.fromstring(xml)
    space = _namespace(root)
    first, *others = root.findall(f"{space}Image")
    pixels = first.find(f"{space}Pixels")
    size = dict(zip(image.axes, image.shape, strict=True))
    count = size.get("C", 1)
    if pixels is None:
        return None
    _choose_channels(pixels, space, image.channel_names)
    channels = pixels.findall(f"{space}Channel")
    if channels and sum(int(c.get("SamplesPerPixel", 1)) for c in channels) != count:
        return None
    if samples != (len(channels) == 1 and count > 1):
        return None
    planes = [size.get(letter, 1) for letter in "TCZ"]
    same = planes == [int(pixels.get(f"Size{letter}", 1)) for letter in "TCZ"]
    _forget(root, others, space)
    for child in list(pixels):
        if child.tag.removeprefix(space) in ("TiffData", "BinData", "MetadataOnly", *(() if same else ("Plane",))):
            pixels.remove(child)
    number = int(np.prod([n for letter, n in size.items() if letter in ("TZ" if samples else "TCZ")], dtype=np.int64))
    data = ElementTree.Element(f"{space}TiffData", IFD="0", PlaneCount=str(number))
    pixels.insert(1 + max((list(pixels).index(c) for c in channels), default=-1), data)
    for name in ("BigEndian", "Interleaved", "SignificantBits"):
        if name != "SignificantBits" or PIXEL_TYPES[dtype.name] != pixels.get("Type"):
            pixels.attrib.pop(name, None)
    pixels.attrib.update({f"Size{letter}": str(size.get(letter, 1)) for letter in "XYZCT"})
    pixels.attrib.update({"Type": PIXEL_TYPES[dtype.name], "DimensionOrder": _dimension_order(order)})
    pixels.attrib.update({name: str(value) for name, value in sizes(image).items()})
    if samples:
        pixels.set("Interleaved", "true")
    for channel, name in zip(channels, image.channel_names, strict=False):
        if name != channel.get("ID"):
            channel.set("Name", name)
    ElementTree.register_namespace("", space.strip("{}"))
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _choose_channels(pixels: ElementTree.Element, space: str, names: tuple[str, ...]) -> None:
    """Of the source's channels those that the image still has, in its order, with their planes."""
    channels = pixels.findall(f"{space}Channel")
    chosen = places(_names(channels), names)
    if chosen in (None, list(range(len(channels)))) or any(c.get("SamplesPerPixel", "1") != "1" for c in channels):
        return
    first = list(pixels).index(channels[0])
    for channel in channels:
        pixels.remove(channel)
    for number, place in enumerate(chosen):
        pixels.insert(first + number, channels[place])
    numbers = {str(place): str(number) for number, place in enumerate(chosen)}
    for plane in pixels.findall(f"{space}Plane"):
        if plane.get("TheC") in numbers:
            plane.set("TheC", numbers[plane.get("TheC", "")])
        else:
            pixels.remove(plane)
    pixels.set("SizeC", str(len(chosen)))


def _forget(root: ElementTree.Element, images: list[ElementTree.Element], space: str) -> None:
    """Images that are not written go, and what refers to them or to other files of a set."""
    gone = {image.get("ID") for image in images}
    for image in images:
        root.remove(image)
    for parent in list(root.iter()):
        for child in parent.findall(f"{space}ImageRef"):
            if child.get("ID") in gone:
                parent.remove(child)
    root.attrib.pop("UUID", None)


def _dimension_order(order: str) -> str:
    """OME counts the fastest axis first; axes that the image does not have come last."""
    have = [letter for letter in reversed(order[: order.index("Y")]) if letter in "ZCT"]
    return "XY" + "".join(have) + "".join(letter for letter in "ZCT" if letter not in have)


def _namespace(root: ElementTree.Element) -> str:
    return root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
