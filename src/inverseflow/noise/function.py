"""Noise that is a function of the user's: stochastic (`FunctionNoise`) or deterministic (`Simulator`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator
from .base import REAL, Domain, Noise


@dataclass(frozen=True, eq=False)
class FunctionNoise(Noise):
    """x1 = function(x0, generator), any function that draws all its randomness from the generator.

    The function is checked on its first use: same shape, finite values, same generator state same result, input left
    alone. `pointwise` says that it treats every pixel alike and by itself, which permits flips and rotations.
    """

    function: Callable[[Tensor, Generator], Tensor]
    values: Domain = REAL
    pointwise: bool = False

    @property
    def domain(self) -> Domain:
        return self.values

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        if not self.__dict__.get("_checked"):
            self._check(x0)
            object.__setattr__(self, "_checked", True)
        return self.function(x0, generator)

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return self.pointwise

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "Unsaved", "description": self._name}

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def _check(self, x0: Tensor) -> None:
        before = x0.clone()
        first, second = (self.function(x0, torch.Generator(x0.device).manual_seed(7)) for _ in range(2))
        if not isinstance(first, Tensor) or first.shape != x0.shape:
            shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
            raise NoiseError(
                f"The noise function {self._name} must return a tensor of the shape "
                f"{tuple(x0.shape)} of its input, not {shape}."
            )
        if not torch.equal(x0, before):
            raise NoiseError(f"The noise function {self._name} changes its input in place; let it return a new tensor.")
        if not bool(torch.isfinite(first).all()):
            raise NoiseError(
                f"The noise function {self._name} returned NaN or infinite values for data "
                f"in {float(x0.min()):.4g}..{float(x0.max()):.4g}."
            )
        if not torch.equal(first, second):
            raise NoiseError(
                f"The noise function {self._name} gives another result for the same "
                "generator; draw with generator=generator."
            )


@dataclass(frozen=True, eq=False)
class Simulator(Noise):
    """x1 = function(x0), a deterministic transformation. Pair it with the process `Simulated` to invert dynamics."""

    function: Callable[[Tensor], Tensor]

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return self.function(x0)

    def mean(self, x0: Tensor) -> Tensor:
        return self.function(x0)

    def std(self, x0: Tensor) -> Tensor:
        return torch.zeros_like(x0)

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "Unsaved", "description": getattr(self.function, "__qualname__", repr(self.function))}


@dataclass(frozen=True, eq=False)
class Unsaved(Noise):
    """Stands in a loaded model for a noise that was Python code: denoising works, simulating needs the code again."""

    description: str

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        raise NoiseError(
            f"This model's noise was the Python code {self.description}, which "
            "a file cannot hold; pass the noise again."
        )
