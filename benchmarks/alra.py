"""ALRA in Python: our implementation of Linderman et al., Zero-preserving imputation of single-cell RNA-seq data, 2022.

Their own is in R. Log-normalised expression (cells, genes) is approximated by a matrix of low rank. What that matrix
says of a gene that is really absent scatters around zero, so whatever is below the size of its most negative values
becomes zero. Then every gene gets the mean and spread back that its positive values had, and values that were seen and
would be lost stay as they were seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.extmath import randomized_svd

Array = np.ndarray[Any, Any]
LARGEST, NOISE_FROM, DEVIATIONS = 100, 80, 6.0  # singular values looked at; those that are noise; how far from it
QUANTILE = 0.001


def choose_rank(expression: Array, seed: int = 0) -> int:
    """The last spacing between singular values that is larger than those between the last of them, which are noise."""
    values = randomized_svd(expression, LARGEST, n_iter=2, random_state=seed)[1]
    spacings = values[:-1] - values[1:]
    noise = spacings[NOISE_FROM - 1 :]
    far = np.flatnonzero((spacings - noise.mean()) / noise.std(ddof=1) > DEVIATIONS)
    return int(far[-1]) + 1 if len(far) else 1


def alra(expression: Array, rank: int | None = None, seed: int = 0) -> Array:
    """Expression (cells, genes), log-normalised, without the zeros that are only missed molecules."""
    left, size, right = randomized_svd(expression, rank or choose_rank(expression, seed), n_iter=10, random_state=seed)
    low = (left * size) @ right
    kept = np.where(low > np.abs(np.quantile(low, QUANTILE, axis=0)), low, 0)
    count, mean, spread = _of_positive(kept)
    seen_count, seen_mean, seen_spread = _of_positive(expression)
    scaled = (count > 1) & (seen_count > 1) & (spread > 0)
    slope = np.where(scaled, seen_spread / np.where(scaled, spread, 1), 1)
    shift = np.where(scaled, seen_mean - mean * slope, 0)
    result = np.where(kept > 0, np.maximum(kept * slope + shift, 0), 0)
    return np.where((expression > 0) & (result == 0), expression, result)


def _of_positive(x: Array) -> tuple[Array, Array, Array]:
    """How many values of each gene are not zero, their mean and their standard deviation."""
    there = x != 0
    count = there.sum(0)
    mean = x.sum(0) / np.maximum(count, 1)
    square = np.where(there, x - mean, 0) ** 2
    return count, mean, np.sqrt(square.sum(0) / np.maximum(count - 1, 1))
