"""What an AnnData holds: the counts, the components, and the way from the ones to the others.

Nothing is guessed: a candidate way is taken only if it gives back the components that are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from ..errors import InputError

Array = np.ndarray[Any, Any]
AGREEMENT = 0.98  # correlation of recomputed and stored components, from which on they are the same
TARGETS = (1e4, 1e6)
BLOCK = 4096  # cells that are worked on at a time


@dataclass(frozen=True)
class Projection:
    """Counts -> log(1 + target counts / total), over `spread` (G,), minus `centre` (G,), times `loadings` (G, D)."""

    loadings: Array
    centre: Array
    spread: Array
    target: float

    def expression(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """Log-normalised expression, as sparse as the counts; over the genes' spread, if they were scaled."""
        return sparse.csr_matrix(log_normalised(counts, self.target).multiply(1 / self.spread))

    def __call__(self, counts: sparse.csr_matrix) -> Array:
        scores: Array = np.asarray(self.expression(counts) @ self.loadings) - self.centre @ self.loadings
        return scores

    def back(self, components: Array) -> Array:
        """(n, G): the log-normalised expression that these components stand for."""
        expression: Array = (components @ (self.loadings / (self.loadings**2).sum(0)).T + self.centre) * self.spread
        return expression


def log_normalised(counts: sparse.csr_matrix, target: float) -> sparse.csr_matrix:
    total = np.maximum(np.asarray(counts.sum(1)).ravel(), 1)
    scaled = sparse.csr_matrix(counts, dtype=np.float64, copy=True)
    scaled.data = np.log1p(scaled.data * np.repeat(target / total, np.diff(scaled.indptr)))
    return scaled


def read_components(adata: Any, use_rep: str, n_comps: int | None = None) -> Array:
    """`.obsm[use_rep]` as (cells, components), float64."""
    if not hasattr(adata, "obsm"):
        raise InputError(
            f"Cells are given as an AnnData, not as {type(adata).__name__}; make one, or use CellDenoiser."
        )
    if n_comps is not None and (not isinstance(n_comps, int | np.integer) or n_comps < 1):
        raise InputError(f"n_comps must be a whole number of at least 1, not {n_comps!r}.")
    if use_rep not in adata.obsm:
        known = ", ".join(adata.obsm.keys()) or "nothing"
        raise InputError(
            f"There is no .obsm[{use_rep!r}] (it has {known}); name another, or make it first: sc.pp.pca(adata) makes"
            " X_pca, inverseflow.tl.denoise(adata) makes X_inverseflow."
        )
    found = adata.obsm[use_rep]
    x = np.asarray(found.toarray() if sparse.issparse(found) else found, dtype=np.float64)
    if len(x) < 2:
        raise InputError("One cell alone cannot be denoised; give at least two.")
    if not np.isfinite(x).all():
        raise InputError(f".obsm[{use_rep!r}] has NaN or infinite values; compute it again from clean data.")
    return x[:, :n_comps]


def read_counts(adata: Any, layer: str | None) -> sparse.csr_matrix:
    """Whole counts (cells, genes), from a layer or, with None, from `.X`; a backed or dense matrix is read."""
    where = f".layers[{layer!r}]" if layer else ".X"
    if layer and layer not in adata.layers:
        known = ", ".join(adata.layers.keys()) or "nothing"
        raise InputError(
            f"There is no {where} (there is {known}); keep the counts with adata.layers[{layer!r}] = adata.X.copy()"
            " before normalising, or name their layer."
        )
    found = adata.layers[layer] if layer else adata.X
    if found is None:
        raise InputError(f"{where} is empty; name the layer with the raw counts.")
    counts = sparse.csr_matrix(in_memory(found))
    if not np.isfinite(counts.data).all():
        raise InputError(f"{where} has NaN or infinite values; counts are whole numbers.")
    if counts.data.size and counts.data.min() < 0:
        raise InputError(f"{where} has negative values; counts cannot be negative, so give the raw counts.")
    if np.abs(counts.data - np.round(counts.data)).max(initial=0) > 1e-6:
        raise InputError(f"{where} has values that are not whole; it seems normalised, so give the raw counts.")
    counts.data = np.round(counts.data).astype(np.int64)
    empty = int((np.asarray(counts.sum(1)).ravel() == 0).sum())
    if empty:
        cells = f"{empty} cell{'s'[: empty > 1]}"
        raise InputError(
            f"{where} has {cells} without a count; drop empty cells: sc.pp.filter_cells(adata, min_counts=1)."
        )
    return counts


