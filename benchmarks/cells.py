"""Single cells: what denoising gives on four labelled sets of counts, and on counts drawn around known profiles.

    python -m benchmarks.cells --data ../shared/data [--workers 2] [--sets baron,zeisel] [--seeds 3]

Accuracy: how often the nearest other cell has the same label, in the first 2, 6 and 20 principal components of the
result; labels are used for nothing else. "held-out molecules": a method sees half of every cell's molecules, and its
result is compared with the other half; 1 is what half the molecules say themselves. A method that snaps cells to
cluster centres ("snap") is there to show which columns such a cheat wins. MAGIC with t = 3, on square roots as its
authors do and on logarithms. ALRA in our implementation (alra.py). scVI as it comes, its latent space and its expected
expression, where --scvi names the python of an environment that has it (see scvi_cells.py).

"molecules" is molecular cross-validation in the space of genes: from half of the molecules a method says what the other
half should be, and its Poisson loss is set against that of the mean profile of all cells. "spikes": the amounts of
spike-ins (zeisel) are the same in every cell, so that all their spread is noise, and what we find is set against it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks.alra import alra
from benchmarks.common import RESULTS, write_result
from inverseflow import tl
from inverseflow.cells import CellDenoiser, Projection, read_cells, technical_noise
from inverseflow.metrics import (
    clustering_scores,
    molecular_cross_validation,
    neighbour_accuracy,
    noise_distance,
    principal_components,
    split_molecules,
)

SETS = {
    "zeisel": ("zeisel2015_subset", "level2class"),
    "pancreas": ("pancreas_e15_subset", "clusters"),
    "baron": ("baron_mouse1", "cell_type"),
    "bladder": ("mca_bladder_2100", "cluster"),
}
METHODS = ("pca", "magic sqrt", "magic log", "alra", "snap", "paper", "ours")
PARTS = ("simulated", "spikes", "sets", "molecules")
SEEDED = ("snap", "paper", "ours")
COMPONENTS = (2, 6, 20)
NEIGHBOURS, REDRAWS = 15, 60
FLOOR = 0.01  # of a profile is the mean one's, so that a zero that is no zero costs something, and not everything
SPIKES = 10  # components of the spike-ins
Array = np.ndarray[Any, Any]


def prepared(counts: sparse.csr_matrix, components: int = 50) -> Any:
    """scanpy's standard way to components; the genes of these sets are chosen already."""
    import anndata
    import scanpy as sc

    adata = anndata.AnnData(sparse.csr_matrix(counts, dtype=np.float32))
    adata.layers["counts"] = adata.X.copy()
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    sc.pp.pca(adata, n_comps=components)
    return adata


def load(name: str, data: Path) -> tuple[sparse.csr_matrix, Array]:
    import anndata

    file, label = SETS[name]
    adata = anndata.read_h5ad(data / "scRNA" / f"{file}.h5ad")
    return sparse.csr_matrix(adata.X).astype(np.int64), adata.obs[label].astype(str).to_numpy()


def result_of(method: str, adata: Any, seed: int) -> tuple[Array, Projection]:
    """Components (n, 20 or more), in the units of the PCA, and the projection of that PCA."""
    components, counts, projection = read_cells(adata, n_comps=20)
    if method == "pca":
        return np.asarray(adata.obsm["X_pca"], dtype=np.float64), projection
    if method == "snap":
        from sklearn.cluster import KMeans

        few = components[:, :6]
        clusters = KMeans(30, n_init=4, random_state=seed).fit(few)
        return clusters.cluster_centers_[clusters.labels_], projection
    if method == "paper":
        found = CellDenoiser(0.4 * components[:, 0].std(), preset="paper", seed=seed, device="cpu")
        return found.fit(components[:, :6]).transform(components[:, :6]), projection
    if method == "ours":
        tl.denoise(adata, random_state=seed, device="cpu")
        return adata.obsm["X_inverseflow"], projection
    if method.startswith("scvi"):
        latent, shares = scvi(adata.layers["counts"], seed)
        if method == "scvi latent":
            return principal_components(latent, 50), projection  # another space
        return (np.log1p(projection.target * shares) - projection.centre) @ projection.loadings, projection
    expression = expression_of(method, counts, projection.target, seed)
    if method == "magic sqrt":
        return principal_components(expression, 50), projection  # of square roots: another space
    return (expression - projection.centre) @ projection.loadings, projection


