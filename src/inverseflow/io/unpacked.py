"""How much a stored chunk unpacks to, told before anything takes the memory for it.

Blosc, LZ4 and nearly always Zstandard say it in their first bytes, and their libraries take them at their word. The
rest is unpacked piece by piece, or into as much room as the chunk may fill, and thrown away.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any

from .bounds import RATIO, SMALL

PIECE = 2**20
HEAD = 18
"""Bytes in which a packer that says the size has said it."""
STREAMS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=47),
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}
PACKERS = ("blosc", "lz4", "zstd", *STREAMS)


def fits(packer: str, file: IO[bytes], start: int, length: int, most: int) -> bool:
    """Do these bytes of a file unpack to `most` at most? What is damaged is for the packer's own library to refuse."""
    if packer in ("gzip", "zlib") and RATIO * length <= SMALL:
        return True
    file.seek(start)
    if packer in STREAMS:
        try:
            return _piecewise(STREAMS[packer], file.read(length), most)
        except (zlib.error, lzma.LZMAError, OSError, EOFError):
            return True
    head = file.read(min(length, HEAD))
    size = _said_by_zstd(head) if packer == "zstd" else _number(head, 4 if packer == "blosc" else 0, 4)
    return size <= most if size is not None else packer != "zstd" or _zstd(head + file.read(length - len(head)), most)


def _number(head: bytes, at: int, count: int) -> int | None:
    return int.from_bytes(head[at : at + count], "little") if len(head) >= at + count else None


def _said_by_zstd(head: bytes) -> int | None:
    """The content size of a frame's header (RFC 8878, 3.1.1.1), which may be left out."""
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return None
    one, count = bool(head[4] & 32), (0, 2, 4, 8)[head[4] >> 6]
    count = count or int(one)
    size = _number(head, 5 + (not one) + (0, 1, 2, 4)[head[4] & 3], count) if count else None
    return size + 256 if size is not None and count == 2 else size


def _piecewise(begin: Callable[[], Any], packed: bytes, most: int) -> bool:
    """One stream after the other, with zeros between them, as the libraries unpack them."""
    stream, done, fresh = begin(), 0, True
    for start in range(0, len(packed), PIECE):
        piece, more = packed[start : start + PIECE], True
        while more:
            piece = piece.lstrip(b"\0") if fresh else piece
            part = stream.decompress(piece, PIECE)
            done += len(part)
            if done > most:
                return False
            fresh = stream.eof or (fresh and not piece)
            if stream.eof:
                stream, piece = begin(), stream.unused_data
            else:
                piece = getattr(stream, "unconsumed_tail", b"")
            more = bool(piece or part)
    return True


def _zstd(packed: bytes, most: int) -> bool:
    import imagecodecs

    try:
        imagecodecs.zstd_decode(packed, out=most)
    except imagecodecs.ZstdError as error:
        return "too small" not in str(error)
    return True
