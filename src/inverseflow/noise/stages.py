"""What a camera does after the noise: clip and round. Stages of a composition, not noises to use alone.

`PoissonGaussian(gain=2.0, sigma=3.0).then(Clip(0, 255)).then(Quantise(1))` is an 8-bit camera.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator, Parameter, broadcast
from .base import Domain, Noise


@dataclass(frozen=True, eq=False)
class Clip(Noise):
    """x1 = min(max(x0, lower), upper)."""

    lower: Parameter
    upper: Parameter
    parameters: ClassVar = ("lower", "upper")
    signed: ClassVar = ("lower", "upper")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not bool((torch.as_tensor(self.lower) < torch.as_tensor(self.upper)).all()):
            raise NoiseError("Clip needs lower < upper.")

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return Domain(self.lower, self.upper).clamp(x0)

    def mean(self, x0: Tensor) -> Tensor:
        return self.draw(x0, None)

    def std(self, x0: Tensor) -> Tensor:
        return torch.zeros_like(x0)


@dataclass(frozen=True, eq=False)
class Quantise(Noise):
    """x1 = step round(x0 / step)."""

    step: Parameter = 1.0
    parameters: ClassVar = ("step",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if torch.as_tensor(self.step).min() <= 0:
            raise NoiseError("Quantise.step must be greater than 0.")

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        step = broadcast(self.step, x0)
        return (x0 / step).round() * step

    def mean(self, x0: Tensor) -> Tensor:
        return self.draw(x0, None)

    def std(self, x0: Tensor) -> Tensor:
        return torch.zeros_like(x0)
