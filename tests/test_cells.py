"""Single cells: the noise against redrawn counts, the projection against scanpy, the manners of the scverse."""

from __future__ import annotations

import gzip
import warnings
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.io import mmwrite
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow.cells import CellDenoiser, read_cells, technical_noise
from inverseflow.cells import denoiser as cell_denoiser
from inverseflow.cells.technical import used_genes
from inverseflow.cells_command import read
from inverseflow.cli import app
from inverseflow.metrics import clustering_scores, neighbour_accuracy
from inverseflow.noise import Molecules, from_dict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of scanpy's dependencies, about themselves
    anndata = pytest.importorskip("anndata", reason="cells need pip install 'inverseflow[cells]'")
    sc = pytest.importorskip("scanpy", reason="cells need pip install 'inverseflow[cells]'")
    DataFrame = pytest.importorskip("pandas").DataFrame

pytestmark = pytest.mark.filterwarnings("default")
CELLS, GENES = 400, 150


def rates(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Expected counts of three types of cells, each along a line of its own, and the types."""
    rng = np.random.default_rng(seed)
    types = rng.integers(3, size=CELLS)
    base, change = rng.gamma(0.5, 2, (3, GENES)) + 0.05, rng.normal(0, 0.7, (3, GENES))
    profile = base[types] * np.exp(rng.uniform(-1, 1, (CELLS, 1)) * change[types])
    depth = rng.lognormal(6, 0.3, (CELLS, 1))
    return profile / profile.sum(1, keepdims=True) * depth, types


def as_cells(counts: np.ndarray, types: np.ndarray, *, scale: bool = False, target: float | None = None) -> Any:
    adata = anndata.AnnData(sparse.csr_matrix(counts, dtype=np.float32))
    adata.obs_names = [f"c{i}" for i in range(adata.n_obs)]
    adata.var_names = [f"g{i}" for i in range(adata.n_vars)]
    adata.obs["type"] = [f"type {t}" for t in types]
    adata.layers["counts"] = adata.X.copy()
    sc.pp.normalize_total(adata, target_sum=target)
    sc.pp.log1p(adata)
    if scale:
        sc.pp.scale(adata)
    sc.pp.pca(adata, n_comps=15)
    return adata


@pytest.fixture(scope="module")
def made() -> tuple[Any, np.ndarray]:
    rate, types = rates()
    return as_cells(np.random.default_rng(1).poisson(rate), types), rate


@pytest.fixture
def adata(made: tuple[Any, np.ndarray]) -> Any:
    return made[0].copy()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_denoiser, "CELLS", replace(cell_denoiser.CELLS, steps=3, batch_size=64))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("target", [None, 1e4])
def test_the_way_from_counts_to_components_is_found(scale: bool, target: float | None) -> None:
    rate, types = rates()
    cells = as_cells(np.random.default_rng(1).poisson(rate), types, scale=scale, target=target)
    components, counts, projection = read_cells(cells, n_comps=8)
    assert np.abs(projection(counts) - components).max() < 0.01 * components.std()
    restored = projection.back(np.asarray(cells.obsm["X_pca"][:, :8]))
    seen = np.asarray(cells.layers["counts"].todense())
    expression = np.log1p(projection.target * seen / seen.sum(1, keepdims=True))
    assert ((restored - expression) ** 2).mean() < expression.var(0).mean()  # better than every gene's mean


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("around_zero", [True, False])
def test_components_that_are_not_around_zero_stand_for_their_own_expression(adata: Any, around_zero: bool) -> None:
    """One type, chosen after the PCA of all; or a PCA without centring."""
    sc.pp.pca(adata, n_comps=100, zero_center=around_zero)
    cells = adata[adata.obs["type"] == "type 0"].copy() if around_zero else adata
    components, counts, projection = read_cells(cells)
    assert np.abs(components.mean(0)).max() > 0.5
    assert np.abs(projection(counts) - components).max() < 0.01 * components.std()
    seen = cells.X.toarray()
    assert ((projection.back(components) - seen) ** 2).mean() < 0.1 * seen.var(0).mean()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*if it is an image.*")  # nobody takes components for one
        ivf.tl.denoise(cells, n_comps=None, noise=1e-3, layer_added="clear", device="cpu")
    assert ((cells.layers["clear"] - seen) ** 2).mean() < 0.1 * seen.var(0).mean()


def test_loadings_of_another_name_and_of_other_components(adata: Any) -> None:
    sc.pp.pca(adata, n_comps=8)
    pca = adata.varm.pop("PCs")
    adata.varm["mine"], adata.obsm["mine"] = pca, adata.obsm["X_pca"]  # as with key_added="mine"
    components, counts, projection = read_cells(adata, use_rep="mine")
    assert np.abs(projection(counts) - components).max() < 0.01 * components.std()
    adata.varm["PCs"], adata.obsm["X_scVI"] = pca, np.random.default_rng(0).normal(size=(CELLS, 20))
    with pytest.raises(ivf.InputError, match=r"X_scVI'\] is not the PCA of these counts"):
        read_cells(adata, use_rep="X_scVI")


def test_genes_cut_out_after_normalising_are_said_to_be_missing(adata: Any) -> None:
    cut = adata[:, :75].copy()
    sc.pp.pca(cut, n_comps=8)
    with pytest.raises(
        ivf.InputError, match="with all genes in the layer and the variable ones marked and not cut out"
    ):
        ivf.tl.denoise(cut)


def test_counts_that_dask_has_and_cells_without_x(adata: Any) -> None:
    array = pytest.importorskip("dask.array")
    _, expected, _ = read_cells(adata)
    dense = array.from_array(adata.layers["counts"].toarray(), chunks=(100, -1))
    adata.layers["counts"] = dense.map_blocks(sparse.csr_matrix)
    adata.X = None
    assert (read_cells(adata)[1] != expected).nnz == 0
    with pytest.raises(ivf.InputError, match=r"\.X is empty; name the layer"):
        read_cells(adata, layer=None)


def test_noise_is_that_of_redrawn_counts(made: tuple[Any, np.ndarray]) -> None:
    cells, rate = made
    components, counts, projection = read_cells(cells, n_comps=6)
    rng = np.random.default_rng(2)
    again = np.stack([projection(sparse.csr_matrix(rng.poisson(rate))) for _ in range(100)])
    counting = np.sqrt(again.var(0, ddof=1).mean(0))
    noise = technical_noise(counts, projection, components)
    assert np.abs(noise.counting / counting - 1).max() < 0.08
    assert np.abs(noise.counting / counting - 1).mean() < 0.04
    truth = again.mean(0)
    fitted = np.sqrt(((components - truth) ** 2).mean(0))
    assert np.abs(noise.components / fitted - 1).max() < 0.15
    deep, shallow = (
        noise.cells[order].mean() for order in (np.argsort(rate.sum(1))[-50:], np.argsort(rate.sum(1))[:50])
    )
    assert shallow > 1.2 * deep  # cells with fewer molecules are noisier


def test_genes_outside_of_the_components_count_by_their_sum(made: tuple[Any, np.ndarray]) -> None:
    """The same noise whether the other genes are there one by one or as one."""
    cells = made[0].copy()
    cells.var["chosen"] = np.arange(GENES) < 100
    cells.X = cells.layers["counts"].copy()
    sc.pp.normalize_total(cells)
    sc.pp.log1p(cells)
    sc.pp.pca(cells, n_comps=6, mask_var="chosen")
    components, counts, projection = read_cells(cells)
    assert np.abs(projection(counts) - components).max() < 0.01 * components.std()
    fewer, same = used_genes(counts, projection)
    assert fewer.shape[1] == 101
    assert np.allclose(same(fewer), projection(counts))
    noise = technical_noise(counts, projection, components)
    assert (noise.fitting < 2).all()  # the sum of the others is no direction


def test_denoising_brings_cells_closer_to_what_they_are(
    made: tuple[Any, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_denoiser, "CELLS", replace(cell_denoiser.CELLS, steps=300, lr=1e-3))
    cells, rate = made
    clean = cells.copy()
    ivf.tl.denoise(clean, n_comps=8, device="cpu")
    _, _, projection = read_cells(cells, n_comps=8)
    rng = np.random.default_rng(3)
    truth = np.mean([projection(sparse.csr_matrix(rng.poisson(rate))) for _ in range(30)], axis=0)
    error = ((clean.obsm["X_inverseflow"] - truth) ** 2).mean()
    assert error < 0.6 * ((cells.obsm["X_pca"][:, :8] - truth) ** 2).mean()
    spread = clean.obsm["X_inverseflow_std"]
    assert spread.shape == (CELLS, 8)
    assert error < (spread**2).mean() < 3 * error  # it leans high, as the noise does


def test_std_of_gaussian_data_is_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data N(0, s^2) with noise sigma: s sigma / sqrt(s^2 + sigma^2) remains unknown."""
    monkeypatch.setattr(cell_denoiser, "CELLS", replace(cell_denoiser.CELLS, steps=400, lr=1e-3))
    rng = np.random.default_rng(0)
    s, sigma = np.array([2.0, 0.5]), np.array([0.5, 0.5])
    x = rng.normal(0, np.sqrt(s**2 + sigma**2), (4000, 2))
    model = CellDenoiser(sigma, device="cpu").fit(x)
    left = np.sqrt((model.std(x) ** 2).mean(0))
    assert left == pytest.approx(s * sigma / np.sqrt(s**2 + sigma**2), rel=0.08)


def test_std_knows_of_noise_that_ties_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data N(0, 1) with noise of covariance N: the diagonal of 1 - (1 + N)^-1 remains unknown."""
    monkeypatch.setattr(cell_denoiser, "CELLS", replace(cell_denoiser.CELLS, steps=400, lr=1e-3))
    rng = np.random.default_rng(0)
    tied, sigma = np.array([[1, 0.9], [0.9, 1]]), np.array([0.8, 0.5])
    x = rng.normal(size=(4000, 2)) + sigma * rng.multivariate_normal([0, 0], tied, 4000)
    noise = ivf.Gaussian(torch.from_numpy(sigma), channel_correlation=torch.from_numpy(tied))
    left = np.sqrt((CellDenoiser(noise, device="cpu").fit(x).std(x) ** 2).mean(0))
    true = np.diag(np.eye(2) - np.linalg.inv(np.eye(2) + tied * np.outer(sigma, sigma)))
    assert left == pytest.approx(np.sqrt(true), rel=0.05)  # without the ties: 8 and 20 % more


@pytest.mark.usefixtures("quick")
def test_manners(adata: Any, tmp_path: Path) -> None:
    before = adata.X.copy()
    assert ivf.pp.estimate_noise(adata, n_comps=10, repeats=2) is None
    assert adata.obsm["inverseflow_noise"].shape == (CELLS, 10)
    assert ivf.tl.denoise(adata, n_comps=10, layer_added="clear", device="cpu") is None
    assert (before != adata.X).nnz == 0
    assert adata.layers["clear"].shape == adata.shape
    adata.write_h5ad(tmp_path / "kept.h5ad")
    kept = anndata.read_h5ad(tmp_path / "kept.h5ad")
    assert kept.uns["inverseflow"]["params"]["n_comps"] == 10
    assert np.array_equal(kept.uns["inverseflow_noise"]["sd"], adata.uns["inverseflow_noise"]["sd"])
    assert np.array_equal(kept.obsm["X_inverseflow"], adata.obsm["X_inverseflow"])
    for figure in (ivf.pl.embeddings(kept, color="type"), ivf.pl.noise(kept)):
        figure.savefig(tmp_path / "figure.png")
        assert (tmp_path / "figure.png").stat().st_size > 5000
    same = ivf.tl.denoise(kept, n_comps=10, device="cpu", copy=True)
    assert np.array_equal(same.obsm["X_inverseflow"], adata.obsm["X_inverseflow"])  # the same seed
    assert same is not kept


@pytest.mark.usefixtures("quick")
def test_a_second_run_leaves_nothing_of_the_first(adata: Any) -> None:
    few = adata[:40].copy()
    ivf.tl.denoise(few, n_comps=None, noise=0.5, device="cpu")  # all of them
    assert few.obsm["X_inverseflow"].shape == few.obsm["X_inverseflow_std"].shape == (40, 15)
    ivf.tl.denoise(few, preset="paper", device="cpu")  # which has no error bars
    assert "X_inverseflow_std" not in few.obsm


def test_numbers_have_a_colour_bar_and_labels_a_legend(adata: Any) -> None:
    adata.obs["depth"] = np.asarray(adata.layers["counts"].sum(1)).ravel()
    adata.obs["rank"] = np.arange(CELLS)
    adata.obs["deep"] = adata.obs["depth"] > adata.obs["depth"].median()
    adata.obs["name"] = adata.obs_names
    for column, drawn, legends, bars in (("depth", 1, 0, 1), ("rank", 1, 0, 1), ("deep", 2, 1, 0), ("type", 3, 1, 0)):
        figure = ivf.pl.embeddings(adata, color=column, after="X_pca")
        assert [len(axes.collections) for axes in figure.axes[:2]] == [drawn, drawn]
        assert (len(figure.legends), len(figure.axes) - 2) == (legends, bars)
    with pytest.raises(ivf.InputError, match="has 400 labels, too many"):
        ivf.pl.embeddings(adata, color="name", after="X_pca")
    with pytest.raises(ivf.InputError, match=r"one column of \.obs, not \['type'\]"):
        ivf.pl.embeddings(adata, color=["type"], after="X_pca")
    with pytest.raises(ivf.InputError, match=r"inverseflow\.tl\.denoise\(adata\) makes X_inverseflow"):
        ivf.pl.embeddings(adata, color="type")


def test_clusters_keep_their_order_and_have_a_colour_each(adata: Any) -> None:
    names = [str(k) for k in range(25)]
    adata.obs["leiden"] = np.array(names)[np.arange(CELLS) % 25]
    adata.obs["leiden"] = adata.obs["leiden"].astype("category").cat.set_categories(names)  # 2 before 10
    figure = ivf.pl.embeddings(adata, color="leiden", after="X_pca")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert len({tuple(points.get_facecolor()[0]) for points in figure.axes[0].collections}) == 25


@pytest.mark.usefixtures("quick")
def test_views_dense_and_backed_data(adata: Any, tmp_path: Path) -> None:
    view = adata[:200]
    ivf.tl.denoise(view, n_comps=5, device="cpu")
    assert view.obsm["X_inverseflow"].shape == (200, 5)
    assert "X_inverseflow" not in adata.obsm
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    ivf.tl.denoise(backed, n_comps=5, device="cpu")
    dense = adata.copy()
    dense.layers["counts"] = dense.layers["counts"].toarray()
    ivf.tl.denoise(dense, n_comps=5, device="cpu")
    assert np.allclose(backed.obsm["X_inverseflow"], dense.obsm["X_inverseflow"])
    for refused in (ivf.tl.denoise, ivf.pp.estimate_noise):
        with pytest.raises(ivf.InputError, match="A view of an open file cannot take results"):
            refused(backed[:200])
    copied = ivf.tl.denoise(backed, n_comps=5, device="cpu", key_added="X_again", copy=True)
    assert not copied.isbacked
    assert "X_again" not in backed.obsm
    assert np.allclose(copied.obsm["X_again"], dense.obsm["X_inverseflow"])


@pytest.mark.usefixtures("quick")
def test_without_counts_it_is_called_a_bandwidth(adata: Any) -> None:
    del adata.layers["counts"]
    with pytest.warns(UserWarning, match="bandwidth"):
        ivf.tl.denoise(adata, n_comps=5, device="cpu")
    assert adata.uns["inverseflow"]["params"]["noise"] == "bandwidth"
    ivf.tl.denoise(adata, n_comps=5, noise=0.3, device="cpu")
    assert adata.uns["inverseflow"]["noise_sd"] == pytest.approx(np.full(5, 0.3))


@pytest.mark.usefixtures("quick")
def test_other_noises_and_the_papers_protocol(adata: Any) -> None:
    _, counts, projection = read_cells(adata, n_comps=4)
    depth = np.asarray(counts.sum(1))
    noise = Molecules(projection.loadings, projection.centre, depth, projection.target)
    ivf.tl.denoise(adata, n_comps=4, noise=noise, device="cpu")
    assert adata.uns["inverseflow"]["params"]["noise"] == "Molecules"
    assert np.isfinite(adata.obsm["X_inverseflow"]).all()
    few = adata[:40].copy()
    ivf.tl.denoise(few, preset="paper", device="cpu")
    assert few.obsm["X_inverseflow"].shape == (40, 6)
    sigma = 0.4 * few.obsm["X_pca"][:, 0].std()
    assert few.uns["inverseflow"]["noise_sd"] == pytest.approx(np.full(6, sigma), rel=1e-5)


def test_molecules_are_drawn_as_counts_are(made: tuple[Any, np.ndarray]) -> None:
    cells, _ = made
    components, _, projection = read_cells(cells, n_comps=5)
    noise = Molecules(projection.loadings, projection.centre, 500.0, projection.target)
    x0 = torch.from_numpy(components[:1]).repeat(4000, 1)
    drawn = noise.sample(x0, generator=torch.Generator().manual_seed(0)).numpy()
    profile = np.expm1(np.maximum(projection.back(components[:1]), 0))
    rng = np.random.default_rng(0)
    by_hand = projection(sparse.csr_matrix(rng.poisson(np.repeat(profile / profile.sum() * 500, 4000, 0))))
    assert drawn.std(0) == pytest.approx(by_hand.std(0), rel=0.06)
    assert drawn.mean(0) == pytest.approx(by_hand.mean(0), abs=4 * by_hand.std(0).max() / np.sqrt(4000))
    assert from_dict(noise.to_dict()) == noise


def emptied(cells: Any) -> None:
    counts = cells.layers["counts"].toarray()
    counts[0] = 0
    cells.layers["counts"] = counts


def poisoned(value: float) -> Any:
    def change(cells: Any) -> None:
        cells.layers["counts"].data[3] = value

    return change


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda cells: cells.obsm.pop("X_pca"), {}, "no .obsm"),
        (lambda cells: None, {"use_rep": "X_umap"}, "sc.pp.pca"),
        (lambda cells: None, {"layer": "raw"}, "no .layers"),
        (poisoned(-1.0), {}, "negative"),
        (poisoned(np.nan), {}, "NaN"),
        (poisoned(0.5), {}, "not whole"),
        (emptied, {}, "1 cell without a count"),
        (lambda cells: None, {"n_comps": 2.5}, "whole number of at least 1, not 2.5"),
        (lambda cells: cells.varm.pop("PCs"), {}, "loadings"),
        (lambda cells: cells.obsm.update(X_pca=np.random.default_rng(0).normal(size=(CELLS, 15))), {}, "not the PCA"),
        (lambda cells: cells.obsm["X_pca"].fill(np.nan), {}, "NaN"),
    ],
)
def test_bad_cells_are_one_sentence(adata: Any, change: Any, options: dict[str, Any], words: str) -> None:
    change(adata)
    with pytest.raises(ivf.InputError, match=words) as caught:
        ivf.pp.estimate_noise(adata, **options)
    assert str(caught.value).count(". ") <= 1
    assert str(caught.value).endswith(".")


@pytest.mark.usefixtures("quick")
def test_one_cell_and_names_twice(adata: Any) -> None:
    with pytest.raises(ivf.InputError, match="at least two"):
        ivf.tl.denoise(adata[:1].copy())
    adata.var_names = ["gene"] * GENES
    with pytest.warns(UserWarning, match="make_unique"):
        ivf.tl.denoise(adata, n_comps=3, device="cpu")
    with pytest.raises(ivf.InputError, match="noise must be"):
        ivf.tl.denoise(adata, noise="much")
    with pytest.raises(ivf.InputError, match="one for each of the 3"):
        ivf.tl.denoise(adata, n_comps=3, noise=[0.1, 0.2])
    with pytest.raises(ivf.InputError, match="noise must be"):
        ivf.tl.denoise(adata, noise=["much", "little"])
    for nothing in (0.0, float("nan"), [0.1, 0.1, -0.1]):
        with pytest.raises(ivf.InputError, match="must be above 0 and finite"):
            ivf.tl.denoise(adata, n_comps=3, noise=nothing)
    with pytest.raises(ivf.InputError, match="as an AnnData, not as ndarray"):
        ivf.tl.denoise(adata.obsm["X_pca"])
    with pytest.warns(UserWarning, match="has 15 components, so these are denoised and not 100"):
        ivf.tl.denoise(adata, n_comps=100, device="cpu")
    del adata.layers["counts"], adata.obsm["X_inverseflow"]
    with pytest.raises(ivf.InputError, match=r"no \.layers"):
        ivf.tl.denoise(adata, n_comps=3, noise=0.3, layer_added="clear")
    assert "X_inverseflow" not in adata.obsm  # refused before anything is done


@pytest.mark.usefixtures("quick")
def test_seeds_repeats_and_the_layer_of_counts(adata: Any) -> None:
    one, same = (ivf.tl.denoise(adata, n_comps=3, random_state=seed, copy=True) for seed in (7, np.int64(7)))
    assert np.array_equal(one.obsm["X_inverseflow"], same.obsm["X_inverseflow"])
    for seed in (None, -1, np.random.RandomState(0)):
        for step in (ivf.pp.estimate_noise, ivf.tl.denoise):
            with pytest.raises(ivf.InputError, match="random_state must be a whole number of at least 0"):
                step(adata, random_state=seed)
    with pytest.raises(ivf.InputError, match=r"repeats must be a whole number of at least 1, not 2\.5"):
        ivf.pp.estimate_noise(adata, repeats=2.5)
    with pytest.raises(ivf.InputError, match="holds the counts, so give layer_added another name"):
        ivf.tl.denoise(adata, layer_added="counts")
    assert "inverseflow_noise" not in adata.obsm


def test_figures_of_merit_against_sklearn() -> None:
    from sklearn.decomposition import PCA
    from sklearn.model_selection import LeaveOneOut, cross_val_score
    from sklearn.neighbors import KNeighborsClassifier

    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=90)
    x = rng.normal(size=(90, 6)) + labels[:, None] * np.array([2, 0.5, 0, 0, 0, 0])
    components = PCA(2).fit_transform(x)
    theirs = cross_val_score(KNeighborsClassifier(1), components, labels, cv=LeaveOneOut()).mean()
    assert neighbour_accuracy(x, labels, 2) == pytest.approx(theirs)
    apart = labels[:, None] * 100.0 + rng.normal(size=(90, 2))
    assert clustering_scores(apart, labels)["ari"] == pytest.approx(1)
    assert clustering_scores(apart, labels)["nmi"] == pytest.approx(1)


def write_10x_h5(path: Path, raw: Any) -> None:
    """As Cell Ranger 3 writes it: genes by cells, compressed by columns."""
    columns = raw.X.T.tocsc()
    names = np.array(list(raw.var_names), dtype="S")
    with h5py.File(path, "w") as file:
        matrix = file.create_group("matrix")
        for key in ("data", "indices", "indptr"):
            matrix[key] = getattr(columns, key).astype(np.int32)
        matrix["shape"] = np.array(columns.shape, dtype=np.int32)
        matrix["barcodes"] = np.array(list(raw.obs_names), dtype="S")
        features = matrix.create_group("features")
        for key, values in (("id", names), ("name", names), ("genome", names)):
            features[key] = values
        features["feature_type"] = np.array(["Gene Expression"] * len(names), dtype="S")


def write_loom(path: Path, raw: Any) -> None:
    """Genes by cells, dense, with their names as attributes."""
    import loompy

    rows, columns = {"Gene": np.array(raw.var_names, dtype=str)}, {"CellID": np.array(raw.obs_names, dtype=str)}
    loompy.create(str(path), raw.X.T.toarray(), rows, columns)


@pytest.mark.usefixtures("quick")
def test_command(adata: Any, tmp_path: Path) -> None:
    raw = anndata.AnnData(adata.layers["counts"].copy(), obs=adata.obs, var=adata.var[[]])
    raw.write_h5ad(tmp_path / "raw.h5ad")
    mtx = tmp_path / "tenx"
    mtx.mkdir()
    mmwrite(mtx / "matrix.mtx", raw.X.T.tocoo())
    (mtx / "barcodes.tsv").write_text("\n".join(raw.obs_names) + "\n")
    (mtx / "genes.tsv").write_text("\n".join(f"{g}\t{g}" for g in raw.var_names) + "\n")
    write_10x_h5(tmp_path / "tenx.h5", raw)
    write_loom(tmp_path / "raw.loom", raw)
    runner = CliRunner()
    for source in ("raw.h5ad", "tenx", "tenx.h5", "raw.loom"):
        target = tmp_path / f"{source}_out.h5ad"
        command = ["cells", str(tmp_path / source), "-o", str(target), "--n-comps", "5", "--device", "cpu"]
        result = runner.invoke(app, command)
        assert result.exit_code == 0, result.output
        written = anndata.read_h5ad(target)
        assert written.obsm["X_inverseflow"].shape == (CELLS, 5)
        assert (written.layers["counts"] != raw.X).sum() == 0  # every reader gives the same molecules
        assert runner.invoke(app, command).exit_code == 1  # it exists
    assert runner.invoke(app, ["cells", str(tmp_path / "none.h5ad")]).exit_code == 1
    assert runner.invoke(app, ["cells", str(tmp_path / "raw.h5ad"), "-o", "x.csv"]).exit_code == 2
    (tmp_path / "text.h5ad").write_text("no cells")
    broken = runner.invoke(app, ["cells", str(tmp_path / "text.h5ad"), "-o", str(tmp_path / "y.h5ad")])
    assert broken.exit_code == 1
    assert not (tmp_path / "y.h5ad").exists()


def write_folder(folder: Path, raw: Any, *, genes: str, packed: bool, sample: str = "") -> Path:
    """As Cell Ranger 2 (genes.tsv) or 3 (features.tsv) writes it; the second gene is an antibody."""
    kinds = ["Antibody Capture" if k == 1 else "Gene Expression" for k in range(raw.n_vars)]
    rows = [[f"id {k}", g, *([kinds[k]] if genes == "features.tsv" else [])] for k, g in enumerate(raw.var_names)]
    content = BytesIO()
    mmwrite(content, raw.X.T.tocoo().astype(int))
    files = {
        "matrix.mtx": content.getvalue(),
        "barcodes.tsv": "".join(f"{cell}\n" for cell in raw.obs_names).encode(),
        genes: "".join("\t".join(row) + "\n" for row in rows).encode(),
    }
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{sample}{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(text) if packed else text)
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("genes", ["genes.tsv", "features.tsv"])
def test_folders_of_every_version(adata: Any, tmp_path: Path, genes: str, packed: bool) -> None:
    raw = anndata.AnnData(adata.layers["counts"].copy(), obs=adata.obs[[]], var=adata.var[[]])
    raw.var_names = ["twice", "antibody", "twice", *raw.var_names[3:]]
    kept = raw.X if genes == "genes.tsv" else raw[:, [0, *range(2, GENES)]].X
    folder = write_folder(tmp_path / "cells", raw, genes=genes, packed=packed, sample="GSM1_")
    (folder / "._GSM1_matrix.mtx").write_bytes(b"left by macOS")
    found = read(folder)
    assert (kept != found.X).nnz == 0
    assert list(found.obs_names) == list(raw.obs_names)
    assert list(found.var_names[[0, -1]]) == ["twice", f"g{GENES - 1}"]
    assert found.var_names.is_unique
    assert list(found.var["gene_ids"].iloc[[0, -1]]) == ["id 0", f"id {GENES - 1}"]
    if packed == (genes == "features.tsv"):  # the two that scanpy knows
        theirs = sc.read_10x_mtx(folder, prefix="GSM1_")
        assert (found.X != theirs.X).nnz == 0
        assert list(found.var_names) == list(theirs.var_names)


def test_what_a_folder_lacks_is_said(adata: Any, tmp_path: Path) -> None:
    raw = anndata.AnnData(adata.layers["counts"].copy(), obs=adata.obs[[]], var=adata.var[[]])
    folder = write_folder(tmp_path / "cells", raw, genes="features.tsv", packed=True)
    (folder / "other_matrix.mtx").write_bytes(b"")
    with pytest.raises(ivf.FileError, match=r"has 2 files matrix\.mtx or matrix\.mtx\.gz; give a folder of one sample"):
        read(folder)
    (folder / "other_matrix.mtx").unlink()
    (folder / "barcodes.tsv").write_text("only one\n")
    with pytest.raises(ivf.FileError, match=f"counts of {CELLS} cells and {GENES} genes, but names of 1 and {GENES}"):
        read(folder)
    (folder / "barcodes.tsv").unlink()
    (folder / "barcodes.tsv.gz").unlink()
    with pytest.raises(ivf.FileError, match=r"has no barcodes\.tsv \(or \.gz\)"):
        read(folder)
    (folder / "matrix.mtx.gz").unlink()
    with pytest.raises(ivf.FileError, match=r"has no files matrix\.mtx or"):
        read(folder)


@pytest.mark.usefixtures("quick")
def test_the_command_in_the_folder_and_its_name(adata: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder's name has no ending, so that sample.v1 and sample.v2 have results of their own; "." has no name."""
    raw = anndata.AnnData(adata.layers["counts"].copy(), obs=adata.obs[[]], var=adata.var[[]])
    monkeypatch.chdir(write_folder(tmp_path / "sample.v2", raw, genes="features.tsv", packed=True))
    result = CliRunner().invoke(app, ["cells", ".", "--n-comps", "3", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "sample.v2_denoised.h5ad").exists()


@pytest.mark.usefixtures("quick")
def test_the_command_on_components_in_a_table_and_on_genes_never_seen(adata: Any, tmp_path: Path) -> None:
    table = adata.copy()
    names = [f"PC{k}" for k in range(15)]
    table.obsm["X_pca"] = DataFrame(table.obsm["X_pca"], index=table.obs_names, columns=names)
    table.write_h5ad(tmp_path / "table.h5ad")
    counts = adata.layers["counts"].toarray() * (np.arange(GENES) < 12)
    unseen = anndata.AnnData(sparse.csr_matrix(counts[counts.sum(1) > 0]))
    unseen.write_h5ad(tmp_path / "unseen.h5ad")
    for name, words in (("table", "noise (counts): "), ("unseen", "12 variable genes, PCA: .obsm['X_pca'] with 11")):
        result = CliRunner().invoke(app, ["cells", str(tmp_path / f"{name}.h5ad"), "--n-comps", "3", "--device", "cpu"])
        assert result.exit_code == 0, result.output
        assert words in result.output


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:1], "two cells and two genes at least, not 1 and 150"),
        (lambda x: x[:, :1], "two cells and two genes at least, not 400 and 1"),
        (lambda x: np.where(np.arange(CELLS)[:, None] == 3, 0, x), "1 cell without a count"),
        (lambda x: x - 1, "negative values"),
        (lambda x: np.where(x > 3, np.nan, x), "NaN"),
        (np.log1p, "not whole"),
    ],
)
def test_the_command_refuses_in_one_sentence(adata: Any, tmp_path: Path, change: Any, words: str) -> None:
    anndata.AnnData(sparse.csr_matrix(change(adata.layers["counts"].toarray()))).write_h5ad(tmp_path / "raw.h5ad")
    result = CliRunner().invoke(app, ["cells", str(tmp_path / "raw.h5ad"), "--device", "cpu"])
    assert result.exit_code == 1
    assert words in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["raw.h5ad"]


@pytest.mark.usefixtures("quick")
def test_the_command_says_that_there_are_no_counts(adata: Any, tmp_path: Path) -> None:
    del adata.layers["counts"]
    adata.write_h5ad(tmp_path / "pca.h5ad")
    result = CliRunner().invoke(app, ["cells", str(tmp_path / "pca.h5ad"), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "There are no counts in .layers['counts'], so the noise cannot be measured" in result.output
    assert "UserWarning" not in result.output


@pytest.mark.usefixtures("quick")
def test_the_noise_of_other_components_is_not_taken_for_theirs(adata: Any) -> None:
    ivf.pp.estimate_noise(adata, n_comps=5, repeats=2)
    kept = adata.obsm["inverseflow_noise"].copy()
    ivf.tl.denoise(adata, n_comps=5, device="cpu")
    assert np.array_equal(adata.obsm["inverseflow_noise"], kept)  # it is theirs: not measured again
    adata.obsm["X_pca"] = 10 * np.asarray(adata.obsm["X_pca"])
    ivf.tl.denoise(adata, n_comps=5, device="cpu")
    assert adata.uns["inverseflow_noise"]["sd"].mean() > 5 * np.sqrt((kept**2).mean(0)).mean()
