"""Before denoising cells: how much of their components is chance? In the manner of scanpy's `pp`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .cells import CellNoise, read_cells, technical_noise
from .cells.technical import Progress
from .errors import InputError

__all__ = ["estimate_noise"]


def estimate_noise(
    adata: Any,
    *,
    layer: str | None = "counts",
    use_rep: str = "X_pca",
    n_comps: int | None = None,
    repeats: int | None = None,
    key_added: str = "inverseflow_noise",
    random_state: int = 0,
    copy: bool = False,
    progress: Progress | None = None,
) -> Any:
    """The noise of counting molecules, of every component and every cell, from the counts alone.

    layer     where the raw counts are; None for `.X`
    use_rep   the components, as `sc.pp.pca` made them from normalised, log1p-transformed counts
    repeats   how often the counts are split at random; by default 8, and 3 for more than 20,000 cells

    Adds `.obsm[key_added]`, the standard deviation by cell and component, and `.uns[key_added]`: by component `sd`
    (root mean square over the cells), `counting` (without what comes from fitting the components to the same cells),
    `spread` (of the components themselves), and `params`. Returns None, or with `copy` a new object.
    """
    if repeats is not None and (not isinstance(repeats, int | np.integer) or repeats < 1):
        raise InputError(f"repeats must be a whole number of at least 1, not {repeats!r}.")
    seed = read_seed(random_state)
    components, counts, projection = read_cells(adata, layer=layer, use_rep=use_rep, n_comps=n_comps)
    adata = copied(adata) if copy else writable(adata)
    noise = technical_noise(counts, projection, components, repeats=repeats, seed=seed, progress=progress)
    keep(adata, noise, key_added, {"layer": layer or "X", "use_rep": use_rep, "seed": seed})
    return adata if copy else None


def keep(adata: Any, noise: CellNoise, key: str, params: dict[str, Any]) -> None:
    """Plain arrays and values, which a file can hold."""
    with writing():
        adata.obsm[key] = noise.sd.astype(np.float32)
        adata.uns[key] = {
            "sd": noise.components,
            "counting": noise.counting,
            "spread": noise.spread,
            "params": params,
        }


def copied(adata: Any) -> Any:
    """A new object; of a file that is open, what is in it, in memory."""
    return adata.to_memory() if getattr(adata, "isbacked", False) else adata.copy()


def writable(adata: Any) -> Any:
    """The object itself; a part of an open file takes no results, which is better said before than after the work."""
    if getattr(adata, "isbacked", False) and adata.is_view:
        raise InputError("A view of an open file cannot take results; use adata.to_memory() first, or copy=True.")
    return adata


def read_seed(random_state: Any) -> int:
    """Also numpy's whole numbers, which torch refuses."""
    if not isinstance(random_state, int | np.integer) or random_state < 0:
        raise InputError(f"random_state must be a whole number of at least 0, not {random_state!r}.")
    return int(random_state)


@contextmanager
def writing() -> Iterator[None]:
    """Writing to a view makes it an object of its own, which is what a user expects here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*view.*")
        yield
