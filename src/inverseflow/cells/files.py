"""Files of cells from anybody: what they claim is checked before a reader takes memory for it."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..io.bounds import PLAUSIBLE, check_claim

MOST_OBJECTS = 100_000


def check_cells(source: Path) -> None:
    if source.is_dir():
        for path in [*source.glob("*matrix.mtx"), *source.glob("*matrix.mtx.gz")]:
            _check_matrix(path)
    elif source.suffix in (".h5ad", ".h5", ".loom"):
        _check_hdf5(source)


def _check_hdf5(path: Path) -> None:
    """All that the file claims must fit in it, and lie in it and not in another file of this machine."""
    import h5py

    claimed = count = 0
    with h5py.File(path, "r") as file:
        todo: list[Any] = [file]
        seen = set()
        while todo:
            group = todo.pop()
            for name in group:
                count += 1
                if count > MOST_OBJECTS:
                    raise FileError(f"{path} has more than {MOST_OBJECTS} parts, which no file of cells has.")
                if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
                    raise FileError(f"{path} says that {name} is in another file, which is not read.")
                part = group.get(name)
                if isinstance(part, h5py.Group) and part.id.__hash__() not in seen:
                    seen.add(part.id.__hash__())
                    todo.append(part)
                if isinstance(part, h5py.Dataset):
                    if part.external or part.is_virtual:
                        raise FileError(
                            f"{path} says that the values of {name} are in another file, which is not read."
                        )
                    claimed += math.prod(part.shape or ()) * part.dtype.itemsize
    check_claim(path, claimed, path.stat().st_size, PLAUSIBLE)


def _check_matrix(path: Path) -> None:
    """Every entry of a matrix is a line of at least six characters."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        lines = (file.readline(1000) for _ in range(1000))
        size = next((line.split() for line in lines if line and not line.startswith("%")), [])
    rows, columns, entries = map(int, size)
    check_claim(path, max(16 * entries, 8 * (rows + columns)), path.stat().st_size, PLAUSIBLE)
