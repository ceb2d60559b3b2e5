"""Denoise the components of cells, in the manner of scanpy's `tl`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from . import __version__
from .cells import CellDenoiser, read_cells
from .cells.counts import Array, read_components
from .cells.technical import LEAST_SHARE
from .errors import InputError
from .noise import Noise
from .pp import copied, estimate_noise, read_seed, writable, writing

__all__ = ["denoise"]

LEAN = 1.5
"""The estimated noise is multiplied by this. With a thousand cells too little noise costs more than too much: the error
of denoised profiles, simulated around four real data sets, is least between 1.25 and 2 (benchmarks/NOTES.md).
"""
NOISE_KEY = "inverseflow_noise"


def denoise(
    adata: Any,
    *,
    use_rep: str = "X_pca",
    n_comps: int | None = 20,
    noise: str | float | Array | Noise = "auto",
    layer: str | None = "counts",
    key_added: str = "X_inverseflow",
    layer_added: str | None = None,
    preset: str = "ours",
    random_state: int = 0,
    device: str = "auto",
    progress: bool = False,
    copy: bool = False,
) -> Any:
    """Clearer components: `.obsm[key_added]`, for `sc.pp.neighbors(adata, use_rep=key_added)`.

    n_comps      how many of the components; None for all
    noise        "auto": that of counting molecules, from the counts in `layer` or from `pp.estimate_noise` before; a
                 standard deviation, one number or one per component, in the units of use_rep; or any Noise
    layer_added  also the expression (log-normalised) that the denoised components stand for, dense
    preset       "ours", or "paper": its protocol, 6 components, sigma 0.4 of the first one's spread, the map

    Also adds `.obsm[key_added + "_std"]`, what remains unknown of every component, `.uns["inverseflow"]`, and what
    `pp.estimate_noise` adds, if the noise is measured here. `.X` is never touched. Without counts "auto" smooths with a
    bandwidth, the spread of the last components, and says so.
    """
    if preset == "paper":
        n_comps = 6
    if layer_added and layer_added == layer:
        raise InputError(f".layers[{layer!r}] holds the counts, so give layer_added another name.")
    random_state = read_seed(random_state)
    components = read_components(adata, use_rep, n_comps)
    adata = copied(adata) if copy else writable(adata)
    projection = read_cells(adata, layer=layer, use_rep=use_rep, n_comps=n_comps)[2] if layer_added else None
    if n_comps is not None and components.shape[1] < n_comps:
        warnings.warn(
            f".obsm[{use_rep!r}] has {components.shape[1]} components, so these are denoised and not {n_comps}.",
            stacklevel=2,
        )
    if not adata.var_names.is_unique:
        warnings.warn("Gene names are not unique; adata.var_names_make_unique() makes them so.", stacklevel=2)
    kind, sigma = _noise(adata, noise, components, layer, use_rep, preset, random_state)
    model = CellDenoiser(sigma, preset=preset, seed=random_state, device=device, progress=progress).fit(components)
    result, std = model.transform(components), model.std(components)
    with writing():
        adata.obsm[key_added] = result
        adata.obsm.pop(f"{key_added}_std", None)  # of a run before
        if std is not None:
            adata.obsm[f"{key_added}_std"] = std
        if projection is not None:
            adata.layers[layer_added] = projection.back(result).astype(np.float32)
        adata.uns["inverseflow"] = {
            "params": {
                "use_rep": use_rep,
                "n_comps": components.shape[1],
                "noise": kind,
                "key_added": key_added,
                "preset": preset,
                "random_state": random_state,
            },
            "noise_sd": _by_component(sigma, components),
            "version": __version__,
        }
    return adata if copy else None


def _noise(
    adata: Any,
    noise: str | float | Array | Noise,
    components: Array,
    layer: str | None,
    use_rep: str,
    preset: str,
    seed: int,
) -> tuple[str, Any]:
    """What it is called, and the standard deviation (or the Noise) to train with."""
    if isinstance(noise, Noise):
        return type(noise).__name__, noise
    if not isinstance(noise, str):
        try:
            return "given", np.asarray(noise, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"noise must be 'auto', a number, numbers, or a Noise, not {noise!r}.") from None
    if noise != "auto":
        raise InputError(f"noise must be 'auto', a number, numbers, or a Noise, not {noise!r}.")
    if preset == "paper":
        return "paper", 0.4 * float(components[:, 0].std())
    spread = components.std(0)
    known = _is_known(adata, use_rep, spread)
    if not known and layer and layer not in adata.layers:
        sd = np.full(components.shape[1], _bandwidth(adata, use_rep))
        warnings.warn(
            f"There are no counts in .layers[{layer!r}], so the noise cannot be measured; the components are smoothed"
            f" with a bandwidth of {sd[0]:.3g}, the spread of the last ones.",
            stacklevel=3,
        )
        return "bandwidth", np.minimum(sd, np.sqrt(1 - LEAST_SHARE) * spread)
    if not known:
        estimate_noise(adata, layer=layer, use_rep=use_rep, n_comps=len(spread), random_state=seed)
    sd = np.asarray(adata.obsm[NOISE_KEY], dtype=np.float64)[:, : len(spread)]
    root = np.sqrt((sd**2).mean(0))
    return "counts", sd * np.minimum(LEAN, np.sqrt(1 - LEAST_SHARE) * spread / root)


def _is_known(adata: Any, use_rep: str, spread: Array) -> bool:
    """Was the noise of these very components estimated before?"""
    found = adata.uns.get(NOISE_KEY)
    if found is None or NOISE_KEY not in adata.obsm or found["params"]["use_rep"] != use_rep:
        return False
    stored = np.asarray(found["spread"])[: len(spread)]
    return len(stored) == len(spread) and bool(np.allclose(stored, spread, rtol=1e-3))


def _bandwidth(adata: Any, use_rep: str) -> float:
    """Components beyond the signal have the spread of the noise, as probabilistic PCA has it."""
    spread = read_components(adata, use_rep).std(0)
    return float(np.median(spread[-max(1, len(spread) // 5) :]))


def _by_component(sigma: Any, components: Array) -> Array:
    if isinstance(sigma, Noise):
        return np.zeros(0)
    square = np.asarray(sigma, dtype=np.float64) ** 2
    mean = square.mean(0) if square.ndim == 2 else square
    return np.asarray(np.sqrt(np.broadcast_to(mean, components.shape[1:])))