def in_memory(x: Any) -> Any:
    """A matrix that is in an open file, or that Dask has still to compute."""
    if hasattr(x, "compute"):
        return x.compute()
    return x[:] if hasattr(x, "to_memory") or type(x).__module__.startswith("h5py") else x


def read_cells(
    adata: Any, *, layer: str | None = "counts", use_rep: str = "X_pca", n_comps: int | None = None
) -> tuple[Array, sparse.csr_matrix, Projection]:
    """The components, the counts, and the projection that makes the former from the latter."""
    components = read_components(adata, use_rep, n_comps)
    counts = read_counts(adata, layer)
    key = use_rep if use_rep in adata.varm else "PCs"  # the former of sc.pp.pca(adata, key_added=use_rep)
    if key not in adata.varm:
        raise InputError("There is no .varm['PCs'], the loadings of the components; run sc.pp.pca(adata) again.")
    loadings = np.asarray(adata.varm[key], dtype=np.float64)[:, : components.shape[1]]
    best, agreement = None, -1.0
    targets = (_target_of(adata), float(np.median(np.asarray(counts.sum(1)))), *TARGETS)
    for target in targets if loadings.shape[1] == components.shape[1] else ():  # else these are others' loadings
        if target is None:
            continue
        expression = log_normalised(counts, target)
        mean = np.asarray(expression.mean(0)).ravel()
        spread = np.sqrt(np.maximum(np.asarray(expression.multiply(expression).mean(0)).ravel() - mean**2, 1e-12))
        for scale in (np.ones_like(spread), spread):  # sc.pp.scale or not
            same, slope = _agreement(np.asarray(expression @ (loadings / scale[:, None])), components)
            if same > agreement:
                best, agreement = Projection(loadings * slope, mean / scale, scale, target), same
    if best is None or agreement < AGREEMENT:
        raise InputError(
            f".obsm[{use_rep!r}] is not the PCA of these counts after normalize_total and log1p (they agree to"
            f" {max(agreement, 0):.2f}); compute it so, with all genes in the layer and the variable ones marked and"
            " not cut out, or say the noise yourself with noise=."
        )
    # Cells that were chosen after the PCA are not around 0: their own mean is where their mean components are.
    return components, counts, replace(best, centre=best.back(-components.mean(0)) / best.spread)


def _target_of(adata: Any) -> float | None:
    """The sum to which `normalize_total` brought every cell, where `.X` still shows it."""
    if adata.X is None:
        return None
    x = in_memory(adata.X[: min(200, adata.n_obs)])
    x = x.toarray() if sparse.issparse(x) else np.asarray(x)
    if not np.isfinite(x).all() or x.min() < 0 or x.max() > 30:
        return None
    sums = np.expm1(x.astype(np.float64)).sum(1)
    return float(np.median(sums)) if sums.std() < 1e-3 * sums.mean() else None


def _agreement(a: Array, b: Array) -> tuple[float, Array]:
    """The smallest correlation of the leading components, and what each must be multiplied by."""
    a, b = a - a.mean(0), b - b.mean(0)
    both, of_a, of_b = (a * b).sum(0), np.maximum((a**2).sum(0), 1e-300), np.maximum((b**2).sum(0), 1e-300)
    return float(np.min((both / np.sqrt(of_a * of_b))[:10])), both / of_a
