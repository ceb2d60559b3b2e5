"""Noise of counting photons or electrons.

Poisson:          x1 = offset + gain n,   n ~ Poisson((x0 - offset) / gain)
PoissonGaussian:  the same, plus sigma z

`gain` is data units per count and `offset` the reading without light, both in data units. A measured noise line
variance = a x + b with b < 0 is gain = a, offset = -b / a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator, Parameter, broadcast, normal_like
from .base import Domain, Noise


@dataclass(frozen=True, eq=False)
class Poisson(Noise):
    """x1 = offset + gain n, n ~ Poisson((x0 - offset) / gain); variance gain (x0 - offset)."""

    gain: Parameter
    offset: Parameter = 0.0
    parameters: ClassVar = ("gain", "offset")
    signed: ClassVar = ("offset",)
    centred: ClassVar = True
    stays: ClassVar = True
    affine_variance: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_gain(self)

    @property
    def domain(self) -> Domain:
        return Domain(self.offset)

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return _count(x0, self.gain, self.offset, generator)

    def std(self, x0: Tensor) -> Tensor:
        return _count_variance(x0, self.gain, self.offset).sqrt()


@dataclass(frozen=True, eq=False)
class PoissonGaussian(Noise):
    """Photon noise and read-out noise: x1 = offset + gain Poisson((x0 - offset) / gain) + sigma z."""

    gain: Parameter
    sigma: Parameter
    offset: Parameter = 0.0
    parameters: ClassVar = ("gain", "sigma", "offset")
    signed: ClassVar = ("offset",)
    centred: ClassVar = True
    affine_variance: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_gain(self)

    @property
    def domain(self) -> Domain:
        return Domain(self.offset)

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        counted = _count(x0, self.gain, self.offset, generator)
        return counted + broadcast(self.sigma, x0) * normal_like(x0, generator)

    def std(self, x0: Tensor) -> Tensor:
        return (_count_variance(x0, self.gain, self.offset) + broadcast(self.sigma, x0) ** 2).sqrt()


@dataclass(frozen=True, eq=False)
class SignalDependent(Noise):
    """x1 = x0 + x0^gamma u + w, u ~ N(0, sigma_u^2), w ~ N(0, sigma_w^2): the model the paper fits to microscopy."""

    gamma: Parameter
    sigma_u: Parameter
    sigma_w: Parameter
    parameters: ClassVar = ("gamma", "sigma_u", "sigma_w")
    centred: ClassVar = True

    @property
    def domain(self) -> Domain:
        return Domain(0.0)

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return x0 + self.std(x0) * normal_like(x0, generator)  # the sum of two independent Gaussians is one

    def std(self, x0: Tensor) -> Tensor:
        scale = x0.clamp(min=0) ** broadcast(self.gamma, x0) * broadcast(self.sigma_u, x0)
        return (scale.square() + broadcast(self.sigma_w, x0) ** 2).sqrt()


def _count(x0: Tensor, gain: Parameter, offset: Parameter, generator: Generator) -> Tensor:
    gain, offset = broadcast(gain, x0), broadcast(offset, x0)
    rate = ((x0 - offset) / gain).clamp(min=0)  # rounding in the scaling may leave a rate of -1e-8
    return torch.poisson(rate, generator) * gain + offset


def _count_variance(x0: Tensor, gain: Parameter, offset: Parameter) -> Tensor:
    return (broadcast(gain, x0) * (x0 - broadcast(offset, x0))).clamp(min=0)


def _check_gain(noise: Poisson | PoissonGaussian) -> None:
    if torch.as_tensor(noise.gain).min() <= 0:
        raise NoiseError(f"{type(noise).__name__}.gain must be greater than 0.")
