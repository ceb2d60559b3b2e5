"""p(x_t | x0) and its velocity: what lies between the clean x0 (t = 0) and the observed x1 (t = 1).

Algorithms 1-2 of the paper draw (x_t, u_t) in closed form (`AffineGaussian`), Algorithms 3-4 on a bridge to a simulated
x1' (`Bridge`, any noise). Deterministic dynamics have a trajectory instead (`Simulated`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor
from torchdiffeq import odeint

from .noise import Noise
from .tensors import Generator, expand, normal_like

TimeFunction = Callable[[Tensor], Tensor]


class Process(Protocol):
    def sample(self, x0: Tensor, t: Tensor, *, generator: Generator = None) -> tuple[Tensor, Tensor]:
        """x_t ~ p(x_t | x0) and its velocity u_t = dx_t/dt, both (B, *S), for times t (B,)."""

    def project(self, x0: Tensor) -> Tensor:
        """x0 moved to where clean data may lie."""

    def select(self, index: Tensor) -> Self:
        """The process of these samples of the data set, where the noise varies by sample."""


@dataclass(frozen=True)
class Bridge:
    """x1' ~ p(x1 | x0), then x_t between x0 and x1': a straight line, or any smooth `path(x0, x1, t)`.

    A path must give x0 at t = 0 and x1 at t = 1; t arrives shaped to multiply x0. Its velocity is differentiated
    exactly.
    """

    noise: Noise
    path: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def sample(self, x0: Tensor, t: Tensor, *, generator: Generator = None) -> tuple[Tensor, Tensor]:
        x1 = self.noise.draw(x0, generator)
        path, t = self.path, expand(t, x0)
        if path is None:
            return x0 + t * (x1 - x0), x1 - x0
        return value_and_rate(lambda time: path(x0, x1, time), t)

    def project(self, x0: Tensor) -> Tensor:
        return self.noise.project(x0)

    def select(self, index: Tensor) -> Self:
        return replace(self, noise=self.noise.select(index))


@dataclass(frozen=True)
class AffineGaussian:
    """x_t = alpha(t) x0 + sigma(t) z in closed form, u_t(x_t | x0) = alpha'(t) x0 + sigma'(t) z."""

    alpha: TimeFunction
    sigma: TimeFunction
    scale: float = 1.0

    @classmethod
    def variance_exploding(cls, sigma: float) -> AffineGaussian:
        """x_t = x0 + t sigma z: Gaussian noise of size sigma at t = 1, the process of Karras and Song."""
        return cls(torch.ones_like, lambda t: t, sigma)

    @classmethod
    def variance_preserving(cls, beta_min: float = 0.1, beta_max: float = 20.0) -> AffineGaussian:
        """alpha = exp(-beta_min t / 2 - (beta_max - beta_min) t^2 / 4), sigma^2 = 1 - alpha^2."""

        def alpha(t: Tensor) -> Tensor:
            return torch.exp(-beta_min * t / 2 - (beta_max - beta_min) * t * t / 4)

        def sigma(t: Tensor) -> Tensor:
            return (1 - alpha(t).square()).clamp(min=1e-12).sqrt()

        return cls(alpha, sigma)

    def sample(self, x0: Tensor, t: Tensor, *, generator: Generator = None) -> tuple[Tensor, Tensor]:
        alpha, d_alpha = value_and_rate(self.alpha, t)
        sigma, d_sigma = value_and_rate(self.sigma, t)
        z = self.scale * normal_like(x0, generator)
        x_t = expand(alpha, x0) * x0 + expand(sigma, x0) * z
        u_t = expand(d_alpha, x0) * x0 + expand(d_sigma, x0) * z
        return x_t, u_t

    def project(self, x0: Tensor) -> Tensor:
        return x0

    def select(self, index: Tensor) -> Self:
        return self


@dataclass(frozen=True)
class Simulated:
    """Deterministic dynamics dx/dt = velocity(x, t): x_t is the trajectory from x0, u_t the velocity there.

    steps     of RK4. Every sample has its own end time, so all are integrated over [0, 1] with the velocity multiplied
              by t
    perturb   (x0, generator) -> states nearby to start from instead, so that the network also learns to turn back
              its own errors. An error e of x0_hat reaches x1' as M e; a network J then leaves (1 - J M) e of it, which
              grows while J is still about 1 if M carries e by more than a sixth of its wavelength. Give it together
              with `averaged=True` (see InverseConsistency), which leaves the time to learn J.
    onto      where clean states lie, e.g. fields without divergence
    """

    velocity: Callable[[Tensor, Tensor], Tensor]
    steps: int = 8
    perturb: Callable[[Tensor, Generator], Tensor] | None = None
    onto: Callable[[Tensor], Tensor] | None = None

    def sample(self, x0: Tensor, t: Tensor, *, generator: Generator = None) -> tuple[Tensor, Tensor]:
        x_t = self.forward(self.perturb(x0, generator) if self.perturb else x0, t)
        return x_t, self.velocity(x_t, t)

    def forward(self, x0: Tensor, t: Tensor) -> Tensor:
        """The state at times t (B,)."""

        def scaled(fraction: Tensor, x: Tensor) -> Tensor:
            return expand(t, x) * self.velocity(x, fraction * t)

        grid = torch.linspace(0, 1, self.steps + 1, dtype=x0.dtype, device=x0.device)
        with torch.no_grad():
            end: Tensor = odeint(scaled, x0, grid, method="rk4")[-1]
        return end

    def project(self, x0: Tensor) -> Tensor:
        return self.onto(x0) if self.onto else x0

    def select(self, index: Tensor) -> Self:
        return self


def value_and_rate(function: TimeFunction, t: Tensor) -> tuple[Tensor, Tensor]:
    """function(t) and its exact derivative by t."""
    t = t.contiguous()  # times that are alike may lie in one place, which forward differentiation cannot have
    value, rate = torch.func.jvp(function, (t,), (torch.ones_like(t),))[:2]
    return value, rate


def noise_rms(noise: Noise, x1: Tensor, values: int = 2**17) -> float:
    """Root-mean-square of x1 - x0, simulated with the observed data in the place of x0: the network's unit of time."""
    generator = torch.Generator(x1.device).manual_seed(0)
    x0 = noise.project(x1)
    draws = max(1, math.ceil(values / x1.numel()))
    return math.sqrt(sum(float((noise.draw(x0, generator) - x0).square().mean()) for _ in range(draws)) / draws)
