"""Noise that multiplies the signal.

Gamma:     x1 = x0 n,        n ~ Gamma(shape k, rate k): mean 1, variance 1/k (speckle of k looks)
Rayleigh:  x1 = x0 (1 + r),  r ~ Rayleigh(scale): not centred, E[x1 | x0] = x0 (1 + scale sqrt(pi/2))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator, Parameter, broadcast
from .base import POSITIVE, Domain, Noise


@dataclass(frozen=True, eq=False)
class Gamma(Noise):
    """x1 = x0 n, n ~ Gamma(k, rate k)."""

    k: Parameter
    parameters: ClassVar = ("k",)
    centred: ClassVar = True
    stays: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if torch.as_tensor(self.k).min() <= 0:
            raise NoiseError("Gamma.k must be greater than 0.")

    @property
    def domain(self) -> Domain:
        return POSITIVE

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        k = torch.ones_like(x0) * broadcast(self.k, x0)
        # torch.distributions.Gamma takes no generator; this is the function it calls.
        return x0 * torch._standard_gamma(k, generator) / k

    def std(self, x0: Tensor) -> Tensor:
        return x0.abs() / (torch.ones_like(x0) * broadcast(self.k, x0)).sqrt()


@dataclass(frozen=True, eq=False)
class Rayleigh(Noise):
    """x1 = x0 (1 + r), r ~ Rayleigh(scale)."""

    scale: Parameter
    parameters: ClassVar = ("scale",)
    stays: ClassVar = True

    @property
    def domain(self) -> Domain:
        return POSITIVE

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        exponential = torch.empty_like(x0).exponential_(generator=generator)
        return x0 * (1 + broadcast(self.scale, x0) * (2 * exponential).sqrt())

    def mean(self, x0: Tensor) -> Tensor:
        return x0 * (1 + broadcast(self.scale, x0) * math.sqrt(math.pi / 2))

    def std(self, x0: Tensor) -> Tensor:
        return x0.abs() * broadcast(self.scale, x0) * math.sqrt(2 - math.pi / 2)
