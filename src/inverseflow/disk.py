"""What a disk says when it fails, in a sentence."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from .errors import FileError

_ELSEWHERE = "choose another folder"
_REASONS = {
    errno.EACCES: f"you may not write there; {_ELSEWHERE}",
    errno.EPERM: f"you may not write there; {_ELSEWHERE}",
    errno.EROFS: f"that disk is read-only; {_ELSEWHERE}",
    errno.ENOTDIR: f"a part of that path is a file and not a folder; {_ELSEWHERE}",
    errno.EEXIST: f"a part of that path is a file and not a folder; {_ELSEWHERE}",
    errno.ENAMETOOLONG: "that name is too long; choose a shorter one",
    errno.EFBIG: f"that disk cannot hold so large a file; {_ELSEWHERE}",
}


@contextmanager
def writing(path: Path, needed: int | None = None) -> Iterator[None]:
    """What the system says of a failure, in a sentence."""
    try:
        yield
    except Exception as error:
        raise_in_words(error, path, needed, 0)


def reserve(file: IO[bytes], size: int) -> None:
    """Take the room now: a disk that is full later, under a memory map, would kill the process without a word."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some disks cannot
                raise
    file.truncate(size)


def raise_in_words(error: Exception, path: Path, needed: int | None, taken: int) -> NoReturn:
    number = errno.ENOSPC if _says_full(error) else error.errno if isinstance(error, OSError) else None
    if isinstance(error, FileError) or (number is None and not isinstance(error, OSError)):
        raise error
    if number in (errno.ENOSPC, errno.EDQUOT):
        reason = f"{_too_little(path, needed, taken, number)}; free some space or choose another folder"
    else:
        said = error.strerror if isinstance(error, OSError) else None
        reason = _REASONS.get(number or 0, f"the system says: {said or error}")
    kept = " What was there before is as it was." if os.path.lexists(path) else ""
    raise FileError(f"{path} could not be written: {reason}.{kept}") from error


def _says_full(error: BaseException | None) -> bool:
    """Libraries hide it in their own exceptions."""
    words = ("No space left on device", "errno = 28")
    return error is not None and (any(word in str(error) for word in words) or _says_full(error.__context__))


def _too_little(path: Path, needed: int | None, taken: int, number: int) -> str:
    wanted = f"it needs {size_words(needed)}" if needed else f"it needs more than {size_words(taken)}" if taken else ""
    if number == errno.EDQUOT:
        return ", ".join(filter(None, ["your disk quota is used up", wanted]))
    folder = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    free = f"{size_words(shutil.disk_usage(folder).free)} are free"
    return f"the disk is full: {' and '.join(filter(None, [wanted, free]))}"


def size_words(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size >= 999.5:
            size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"
