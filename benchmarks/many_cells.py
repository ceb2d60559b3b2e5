"""Many cells: `inverseflow cells` on 100,000 cells by 50 components, seconds and peak memory of the whole command.

    python -m benchmarks.many_cells [--cells 100000] [--genes 2000] [--components 50]

Counts are drawn around 30 made-up types, about a tenth of them not zero. Making them and scanpy's PCA are timed apart:
the command gets a file with X_pca in it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.common import RESULTS, write_result

BLOCK = 4096


def made_up(cells: int, genes: int) -> sparse.csr_matrix:
    rng = np.random.default_rng(0)
    profiles = rng.gamma(0.3, 1, (30, genes))
    profiles /= profiles.sum(1, keepdims=True)
    blocks = []
    for first in range(0, cells, BLOCK):
        count = min(BLOCK, cells - first)
        rate = profiles[rng.integers(30, size=count)] * rng.lognormal(6, 0.4, (count, 1))
        blocks.append(sparse.csr_matrix(rng.poisson(rate).astype(np.float32)))
    return sparse.csr_matrix(sparse.vstack(blocks))


def prepare(path: Path, cells: int, genes: int, components: int) -> dict[str, Any]:
    import anndata
    import scanpy as sc

    started = time.perf_counter()
    adata = anndata.AnnData(made_up(cells, genes))
    adata.layers["counts"] = adata.X.copy()
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    sc.pp.pca(adata, n_comps=components)
    adata.write_h5ad(path)
    return {
        "not_zero": round(adata.X.nnz / np.prod(adata.shape), 3),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--genes", type=int, default=2000)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--output", type=Path, default=RESULTS / "many_cells.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cells.h5ad"
        figures = {"made": prepare(path, given.cells, given.genes, given.components)}
        command = [sys.executable, "-m", "inverseflow", "cells", str(path), "--n-comps", str(given.components)]
        started = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    figures |= {"cells": given.cells, "genes": given.genes, "components": given.components}
    figures |= {"seconds": round(seconds, 1), "peak_memory_gb": round(peak, 2)}
    print(figures)
    write_result(given.output, figures)


if __name__ == "__main__":
    main()
