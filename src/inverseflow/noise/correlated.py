"""Noise whose size follows the signal and whose pixels are correlated.

x1 = x0 + s(x0) (z * g),   s(x0)^2 = sigma^2 + gain max(x0 - offset, 0) + (contrast x0)^2

g is a kernel of unit energy, so s(x0) stays the pixel's standard deviation: read-out, photon and speckle noise that an
optical or electronic filter has spread over neighbours, to second order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..tensors import Generator, Parameter, broadcast
from .additive import CorrelatedGaussian
from .base import Noise


@dataclass(frozen=True, eq=False, repr=False)
class CorrelatedSignal(Noise):
    """x1 = x0 + s(x0) (z * kernel), s^2 = sigma^2 + gain max(x0 - offset, 0) + (contrast x0)^2; in 1D, 2D or 3D."""

    sigma: Parameter
    kernel: Any
    gain: Parameter = 0.0
    offset: Parameter = 0.0
    contrast: Parameter = 0.0
    parameters: ClassVar = ("sigma", "gain", "offset", "contrast")
    signed: ClassVar = ("offset",)
    centred: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        field = CorrelatedGaussian(1.0, self.kernel)  # checks the kernel and scales it
        object.__setattr__(self, "_field", field)
        object.__setattr__(self, "kernel", field.kernel)

    @property
    def field(self) -> CorrelatedGaussian:
        """The correlated noise of unit size that s(x0) multiplies."""
        field: CorrelatedGaussian = self.__dict__["_field"]
        return field

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return x0 + self.std(x0) * self.field.draw(torch.zeros_like(x0), generator)

    def std(self, x0: Tensor) -> Tensor:
        sigma, gain, offset, contrast = (broadcast(getattr(self, name), x0) for name in self.parameters)
        return (sigma**2 + gain * (x0 - offset).clamp(min=0) + (contrast * x0) ** 2).sqrt()

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return self.field.invariant(permutation, flips)
