"""`inverseflow cells`: from an h5ad file (or loom, 10x h5, a folder of mtx) to one with clearer components too."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from .errors import FileError, InputError, UsageError
from .io.image import printable
from .logs import bar
from .outputs import refuse_existing
from .whole import whole_or_absent

READERS = ".h5ad, .loom, .h5 (10x) or a folder with matrix.mtx"
PCA_COMPONENTS, GENES = 50, 2000


def denoise_cells(
    source: Path,
    output: Path | None,
    use_rep: str,
    counts_layer: str,
    n_comps: int,
    noise: float | None,
    seed: int,
    device: str,
    *,
    force: bool,
    quiet: bool,
) -> int:
    """Read, prepare if nothing is prepared, denoise, write."""
    source = source if source.name.strip(".") else source.resolve()  # a folder that is called . or ..
    name = source.name if source.is_dir() else source.stem
    target = output or source.with_name(f"{name}_denoised.h5ad")
    if target.suffix != ".h5ad":
        raise UsageError(f"The result is an .h5ad file, so give -o a name like cells.h5ad, not {target.name}.")
    refuse_existing([target], force=force, inputs=[source])
    console = Console(highlight=False, soft_wrap=True, quiet=quiet)
    started = time.monotonic()
    adata = read(source)
    console.print(f"{source.name}: {adata.n_obs} cells, {adata.n_vars} genes", markup=False)
    for line in prepare(adata, use_rep, counts_layer):
        console.print(line, markup=False)

    from . import pp, tl
    from .cells.counts import read_components

    if noise is None and counts_layer in adata.layers:
        with bar("measuring the noise", enabled=not quiet) as report:
            pp.estimate_noise(
                adata, layer=counts_layer, use_rep=use_rep, n_comps=n_comps, random_state=seed, progress=report
            )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tl.denoise(
            adata,
            use_rep=use_rep,
            n_comps=n_comps,
            noise="auto" if noise is None else noise,
            layer=counts_layer,
            random_state=seed,
            device=device,
            progress=not quiet,
        )
    for line in dict.fromkeys(str(warning.message) for warning in warned if warning.category is UserWarning):
        console.print(line, markup=False)
    kind = adata.uns["inverseflow"]["params"]["noise"]
    shares = adata.uns["inverseflow"]["noise_sd"] / read_components(adata, use_rep, n_comps).std(0)
    console.print(
        f"noise ({kind}): {100 * shares[0]:.0f} % of the spread of component 1, {100 * shares[-1]:.0f} % of component"
        f" {len(shares)}",
        markup=False,
    )
    with whole_or_absent(target, overwrite=force) as temporary:
        adata.write_h5ad(temporary)
    console.print(f"{target}: .obsm['X_inverseflow'] in {time.monotonic() - started:.0f} s", markup=False)
    return 0


def read(source: Path) -> Any:
    """An AnnData, by scanpy's readers."""
    if not source.exists():
        raise FileError(f"There is no {source}; check the name and the folder.")
    try:
        import anndata
        import scanpy as sc

        from .cells.files import check_cells, read_folder
    except ImportError:
        raise UsageError("Cells need scanpy and anndata: pip install 'inverseflow[cells]'.") from None
    try:
        check_cells(source)
        if source.is_dir():
            return read_folder(source)
        if source.suffix == ".h5ad":
            return anndata.read_h5ad(source)
        if source.suffix == ".loom":
            return sc.read_loom(source)  # anndata has it in another place in every version
        if source.suffix == ".h5":
            return sc.read_10x_h5(source)
    except FileError:
        raise
    except Exception as error:  # each reader has its own
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        why = "it is damaged or cut short, so copy it again" if isinstance(error, OSError) else printable(why)
        raise FileError(f"{source} cannot be read as {READERS}: {why}.") from error
    raise FileError(f"{source.name} is not a file of cells that is known: {READERS}.")


def prepare(adata: Any, use_rep: str, counts_layer: str) -> list[str]:
    """scanpy's standard way to components, where there are none yet; what was done, in words."""
    import numpy as np

    if use_rep in adata.obsm or use_rep != "X_pca":
        return []
    import scanpy as sc

    from .cells.counts import read_counts

    if adata.n_obs < 2 or adata.n_vars < 2:
        raise InputError(f"Components need two cells and two genes at least, not {adata.n_obs} and {adata.n_vars}.")
    read_counts(adata, counts_layer if counts_layer in adata.layers else None)  # refuses what scanpy would stumble over
    said = []
    if counts_layer not in adata.layers:
        adata.layers[counts_layer] = adata.X.copy()
        said.append(f".X is taken for raw counts and kept in .layers[{counts_layer!r}]")
    adata.X = adata.layers[counts_layer].astype(np.float32)
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scanpy's dependencies, about themselves
        sc.pp.highly_variable_genes(adata, n_top_genes=min(GENES, adata.n_vars))
        chosen = int(adata.var["highly_variable"].sum())  # fewer, if many were never seen
        sc.pp.pca(adata, n_comps=min(PCA_COMPONENTS, adata.n_obs - 1, chosen - 1))
    said.append(
        f".X is now normalised and log1p; {chosen} variable genes, PCA: .obsm['X_pca'] with"
        f" {adata.obsm['X_pca'].shape[1]}"
    )
    return said
