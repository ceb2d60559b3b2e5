"""Every file that is written: whole or absent, and by one run at a time.

It is written under a hidden name beside its target, synced and renamed, and the folder is synced too. Whoever writes
holds the target's lock, which dies with its process. So what a holder finds under such hidden names was left by a run
that was killed, and is removed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from .disk import raise_in_words, writing
from .errors import FileError

try:
    import fcntl
except ImportError:  # Windows: two runs into one output are not noticed
    fcntl = None  # type: ignore[assignment]

NAME = 120
"""Bytes of a file's name that its hidden companions take over; some disks know no more than 143 in all."""
_HERE = hashlib.sha256(platform.node().encode()).hexdigest()[:4]  # locks of some network disks are a machine's own
_held: dict[Path, tuple[int | None, int]] = {}  # lock -> the open file, and how many in this process hold it
_guard = threading.RLock()


@contextmanager
def whole_or_absent(path: Path, *, overwrite: bool, needed: int | None = None) -> Iterator[Path]:
    """A temporary name to write to; it becomes `path` at the end of the block, or nothing is left of it.

    Whatever ends the block early, a full disk or Ctrl-C, an older `path` stays as it was. `needed`: bytes, if known.
    """
    refuse(path, overwrite=overwrite)
    with writing(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        temporary = hidden(path, f"{_HERE}{uuid.uuid4().hex[:8]}.tmp")
        try:
            yield temporary
            publish(temporary, path, overwrite=overwrite)
        except Exception as error:
            taken = _size(temporary)
            _remove(temporary)  # first, so that what is said to be free is
            raise_in_words(error, path, needed, taken)
        finally:
            _remove(temporary)


def write_whole(path: Path, content: bytes, *, overwrite: bool) -> None:
    with whole_or_absent(path, overwrite=overwrite, needed=len(content)) as temporary:
        temporary.write_bytes(content)


def refuse(path: Path, *, overwrite: bool) -> None:
    """Nothing is written over unless that is allowed, and no folder that is not an image."""
    with writing(path):
        there, folder = exists(path), path.is_dir()
    if folder and not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zattrs")):
        raise FileError(f"{path} is a folder and no OME-Zarr image, so it is not overwritten; choose another name.")
    if there and not overwrite:
        raise FileError(f"{path} exists; choose another name, or allow it to be replaced (--force, overwrite=True).")


def exists(path: Path) -> bool:
    """Also of a link that leads nowhere; a name that is too long is an error and not an absent file."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def publish(finished: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file or folder its name, once it is on the disk."""
    _sync(finished)
    if path.is_dir() and not path.is_symlink() and not finished.is_dir():
        raise FileError(f"{path} is a folder and not a file, so it is not overwritten; choose another name.")
    if not overwrite and os.path.lexists(path):
        raise FileError(f"{path} appeared while it was written; choose another name, or use --force.")
    _move(finished, path)
    _sync_entries(path.parent)


def hidden(path: Path, ending: str) -> Path:
    """.NAME.ending beside a file, for what belongs to it."""
    return path.with_name(f".{_stem(path)}.{ending}")


def _stem(path: Path) -> str:
    """The name, or its beginning and a digest where it is long."""
    name = os.fsencode(path.name)
    if len(name) <= NAME:
        return path.name
    return f"{name[: NAME - 17].decode('utf-8', 'ignore')}~{hashlib.sha256(name).hexdigest()[:16]}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else writes `path` meanwhile. Who holds the lock already, a command that writes at its end, may take it
    again.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.parent.resolve() / path.name
        lock = hidden(path, "lock")
        with _guard:
            if lock not in _held:
                _held[lock] = (_take(lock, path), 0)
            descriptor, count = _held[lock]
            _held[lock] = (descriptor, count + 1)
    try:
        yield
    finally:
        with _guard:
            descriptor, count = _held.pop(lock)
            if count > 1:
                _held[lock] = (descriptor, count - 1)
            elif descriptor is not None:
                with suppress(PermissionError):  # another user's, in a folder where everybody may only remove his own
                    lock.unlink(missing_ok=True)  # first, so that nobody can take one that is about to go
                os.close(descriptor)


def _take(lock: Path, path: Path) -> int | None:
    """The open, locked file; None where there are no locks, as on some network disks."""
    if fcntl is None:
        return None
    while True:
        descriptor = _open(lock, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = ""
            with suppress(OSError):
                owner = os.read(descriptor, 200).decode(errors="replace")
            os.close(descriptor)
            raise FileError(
                f"{path} is being written by another run{owner and f' ({owner})'}; wait until it is done, or choose "
                "another name."
            ) from None
        except OSError:
            os.close(descriptor)
            lock.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                break
        os.close(descriptor)  # its last holder has just removed it
    with suppress(OSError):  # a full disk
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
    _clean(path)
    return descriptor


def _open(lock: Path, path: Path) -> int:
    """A lock that another user's run has left can only be read, which is enough to take it."""
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        if not os.path.lexists(lock):
            raise
    try:
        return os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError as error:
        raise FileError(
            f"{path} may be written by another user's run; if it has ended, remove {lock}, or choose another name."
        ) from error


def _clean(path: Path) -> None:
    """Remove what a killed run has left, and put back what it had moved aside."""
    ours = re.compile(rf"\.{re.escape(_stem(path))}\.{_HERE}[0-9a-f]{{8}}\.(tmp|old)")
    for name in os.listdir(path.parent):
        if found := ours.fullmatch(name):
            if found[1] == "old" and not os.path.lexists(path):
                os.replace(path.with_name(name), path)
            else:
                _remove(path.with_name(name))


def _move(finished: Path, path: Path) -> None:
    """A folder cannot be renamed onto a folder that has contents, so the old one steps aside first."""
    if not path.is_dir() or path.is_symlink():
        if finished.is_dir() and os.path.lexists(path):
            path.unlink()
        os.replace(finished, path)
        return
    aside = hidden(path, f"{_HERE}{uuid.uuid4().hex[:8]}.old")
    os.replace(path, aside)
    try:
        os.replace(finished, path)
    except BaseException:
        os.replace(aside, path)
        raise
    _remove(aside)


def _sync(path: Path) -> None:
    """Wait until a file, or all files of a folder, are on the disk."""
    if not path.is_dir():
        sync_file(path)
        return
    with ThreadPoolExecutor(8) as pool:  # a disk syncs many files nearly as fast as one
        for folder, _, names in os.walk(path):
            list(pool.map(sync_file, (Path(folder, name) for name in names)))
            _sync_entries(Path(folder))


def sync_file(path: Path) -> None:
    with open(path, "r+b") as file:  # Windows syncs only what may be written
        os.fsync(file.fileno())


def _sync_entries(folder: Path) -> None:
    """The names in a folder; not every system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else []
    return sum(file.stat().st_size for file in files)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
