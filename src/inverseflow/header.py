"""The header of a safetensors file, checked before anything in it is believed or takes memory.

The file is the length of its header (8 bytes), the header (JSON), and the values of the tensors one after the other.
The header says where each tensor lies, and holds our own description as one more JSON text. Nothing in it is code, and
no path in it is opened.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .errors import ModelFileError

HEADER = "inverseflow"
FORMATS = {"model": 1, "generator": 1, "checkpoint": 1}
"""The newest format of each kind of file; older ones are read too."""
MAX_HEADER, MAX_BYTES = 32 * 2**20, 8 * 2**30
"""Bytes of a header and of all tensors; our largest network has 0.1 % of the latter."""
MAX_TENSORS, MAX_LISTS, MAX_DEPTH = 100_000, 1_000_000, 16
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class Header:
    """What a file says of itself, and the type and shape of each of its tensors."""

    about: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]


class _Refused(ValueError):
    """Why a file is not believed, as the end of a sentence."""


def read_header(path: Path, *kinds: str) -> Header:
    """The header of a file whose kind is one of `kinds`; not one of its values is read."""
    kind = " or ".join(kinds)
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}; check the name and the folder.")
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            size, length = path.stat().st_size, int.from_bytes(start, "little")
            if start.startswith(PICKLES):
                raise _Refused("it is a Python pickle, which could run any code, so it is not opened")
            if len(start) < 8 or length > size - 8:
                raise _Refused("its header is longer than the file")
            if length > MAX_HEADER:
                raise _Refused(f"its header has {length / 2**20:.0f} MB, {MAX_HEADER // 2**20} are the most")
            outer = parse(file.read(length))
        header = Header(_our_part(outer), _tensors(outer, size - 8 - length))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error.strerror}); check its rights, or copy it.") from error
    except ValueError as error:
        reason = f" ({error})" if isinstance(error, _Refused) else ""
        raise ModelFileError(
            f"{path} is not an inverseflow {kind}, or it is damaged{reason}; give a file that inverseflow wrote."
        ) from error
    found = header.about.get("kind")
    if found not in kinds:
        other = f" but a {found}" if isinstance(found, str) and found in FORMATS else ""
        raise ModelFileError(f"{path} is not an inverseflow {kind}{other}; give a file that inverseflow wrote.")
    _check_format(path, header.about)
    return header


def parse(text: bytes | str) -> Any:
    """JSON of bounded depth and width, without NaN, infinities or a key that stands twice."""
    raw = text.encode() if isinstance(text, str) else text
    if raw.count(b"[") + raw.count(b"{") > MAX_LISTS:
        raise _Refused("its header has too many parts")
    try:
        found = json.loads(raw, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise _Refused("its header is nested too deeply") from None
    _check_values(found, MAX_DEPTH)
    return found


def check_keys(path: Path, about: Mapping[str, Any], needed: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Every key that is needed is there, those that are known have their type; others are named and left alone.

    A type is a class, [type] for a list of it, or {str: type} for names with values of it.
    """
    missing = [key for key in needed if key not in about]
    if missing:
        raise ModelFileError(f"{path} cannot be used as it is: its header lacks {missing[0]!r}.")
    known = {**needed, **optional}
    for key, value in about.items():
        if key in known and not _fits(value, known[key]):
            raise ModelFileError(
                f"{path} cannot be used as it is: {key!r} in its header must be {_words(known[key])}, "
                f"not {_shortened(value)}."
            )
    extra = [key for key in about if key not in known and key not in ("kind", "format", "version")]
    if extra:
        names = ", ".join(repr(key[:40]) for key in extra[:4])
        warnings.warn(f"{path.name} says more than this version knows ({names}), which is ignored.", stacklevel=4)


def _our_part(outer: Any) -> dict[str, Any]:
    metadata = outer.get("__metadata__") if isinstance(outer, dict) else None
    text = metadata.get(HEADER) if isinstance(metadata, dict) else None
    about = parse(text) if isinstance(text, str) else None
    if not isinstance(about, dict):
        raise _Refused("it has no description that inverseflow wrote")
    return about


def _tensors(outer: dict[str, Any], size: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The table of tensors, which must lie one after the other and fill the file."""
    entries = {name: entry for name, entry in outer.items() if name != "__metadata__"}
    if len(entries) > MAX_TENSORS:
        raise _Refused(f"it has {len(entries)} tensors, {MAX_TENSORS} are the most")
    if size > MAX_BYTES:
        raise _Refused(f"its tensors have {size / 2**30:.0f} GB, {MAX_BYTES // 2**30} are the most")
    places, found = [], {}
    for name, entry in entries.items():
        if not _fits(entry, {str: object}) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise _Refused(f"the tensor {_shortened(name)} is not described as it should be")
        kind, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not (_fits(kind, str) and kind in SIZES and _fits(shape, [int]) and _fits(place, [int]) and len(place) == 2):
            raise _Refused(f"the tensor {_shortened(name)} is not described as it should be")
        if min(shape, default=0) < 0 or len(shape) > 8 or place[1] - place[0] != math.prod(shape) * SIZES[kind]:
            raise _Refused(f"the tensor {_shortened(name)} has not the size of its shape")
        places.append((place[0], place[1]))
        found[name] = (kind, tuple(shape))
    end = 0
    for first, last in sorted(places):
        if first != end:
            raise _Refused("its tensors overlap" if first < end else "there is a gap between its tensors")
        end = last
    if end != size:
        raise _Refused("its tensors lie outside the file" if end > size else "it is longer than its tensors")
    return found


def _check_format(path: Path, about: dict[str, Any]) -> None:
    kind, found = about["kind"], about.get("format", 1)
    if not _fits(found, int) or found < 1:
        raise ModelFileError(f"{path} has no format number that is possible; it is damaged, so copy it again.")
    if found > FORMATS[kind]:
        by = about.get("version")
        newer = f", written by inverseflow {by[:20]}" if isinstance(by, str) else ""
        raise ModelFileError(
            f"{path} has the {kind} format {found}{newer}; this inverseflow {__version__} reads up to {FORMATS[kind]}, "
            "so update inverseflow."
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused("a name stands twice in its header")
    return found


def _no_constant(name: str) -> None:
    raise _Refused(f"its header has the number {name}")


def _check_values(value: Any, left: int) -> None:
    if isinstance(value, dict | list):
        if not left:
            raise _Refused("its header is nested too deeply")
        for part in value.values() if isinstance(value, dict) else value:
            _check_values(part, left - 1)
    elif (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= 2**63):
        raise _Refused("its header has a number that is too large")


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(value, list) and all(_fits(part, kind[0]) for part in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_fits(part, kind[str]) for part in value.values())
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, (int, float) if kind is float else kind)


def _words(kind: Any) -> str:
    if isinstance(kind, list):
        return f"a list ({_words(kind[0])} each)"
    if isinstance(kind, dict):
        return f"names with values ({_words(kind[str])} each)" if kind[str] is not object else "names with values"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "names with values"}[
        kind
    ]


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
