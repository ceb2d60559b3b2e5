"""Files that are whole or absent: written under a temporary name beside the target, synced, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import FileError

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EACCES: "you may not write there; choose another folder",
    errno.EPERM: "you may not write there; choose another folder",
    errno.EROFS: "that disk is read-only; choose another folder",
    errno.ENOTDIR: "a part of that path is a file and not a folder; choose another folder",
    errno.EEXIST: "a part of that path is a file and not a folder; choose another folder",
    errno.ENAMETOOLONG: "that name is too long; choose a shorter one",
    errno.EFBIG: "that disk cannot hold so large a file; choose another folder",
}


@contextmanager
def whole_or_absent(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary name to write to; it becomes `path` at the end of the block, or nothing is left of it.

    Whatever ends the block early, a full disk or Ctrl-C, an older `path` stays as it was.
    """
    if not overwrite and os.path.lexists(path):
        raise FileError(f"{path} exists; choose another name, or allow it to be replaced (--force, overwrite=True).")
    if path.is_dir() and not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zattrs")):
        raise FileError(f"{path} is a folder and no OME-Zarr image, so it is not overwritten; choose another name.")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync(temporary)
            if path.is_dir() and not temporary.is_dir():
                raise FileError(f"{path} is a folder and not a file, so it is not overwritten; choose another name.")
            if not overwrite and os.path.lexists(path):
                raise FileError(f"{path} appeared while it was written; choose another name, or use --force.")
            _move(temporary, path)
    finally:
        _remove(temporary)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says of a failure, in a sentence."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"the system says: {error.strerror or error}")
        raise FileError(f"{path} could not be written: {reason}.") from error


def _move(temporary: Path, path: Path) -> None:
    """A folder cannot be renamed onto a folder that has contents, so the old one steps aside first."""
    if not path.is_dir() or path.is_symlink():
        if temporary.is_dir() and os.path.lexists(path):
            path.unlink()
        os.replace(temporary, path)
        return
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
    os.replace(path, aside)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.replace(aside, path)
        raise
    _remove(aside)


def _sync(path: Path) -> None:
    if path.is_file():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
