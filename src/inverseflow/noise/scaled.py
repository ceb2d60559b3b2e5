"""A noise in data units, as a network that works in other units sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..tensors import Generator, broadcast
from .base import Domain, Noise


@dataclass(frozen=True, eq=False)
class Scaled(Noise):
    """A noise in data units, seen by a network that works on y = (x - shift) / scale.

    Exact for every noise, because it is the same draw: y1 = (noise(y0 * scale + shift) - shift) / scale.
    """

    noise: Noise
    shift: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale.ndim == 1:
            self.noise.check_channels(len(self.scale))

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return self._in(self.noise.draw(self._out(x0), generator))

    def project(self, x0: Tensor) -> Tensor:
        return x0 if self.noise.domain.is_real_line else self._in(self.noise.project(self._out(x0)))

    @property
    def domain(self) -> Domain:
        shift, scale = self.shift.cpu(), self.scale.cpu()
        return Domain((self.noise.domain.lower - shift) / scale, (self.noise.domain.upper - shift) / scale)

    def mean(self, x0: Tensor) -> Tensor:
        return self._in(self.noise.mean(self._out(x0)))

    def std(self, x0: Tensor) -> Tensor:
        return self.noise.std(self._out(x0)) / broadcast(self.scale, x0)

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return self.noise.invariant(permutation, flips)

    def select(self, index: Tensor) -> Scaled:
        return replace(self, noise=self.noise.select(index))

    def _in(self, x: Tensor) -> Tensor:
        return (x - broadcast(self.shift, x)) / broadcast(self.scale, x)

    def _out(self, y: Tensor) -> Tensor:
        return y * broadcast(self.scale, y) + broadcast(self.shift, y)