def expression_of(method: str, counts: sparse.csr_matrix, target: float, seed: int) -> Array:
    """(cells, genes), by methods that work on these: square roots or logarithms."""
    whole = np.asarray(counts.todense(), dtype=np.float64)
    shares = target * whole / whole.sum(1, keepdims=True)
    seen = np.sqrt(shares) if method == "magic sqrt" else np.log1p(shares)
    if method == "alra":
        return alra(seen, seed=seed)
    import magic

    smooth: Array = magic.MAGIC(knn=5, t=3, verbose=0, random_state=seed, solver="exact").fit_transform(seen)
    return smooth


def scvi(counts: sparse.csr_matrix, seed: int) -> tuple[Array, Array]:
    """The latent space (cells, 10) and the share of every gene (cells, genes), by scVI in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "counts.npz", Path(folder) / "result.npz"
        sparse.save_npz(source, sparse.csr_matrix(counts))
        script = Path(__file__).with_name("scvi_cells.py")
        subprocess.run([os.environ["SCVI_PYTHON"], script, source, target, "--seed", str(seed)], check=True)
        found = np.load(target)
        return found["latent"].astype(np.float64), found["shares"].astype(np.float64)


def on_a_set(name: str, method: str, seed: int, data: Path) -> dict[str, Any]:
    quiet()
    counts, labels = load(name, data)
    adata = prepared(counts)
    started = time.perf_counter()
    result, _ = result_of(method, adata, seed)
    row: dict[str, Any] = {"set": name, "method": method, "seed": seed, "cells": len(labels)}
    row["seconds"] = round(time.perf_counter() - started, 1)
    row["accuracy"] = {str(k): round(neighbour_accuracy(result, labels, k), 4) for k in COMPONENTS}
    row |= {key: round(value, 3) for key, value in clustering_scores(result[:, :20], labels, seed).items()}
    if method not in ("magic sqrt", "scvi latent"):
        row["held_out"] = round(held_out(method, counts, seed), 4)
    return row


def held_out(method: str, counts: sparse.csr_matrix, seed: int) -> float:
    """Squared distance of the result from the other half of the molecules, over that of the half itself."""
    rng = np.random.default_rng(seed)
    one, other = split_molecules(counts, 0.5, rng)
    whole = (np.asarray(one.sum(1)).ravel() > 0) & (np.asarray(other.sum(1)).ravel() > 0)
    adata = prepared(one[whole])
    result, projection = result_of(method, adata, seed)
    dims = min(20, result.shape[1])
    padded = np.zeros((result.shape[0], 20))
    padded[:, :dims] = result[:, :dims]  # what a method leaves out is at the mean
    truth, itself = projection(other[whole]), projection(one[whole])
    return float(((padded - truth) ** 2).sum() / ((itself - truth) ** 2).sum())


def molecules(name: str, method: str, seed: int, data: Path) -> dict[str, Any]:
    """By how much better than the mean profile each molecule of the other half is foretold, in nats."""
    quiet()
    counts, _ = load(name, data)
    losses = [
        molecular_cross_validation(expected, counts, share=0.5, seed=seed)
        for expected in (_mean_counts, lambda shown: expected_counts(method, shown, seed))
    ]
    gain = (losses[0] - losses[1]) * np.prod(counts.shape) / (counts.sum() / 2)
    return {"set": name, "method": method, "seed": seed, "gain": round(float(gain), 4)}


def _mean_counts(shown: sparse.csr_matrix) -> Array:
    profile = np.asarray(shown.sum(0)).ravel() + 0.5  # a gene that nobody has shown is still possible
    return np.asarray(shown.sum(1)) * profile / profile.sum()


def expected_counts(method: str, shown: sparse.csr_matrix, seed: int) -> Array:
    """What a method makes of the counts, as counts: each gene at its seen total, then each cell."""
    adata = prepared(shown)
    depth, total = np.asarray(shown.sum(1)), np.asarray(shown.sum(0)).ravel()
    if method in ("magic sqrt", "magic log", "alra"):
        _, counts, projection = read_cells(adata, n_comps=20)
        expression = expression_of(method, counts, projection.target, seed)
        profile = expression**2 if method == "magic sqrt" else np.expm1(expression)
    else:
        result, whole = result_of(method, adata, seed)
        dims = min(20, result.shape[1])
        profile = np.expm1(replace(whole, loadings=whole.loadings[:, :dims]).back(result[:, :dims]))
    profile = np.maximum(profile, 0) + 1e-12
    counts = profile / profile.sum(1, keepdims=True) * depth
    counts *= total / counts.sum(0)  # the mean of logarithms is not the logarithm of the mean
    counts *= depth / counts.sum(1, keepdims=True)
    return (1 - FLOOR) * counts + FLOOR * _mean_counts(shown)


def spikes(name: str, seed: int, data: Path) -> dict[str, Any]:
    """The noise found for spike-ins against their spread, along directions fitted to other cells; and the same for
    counts that were drawn, where nothing but counting is at work.
    """
    quiet()
    import anndata

    counts = np.asarray(anndata.read_h5ad(data / "scRNA" / f"{SETS[name][0]}.h5ad").obsm["ercc_counts"]).astype(int)
    rng = np.random.default_rng(seed)
    fitted, others = np.array_split(rng.permutation(len(counts)), 2)
    _, _, projection = read_cells(prepared(sparse.csr_matrix(counts[fitted]), SPIKES))
    share = counts.sum(0) / counts.sum()
    drawn = np.stack([rng.multinomial(depth, share) for depth in counts[others].sum(1)])
    row: dict[str, Any] = {"set": name, "seed": seed}
    for what, cells in (("spike_ins", counts[others]), ("drawn", drawn)):
        seen = sparse.csr_matrix(cells)
        found, spread = technical_noise(seen, projection, projection(seen), seed=seed).counting, projection(seen).std(0)
        row[what] = {"found": np.round(found / spread, 4).tolist(), **noise_distance(found, spread)}
    return row


def simulated(name: str, seed: int, data: Path) -> dict[str, Any]:
    """Poisson counts around the mean profile of 15 neighbours, at the real depths: what is found, what is known."""
    quiet()
    from scipy.spatial import KDTree

    counts, _ = load(name, data)
    components, counts, _ = read_cells(prepared(counts), n_comps=15)
    whole = np.asarray(counts.todense(), dtype=np.float64)
    depth = whole.sum(1, keepdims=True)
    near = KDTree(components).query(components, k=NEIGHBOURS)[1]
    rate = (whole / depth)[near].mean(1) * depth
    rng = np.random.default_rng(seed)
    adata = prepared(sparse.csr_matrix(rng.poisson(rate)))
    components, counts, projection = read_cells(adata, n_comps=20)
    draws = np.stack([projection(sparse.csr_matrix(rng.poisson(rate))) for _ in range(REDRAWS)])
    truth, counting = draws.mean(0), np.sqrt(draws.var(0, ddof=1).mean(0))
    fitted = np.sqrt(((components - truth) ** 2).mean(0) - counting**2 / REDRAWS)
    found = technical_noise(counts, projection, components, seed=seed)
    row: dict[str, Any] = {"set": name, "seed": seed}
    row["counting_error"] = np.round(found.counting / counting - 1, 4).tolist()
    row["noise_error"] = np.round(found.components / fitted - 1, 4).tolist()
    errors: dict[str, float] = {}
    for method in ("pca", "magic log", "ours"):
        result, _ = result_of(method, adata, seed)
        padded = np.zeros_like(truth)
        padded[:, : min(20, result.shape[1])] = result[:, :20]
        errors[method] = round(float(np.sqrt(((padded - truth) ** 2).mean())), 4)
    return row | {"error": errors}


def _key(kind: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (kind, *(str(row[name]) for name in ("set", "method", "seed") if name in row))


def quiet() -> None:
    os.environ["NUMBA_NUM_THREADS"] = "1"  # else numba, which scanpy uses, sets torch's threads to its own
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--scvi", type=Path, help="the python of an environment with scvi-tools")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "cells.json")
    given = parser.parse_args()
    sets, methods = given.sets.split(","), given.methods.split(",")
    if given.scvi:
        os.environ["SCVI_PYTHON"] = str(given.scvi)  # the workers inherit it
    wanted: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = []
    for seed in range(given.seeds):
        if "ours" in methods:
            wanted += [("simulated", simulated, (name, seed, given.data)) for name in sets]
            wanted += [("spikes", spikes, (name, seed, given.data)) for name in sets if name == "zeisel"]
        for kind, function in (("sets", on_a_set), ("molecules", molecules)):
            wanted += [
                (kind, function, (name, method, seed, given.data))
                for method in methods
                for name in sets
                if (not seed or method in SEEDED) and (kind == "sets" or not method.startswith("scvi"))
            ]
    wanted = [job for job in wanted if job[0] in given.parts.split(",")]
    rows: dict[str, list[Any]] = {part: [] for part in PARTS}
    if given.output.exists():  # rows that are not measured again stay
        again = {(kind, *(str(a) for a in arguments[:-1])) for kind, _, arguments in wanted}
        for kind, stored in rows.items():
            stored += [
                row for row in json.loads(given.output.read_text()).get(kind, []) if _key(kind, row) not in again
            ]
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        jobs = {pool.submit(function, *arguments): kind for kind, function, arguments in wanted}
        for job in as_completed(jobs):
            rows[jobs[job]].append(job.result())
            print(job.result(), flush=True)
            write_result(given.output, {"lean": tl.LEAN, "workers": given.workers, **rows})


if __name__ == "__main__":
    main()
