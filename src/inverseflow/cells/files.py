"""Files of cells from anybody: what they claim is checked before a reader takes memory for it."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from scipy import sparse

from ..errors import FileError
from ..io.bounds import PLAUSIBLE, check_claim

MOST_OBJECTS = 100_000


def check_cells(source: Path) -> None:
    if source.is_dir():
        _check_matrix(_matrix_in(source))
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
    with _text(path) as file:
        lines = (file.readline(1000) for _ in range(1000))
        size = next((line.split() for line in lines if line and not line.startswith("%")), [])
    rows, columns, entries = map(int, size)
    check_claim(path, max(16 * entries, 8 * (rows + columns)), path.stat().st_size, PLAUSIBLE)


def read_folder(folder: Path) -> Any:
    """matrix.mtx and its names as any version of Cell Ranger or STARsolo writes them, packed or not, also with a
    sample's name before every file's, as GEO keeps them. Where features have types, genes are read.
    """
    import anndata
    from scipy.io import mmread

    matrix = _matrix_in(folder)
    prefix = matrix.name[: matrix.name.index("matrix.mtx")]
    cells = _rows(folder, f"{prefix}barcodes.tsv")
    genes = _rows(folder, f"{prefix}features.tsv", f"{prefix}genes.tsv")
    adata = anndata.AnnData(sparse.csr_matrix(mmread(matrix).T, dtype=np.float32))
    if adata.shape != (len(cells), len(genes)):
        raise FileError(
            f"{folder} has counts of {adata.n_obs} cells and {adata.n_vars} genes, but names of {len(cells)} and"
            f" {len(genes)}; its files are of different samples or cut short, so copy them again."
        )
    adata.obs_names = [row[0] for row in cells]
    adata.var_names = [row[min(1, len(row) - 1)] for row in genes]  # the symbol; some have no more than the id
    adata.var_names_make_unique()
    adata.var["gene_ids"] = [row[0] for row in genes]
    if min(map(len, genes)) < 3:
        return adata
    adata.var["feature_types"] = [row[2] for row in genes]
    return adata[:, adata.var["feature_types"] == "Gene Expression"].copy()


def _matrix_in(folder: Path) -> Path:
    """The only one; of a file and the same file packed, the former."""
    named = (path for end in ("", ".gz") for path in folder.glob(f"*matrix.mtx{end}"))
    found = sorted(path for path in named if not path.name.startswith("."))  # macOS leaves ._matrix.mtx
    samples = len({path.name.removesuffix(".gz") for path in found})
    if samples != 1:
        raise FileError(
            f"{folder} has {samples or 'no'} files matrix.mtx or matrix.mtx.gz; give a folder of one sample."
        )
    return found[0]


def _rows(folder: Path, *names: str) -> list[list[str]]:
    """The columns of every line of the first of these files that is there."""
    for path in (folder / f"{name}{end}" for name in names for end in ("", ".gz")):
        if path.is_file():
            with _text(path) as file:
                return [row for row in csv.reader(file, delimiter="\t") if row]
    raise FileError(f"{folder} has no {' or '.join(names)} (or .gz), the names; copy it beside the matrix.")


def _text(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
