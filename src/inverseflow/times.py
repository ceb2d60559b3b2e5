"""Time grids 0 < t_1 < ... < t_N = 1 (the paper's appendix, "Training details").

The consistency loss replaces an ODE by N - 1 Euler steps. Its error always shrinks what is recovered, and most where
noise exceeds signal: for Gaussian data the recovered spread is known in closed form (`recovered_spread`). The paper's
grid (N = 11, rho = 7, eps = 0.002) keeps 1 % of a direction whose noise is twice its signal; `GrowingGrid`'s last grid
keeps 92 %, and starts coarse because a coarse grid learns faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .errors import InputError
from .tensors import Generator, like


def karras_times(n: int, *, eps: float = 0.02, rho: float = 2.0) -> Tensor:
    """(N,) ascending times t_i = (eps^(1/rho) + (i-1)/(N-1) (1 - eps^(1/rho)))^rho, from eps to exactly 1."""
    if n < 2 or not 0 < eps < 1 or rho <= 0:
        raise InputError(f"A time grid needs n >= 2, 0 < eps < 1 and rho > 0, not n={n}, eps={eps}, rho={rho}.")
    first = eps ** (1 / rho)
    times: Tensor = (first + torch.linspace(0, 1, n, dtype=torch.float64) * (1 - first)) ** rho
    times[0], times[-1] = eps, 1.0
    return times


def neighbours(times: Tensor, x: Tensor, generator: Generator = None) -> tuple[Tensor, Tensor]:
    """Adjacent times s < t, drawn uniformly over the grid's intervals; each of shape (B,)."""
    times = like(times, x)
    i = torch.randint(len(times) - 1, (x.shape[0],), generator=generator, device=x.device)
    return times[i], times[i + 1]


@dataclass(frozen=True)
class GrowingGrid:
    """A Karras grid whose number of intervals doubles from `first` to `last` during training (as in iCT).

    The sizes share the part `growth` of the training equally; the last one keeps the rest. `GrowingGrid.fixed(n)` is a
    constant grid of n time points.
    """

    first: int = 5
    last: int = 40
    eps: float = 0.02
    rho: float = 2.0
    growth: float = 0.5

    @classmethod
    def fixed(cls, n: int, *, eps: float = 0.02, rho: float = 2.0) -> GrowingGrid:
        return cls(n - 1, n - 1, eps, rho)

    def intervals(self, progress: float) -> int:
        """How many when the part `progress` (0 to 1) of the training is done."""
        sizes = [self.first]
        while sizes[-1] < self.last:
            sizes.append(min(2 * sizes[-1], self.last))
        stage = int(progress / self.growth * (len(sizes) - 1)) if progress < self.growth else len(sizes) - 1
        return sizes[stage]

    def at(self, progress: float, device: torch.device | str = "cpu") -> Tensor:
        """The grid when the part `progress` of the training is done; not to be modified."""
        return _kept(self.intervals(progress) + 1, self.eps, self.rho, torch.device(device))


@lru_cache(maxsize=64)
def _kept(n: int, eps: float, rho: float, device: torch.device) -> Tensor:
    """Made once and kept where it is needed, so that no step moves it."""
    times = karras_times(n, eps=eps, rho=rho)
    return times if device.type == "cpu" else times.float().to(device)


def recovered_spread(times: Tensor, noise_over_signal: float) -> float:
    """Recovered over true standard deviation for Gaussian data, the exact fixed point of the inverse consistency loss.

    With squared distance and c(x, t) = k_t x, one sweep over the grid gives k_1 = prod_i (q + t_i t_{i+1} r^2) / (q +
    t_{i+1}^2 r^2), and the fixed point solves q = k_1(q)^2 (1 + r^2).
    """
    s, t = times[:-1].double(), times[1:].double()
    r2 = noise_over_signal**2
    q = 1.0
    for _ in range(100_000):
        k = float(((q + s * t * r2) / (q + t * t * r2)).prod())
        previous, q = q, k * k * (1 + r2)
        if abs(q - previous) < 1e-13:
            break
    return math.sqrt(q)
