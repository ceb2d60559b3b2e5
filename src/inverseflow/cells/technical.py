"""How much of a cell's components is chance: the noise of catching only some of its molecules, from the counts alone.

**Thinning.** Halves of a cell's counts, split at random, are two independent measurements at half the depth; half their
squared difference is the noise variance there. Quarters and eighths give it at smaller depths, and the trend of its
logarithm leads on to the whole.

**Fitted directions.** Components were fitted to these very cells, noise included, so a cell's noise lies along them
more than along directions that were found without it, which is what thinning measures. How much more is seen by doing
it again: counts drawn around the shrunk components, new components fitted to them, and the known noise measured along
these, in the draw that they were fitted to and in others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, svds

from ..metrics import split_molecules
from .counts import BLOCK, Array, Projection

FITTED_AT_MOST = 20_000  # cells; with more than this the directions know little of a single cell
REDRAWS, ROUNDS = 4, 2
LEAST_SHARE = 0.02  # of a component's variance that is always taken for signal
Progress = Callable[[float], None]


@dataclass(frozen=True)
class CellNoise:
    """Standard deviations: `cells` (n, D) of each cell by counting, times `fitting` (D,) because the directions were
    fitted to the same cells; `spread` (D,) is that of the components themselves.
    """

    cells: Array
    fitting: Array
    spread: Array

    @property
    def sd(self) -> Array:
        """(n, D): what a component of a cell is off by; never more than nearly all of what is seen."""
        return self.cells * self.fitting

    @property
    def counting(self) -> Array:
        """(D,) Root mean square over the cells of the noise of counting, along directions found elsewhere."""
        return np.asarray(np.sqrt((self.cells**2).mean(0)))

    @property
    def components(self) -> Array:
        """(D,) Root mean square over the cells."""
        return np.asarray(np.sqrt((self.sd**2).mean(0)))


def technical_noise(
    counts: sparse.csr_matrix,
    projection: Projection,
    components: Array,
    *,
    repeats: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> CellNoise:
    """The noise of components that `projection` makes from `counts`; more `repeats` tell a cell's own more exactly."""
    repeats = repeats or (8 if len(components) <= FITTED_AT_MOST else 3)
    counts, projection = used_genes(counts, projection)
    cells = np.sqrt(thinned_variance(counts, projection, repeats=repeats, seed=seed, progress=progress))
    noise = CellNoise(cells, np.ones(cells.shape[1]), components.std(0))
    for number in range(ROUNDS if len(components) <= FITTED_AT_MOST else 0):
        noise = replace(noise, fitting=fitted_share(counts, projection, components, noise, seed + number))
    return noise


def used_genes(counts: sparse.csr_matrix, projection: Projection) -> tuple[sparse.csr_matrix, Projection]:
    """Genes that no component looks at, as one: only their sum counts."""
    used = np.any(projection.loadings != 0, axis=1)
    total = np.asarray(counts.sum(1)).ravel()
    others = total - np.asarray(counts[:, used].sum(1)).ravel()
    fewer = sparse.csr_matrix(sparse.hstack([counts[:, used], sparse.csr_matrix(others[:, None])]))
    loadings = np.vstack([projection.loadings[used], np.zeros((1, projection.loadings.shape[1]))])
    centre = np.append(projection.centre[used], np.log1p(projection.target * others / total).mean())
    return fewer, Projection(loadings, centre, np.append(projection.spread[used], 1.0), projection.target)


def thinned_variance(
    counts: sparse.csr_matrix,
    projection: Projection,
    *,
    repeats: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> Array:
    """(n, D): the variance of each cell's components by counting, extrapolated from three depths."""
    rng = np.random.default_rng(seed)
    n, dims = counts.shape[0], projection.loadings.shape[1]
    half, pooled = np.zeros((n, dims)), np.zeros((3, dims))  # pooled: over the cells, at 1/2, 1/4 and 1/8
    for first in range(0, n, BLOCK):
        rows = slice(first, min(first + BLOCK, n))
        block = sparse.csr_matrix(counts[rows])
        for _ in range(repeats):
            shown = [block]
            for depth in range(3):
                shown = [part for whole in shown for part in split_molecules(whole, 0.5, rng)]
                variance = np.var([projection(part) for part in shown], axis=0, ddof=1) / repeats
                pooled[depth] += variance.sum(0)
                half[rows] += variance if depth == 0 else 0
        if progress:
            progress(rows.stop / n)
    step, before = (pooled[k] / np.maximum(pooled[k + 1], 1e-300) for k in (0, 1))
    variance = half * step**2 / np.maximum(before, 1e-300)
    # A cell's few draws are uncertain; one that happened to show none still has noise.
    return np.asarray(np.maximum(variance, 0.05 * variance.mean(0)))


def fitted_share(
    counts: sparse.csr_matrix, projection: Projection, components: Array, noise: CellNoise, seed: int = 0
) -> Array:
    """(D,) How much larger the noise is along directions that were fitted to it: 1 or more."""
    rng = np.random.default_rng(seed)
    kept = np.clip(1 - (noise.components / noise.spread) ** 2, LEAST_SHARE, 1)
    middle = components.mean(0)
    profile = np.expm1(np.maximum(projection.back(middle + (components - middle) * kept), 0))
    rate = profile / np.maximum(profile.sum(1, keepdims=True), 1e-12) * np.asarray(counts.sum(1))
    used = np.any(projection.loadings != 0, axis=1)
    draws = [projection.expression(sparse.csr_matrix(rng.poisson(rate)))[:, used] for _ in range(1 + REDRAWS)]
    mean = np.asarray(draws[0].mean(0)).ravel()
    dims = components.shape[1]
    directions = _leading_directions(draws[0], mean, min(dims, min(draws[0].shape) - 1), seed)
    seen, *fresh = (np.asarray(draw @ directions) for draw in draws)
    counting = np.var(fresh, axis=0, ddof=1).mean(0)
    fitted = ((seen - np.mean(fresh, axis=0)) ** 2).mean(0) - counting / REDRAWS
    larger = np.sqrt(np.maximum(fitted / np.maximum(counting, 1e-300), 1))
    larger = np.pad(larger, (0, dims - len(larger)), mode="edge")
    return np.asarray(np.minimum(larger, np.sqrt(1 - LEAST_SHARE) * noise.spread / noise.counting))


def _leading_directions(x: sparse.csr_matrix, mean: Array, count: int, seed: int) -> Array:
    """(G, count): PCA of a sparse matrix without making it dense."""
    ones = np.ones(x.shape[0])

    def times(v: Array) -> Array:
        moved: Array = np.asarray(x @ v.ravel()) - ones * (mean @ v.ravel())
        return moved

    def transposed(v: Array) -> Array:
        moved: Array = np.asarray(x.T @ v.ravel()) - mean * v.sum()
        return moved

    operator: Any = LinearOperator(x.shape, matvec=times, rmatvec=transposed, dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(min(x.shape))
    _, _, right = svds(operator, k=count, v0=start, tol=1e-3)
    return np.asarray(right[::-1].T)
