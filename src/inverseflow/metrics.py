"""How good is it: numbers that need the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from .errors import InputError


def psnr(estimate: Tensor, truth: Tensor, data_range: float = 1.0) -> float:
    """Peak signal-to-noise ratio in dB for a fixed range; nothing is clipped."""
    return float(10 * torch.log10(data_range**2 / (estimate - truth).square().mean()))


def rmse(estimate: Tensor, truth: Tensor) -> float:
    """Root of the mean squared Euclidean distance between rows (B, D)."""
    return math.sqrt(float((estimate - truth).square().flatten(1).sum(1).mean()))


def energy_distance(a: Tensor, b: Tensor, *, independent: bool = False) -> float:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'| between two sets of points (n, D) and (m, D).

    Plain: the distance of the two sets themselves, never negative, 0 only if they are equal. With `independent`, an
    unbiased estimate for the laws behind two sets that were drawn independently (no point paired with itself).
    """
    n, m = len(a), len(b)
    within_a, within_b = _distances(a, a).sum() / n**2, _distances(b, b).sum() / m**2
    if independent:
        within_a, within_b = within_a * n / (n - 1), within_b * m / (m - 1)
    return float(2 * _distances(a, b).mean() - within_a - within_b)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """By differences: products of points far from 0 leave little of their distance in single precision."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def principal_components(x: Any, count: int) -> Any:
    """(n, count): the leading principal components of points (n, D); zeros where there are fewer."""
    x = np.asarray(x, dtype=np.float64)
    left, size, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    found = left[:, :count] * size[:count]
    return np.pad(found, ((0, 0), (0, count - found.shape[1])))


def neighbour_accuracy(x: Any, labels: Any, count: int) -> float:
    """How often a point's nearest neighbour in the first `count` principal components has its label (leave-one-out).

    In two components this rewards collapse: print it beside more.
    """
    from scipy.spatial import KDTree

    points, labels = principal_components(x, count), np.asarray(labels)
    nearest = KDTree(points).query(points, k=2)[1]
    own = np.arange(len(points))
    neighbour = np.where(nearest[:, 0] == own, nearest[:, 1], nearest[:, 0])  # of equal points the other comes first
    return float((labels[neighbour] == labels).mean())


def clustering_scores(x: Any, labels: Any, seed: int = 0) -> dict[str, float]:
    """Of k-means with as many clusters as labels: adjusted Rand index and normalised mutual information; and the
    silhouette of the labels themselves.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

    found = KMeans(len(np.unique(labels)), n_init=4, random_state=seed).fit_predict(x)
    return {
        "ari": float(adjusted_rand_score(labels, found)),
        "nmi": float(normalized_mutual_info_score(labels, found)),
        "silhouette": float(silhouette_score(x, labels)),
    }


def split_molecules(counts: Any, share: float, rng: np.random.Generator) -> tuple[Any, Any]:
    """Sparse whole counts in two: every molecule goes to the first part with the chance `share`, else to the second.

    Of Poisson counts the parts are independent, and Poisson too.
    """
    one, other = counts.copy(), counts.copy()
    one.data = rng.binomial(counts.data, share)
    other.data = counts.data - one.data
    one.eliminate_zeros()
    other.eliminate_zeros()
    return one, other


def molecular_cross_validation(
    denoise: Callable[[Any], Any], counts: Any, *, share: float = 0.9, loss: str = "poisson", seed: int = 0
) -> float:
    """How badly `denoise` says the molecules that it was not shown, per value (Batson, Royer and Webber, 2019).

    `denoise` turns counts (cells, genes; sparse), a random `share` of all molecules, into expected counts. These times
    (1 - share) / share are what the others should be. The least loss has, of all functions of the counts, the one that
    gives the true means.

    loss  "poisson": expected - seen log expected; "squared": the squared difference
    """
    if not 0 < share < 1:
        raise InputError(f"share must be between 0 and 1, not {share}.")
    if loss not in ("poisson", "squared"):
        raise InputError(f"loss must be poisson or squared, not {loss!r}.")
    whole = sparse.csr_matrix(counts)
    if not np.array_equal(whole.data, np.round(whole.data)) or whole.data.min(initial=0) < 0:
        raise InputError("Counts are whole numbers of at least 0, so give the raw counts.")
    shown, hidden = split_molecules(whole.astype(np.int64), share, np.random.default_rng(seed))  # AnnData's are floats
    found = denoise(shown)
    found = found.toarray() if sparse.issparse(found) else found
    expected = np.asarray(found, dtype=np.float64) * (1 - share) / share
    seen = hidden.toarray()
    if loss == "squared":
        return float(np.square(expected - seen).mean())
    if (expected < 0).any():
        raise InputError("Expected counts must not be negative; the Poisson loss has no value there.")
    with np.errstate(divide="ignore", invalid="ignore"):
        return float((expected - np.where(seen > 0, seen * np.log(expected), 0)).mean())


def noise_distance(found: Any, truth: Any) -> dict[str, float]:
    """How far standard deviations by component are from the true ones: found / truth - 1, its root mean square and the
    one that is furthest from 0.
    """
    off = np.asarray(found, dtype=np.float64) / np.asarray(truth, dtype=np.float64) - 1
    return {"rms": float(np.sqrt((off**2).mean())), "worst": float(off[np.argmax(np.abs(off))])}
