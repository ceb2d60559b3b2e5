"""Figures of merit for cells against theory, and the rivals that we had to write ourselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.spatial.distance import cdist

import inverseflow as ivf
from inverseflow.metrics import energy_distance, molecular_cross_validation, noise_distance, split_molecules


def rates(cells: int = 400, genes: int = 60) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.gamma(0.7, 2, (3, genes))[rng.integers(3, size=cells)] * rng.lognormal(0, 0.5, (cells, 1))


def test_parts_of_the_molecules_are_independent_and_poisson() -> None:
    rng = np.random.default_rng(1)
    mean = 7.0
    counts = sparse.csr_matrix(rng.poisson(mean, (400, 500)))
    one, other = split_molecules(counts, 0.3, rng)
    assert ((one + other) != counts).nnz == 0
    a, b = one.toarray().ravel(), other.toarray().ravel()
    error = 5 / np.sqrt(a.size)
    for part, expected in ((a, 0.3 * mean), (b, 0.7 * mean)):
        assert part.mean() == pytest.approx(expected, abs=error * np.sqrt(expected))
        assert part.var() == pytest.approx(expected, abs=error * np.sqrt(expected + 2 * expected**2))
    assert abs(np.corrcoef(a, b)[0, 1]) < error


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_molecular_cross_validation_is_what_theory_says(share: float) -> None:
    """Given expected counts f of what is shown, the mean loss is that of the truth plus, with f' = f (1-p)/p and the
    hidden mean m = (1-p) rate: squared (f' - m)^2; Poisson f' - m - m log(f' / m).
    """
    rate, p = rates(), share
    rng = np.random.default_rng(2)
    f = p * rate * np.exp(rng.normal(0, 0.3, rate.shape))
    ours, hidden = f * (1 - p) / p, (1 - p) * rate
    excess = {
        "squared": np.square(ours - hidden).mean(),
        "poisson": (ours - hidden - hidden * np.log(ours / hidden)).mean(),
    }
    for loss, expected in excess.items():
        found = []
        for seed in range(40):
            counts = sparse.csr_matrix(np.random.default_rng(100 + seed).poisson(rate))
            wrong, right = (
                molecular_cross_validation(lambda shown, says=says: says, counts, share=p, loss=loss, seed=seed)
                for says in (f, p * rate)
            )
            found.append(wrong - right)
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        assert np.mean(found) == pytest.approx(expected, abs=5 * error)
        assert expected > 20 * error  # so that another factor between the depths would be seen


def test_what_is_shown_is_its_share_and_what_is_wrong_is_said() -> None:
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(rates()))
    shown = []
    molecular_cross_validation(lambda x: shown.append(x) or x.toarray() + 1.0, counts, share=0.8)
    assert shown[0].sum() == pytest.approx(0.8 * counts.sum(), rel=0.02)
    assert molecular_cross_validation(lambda x: x.toarray(), counts) == np.inf  # a zero is never sure
    for options, words in (({"share": 1.0}, "between 0 and 1"), ({"loss": "mse"}, "poisson or squared")):
        with pytest.raises(ivf.InputError, match=words):
            molecular_cross_validation(lambda x: x.toarray(), counts, **options)
    with pytest.raises(ivf.InputError, match="not be negative"):
        molecular_cross_validation(lambda x: x.toarray() - 1.0, counts)


def test_counts_in_floats_as_anndata_has_them_and_sparse_answers() -> None:
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(rates()))
    whole, floats = (molecular_cross_validation(lambda x: x, c, loss="squared") for c in (counts, counts * 1.0))
    dense = molecular_cross_validation(lambda x: x.toarray(), counts, loss="squared")
    assert whole == floats == dense
    for wrong in (counts * 0.5, -counts):
        with pytest.raises(ivf.InputError, match="whole numbers of at least 0, so give the raw counts"):
            molecular_cross_validation(lambda x: x, wrong)


def test_energy_distance_of_points_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(1000 + shift, 1, (300, 3)).astype(np.float32) for shift in (0, 0.05))
    expected = 2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean()
    assert energy_distance(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, rel=1e-3)


def test_distance_of_a_noise_from_the_true_one() -> None:
    assert noise_distance([1.1, 1.6], [1.0, 2.0]) == {
        "rms": pytest.approx(np.sqrt(0.025)),
        "worst": pytest.approx(-0.2),
    }


def test_alra_keeps_true_zeros_and_finds_the_missed_ones() -> None:
    """Three types of cells, each without a third of the genes: rank 3, and zeros of both kinds are known."""
    from benchmarks.alra import alra, choose_rank

    rng = np.random.default_rng(0)
    profile = rng.uniform(1, 4, (3, 150))
    for k in range(3):
        profile[k, 50 * k : 50 * (k + 1)] = 0
    truth = profile[rng.integers(3, size=600)]
    seen = np.where(rng.random(truth.shape) < 0.3, 0, truth * rng.lognormal(0, 0.1, truth.shape))
    assert choose_rank(seen) == 3
    result = alra(seen)
    missed = (seen == 0) & (truth > 0)
    assert (result[missed] > 0).mean() > 0.99
    assert (result[truth == 0] == 0).mean() > 0.97  # of 200 values around 0, 1 or 2 exceed the quantile's mirror image
    assert np.abs(result[missed] / truth[missed] - 1).mean() < 0.1
    assert (result[seen > 0] > 0).all()  # what was seen is never lost
    positive, before = np.where(result > 0, result, np.nan), np.where(seen > 0, seen, np.nan)
    assert np.nanmean(positive, 0) == pytest.approx(np.nanmean(before, 0), rel=0.02)
    spread = np.nanstd(positive, 0) / np.nanstd(before, 0)  # less where the scaled values would be negative
    assert np.median(spread) == pytest.approx(1, abs=0.01)
