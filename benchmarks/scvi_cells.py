"""scVI on counts: python scvi_cells.py counts.npz result.npz [--seed 0]

Runs in an environment of its own (`pip install torch==2.13.0 scvi-tools`) and imports nothing of inverseflow;
`benchmarks.cells --scvi PYTHON` calls it. counts.npz is a sparse matrix (cells, genes); result.npz gets the latent
space and the expected share of every gene in every cell. Settings are those of scVI.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy import sparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    import anndata
    import scvi

    logging.getLogger("scvi").setLevel(logging.ERROR)
    scvi.settings.seed = arguments.seed
    adata = anndata.AnnData(sparse.load_npz(arguments.source).astype(np.float32))
    scvi.model.SCVI.setup_anndata(adata)
    model = scvi.model.SCVI(adata)
    model.train(accelerator="cpu", enable_progress_bar=False)
    shares = model.get_normalized_expression(library_size=1, return_numpy=True)
    np.savez(arguments.target, latent=model.get_latent_representation(), shares=shares, version=scvi.__version__)


if __name__ == "__main__":
    main()
