"""Noise that is the end of a stochastic differential equation dx = f(x, t) dt + g(x, t) dw, run for `time`.

Simulated by Euler-Maruyama in `steps` equal steps of time / steps, so that the total time is exact; after each step the
state is projected back into the domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator, Parameter, broadcast, normal_like
from .base import REAL, UNIT, Domain, Noise

Coefficient = Callable[[Tensor, float], Tensor]
MOST_STEPS = 100_000


def euler_maruyama(
    x: Tensor, drift: Coefficient, diffusion: Coefficient, time: float, steps: int, domain: Domain, generator: Generator
) -> Tensor:
    dt = time / steps
    for step in range(steps):
        t = step * dt
        x = domain.clamp(x + drift(x, t) * dt + diffusion(x, t) * math.sqrt(dt) * normal_like(x, generator))
    return x


@dataclass(frozen=True, eq=False)
class SDE(Noise):
    """Any diffusion: `drift(x, t)` and `diffusion(x, t)` return tensors of the shape of x.

    `pointwise` says that the coefficients treat every pixel alike and by itself, which permits flips and rotations.
    """

    drift: Coefficient
    diffusion: Coefficient
    time: float = 1.0
    steps: int = 100
    project_to: Domain = REAL
    pointwise: bool = False

    def __post_init__(self) -> None:
        _check_time(self)

    @property
    def domain(self) -> Domain:
        return self.project_to

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        return euler_maruyama(x0, self.drift, self.diffusion, self.time, self.steps, self.project_to, generator)

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return self.pointwise

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": "Unsaved",
            "description": f"SDE({self.drift!r}, {self.diffusion!r}, time={self.time}, steps={self.steps})",
        }


@dataclass(frozen=True, eq=False)
class Jacobi(Noise):
    """Wright-Fisher diffusion dx = s/2 [a (1 - x) - b x] dt + sqrt(s x (1 - x)) dw, in [0, 1]; it drifts to a / (a +
    b).
    """

    time: float = 0.2
    a: Parameter = 1.0
    b: Parameter = 1.0
    s: Parameter = 1.0
    steps: int = 100
    parameters: ClassVar = ("a", "b", "s")
    stays: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_time(self)
        if torch.as_tensor(self.s).min() <= 0:
            raise NoiseError("Jacobi.s must be greater than 0.")

    @property
    def domain(self) -> Domain:
        return UNIT

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        """`euler_maruyama` in half as many operations: a training step simulates the whole process anew."""
        a, b, s = (broadcast(p, x0) for p in (self.a, self.b, self.s))
        dt = self.time / self.steps
        middle, rate, size = (_filled(v, x0) for v in (_middle(a, b), s * (a + b) / 2 * dt, s * dt))
        x, size = x0, size.sqrt()
        for _ in range(self.steps):
            spread = torch.addcmul(x, x, x, value=-1).sqrt_().mul_(size)
            x = torch.lerp(x, middle, rate).addcmul_(spread, normal_like(x, generator)).clamp_(0, 1)
        return x

    def mean(self, x0: Tensor) -> Tensor:
        a, b, s = (broadcast(p, x0) for p in (self.a, self.b, self.s))
        middle, rate = _middle(a, b), s * (a + b) / 2
        return middle + (x0 - middle) * _decay(rate, self.time, x0)

    def std(self, x0: Tensor) -> Tensor:
        """From the moment equations: dE[x^2]/dt = s (a + 1) E[x] - s (a + b + 1) E[x^2]."""
        a, b, s = (broadcast(p, x0) for p in (self.a, self.b, self.s))
        middle, rate, rate2 = _middle(a, b), s * (a + b) / 2, s * (a + b + 1)
        slow, fast = _decay(rate, self.time, x0), _decay(rate2, self.time, x0)
        settled = s * (a + 1) * middle / rate2 * (1 - fast)
        moving = s * (a + 1) * (x0 - middle) * (slow - fast) / (rate2 - rate)
        second = x0.square() * fast + settled + moving
        return (second - self.mean(x0).square()).clamp(min=0).sqrt()


def _middle(a: Parameter, b: Parameter) -> Parameter:
    """Where it drifts to; without a drift, a = b = 0, the formulas are right with any number."""
    return a / (a + b + (a + b == 0))


def _filled(value: Parameter, x: Tensor) -> Tensor:
    """As a tensor where x is, made there: a number that is moved would wait for the device."""
    return value if isinstance(value, Tensor) else x.new_full((), value)


def _decay(rate: Parameter, time: float, x: Tensor) -> Tensor:
    return (x.new_zeros(()) - rate * time).exp()


def _check_time(noise: SDE | Jacobi) -> None:
    if not (noise.time > 0 and math.isfinite(noise.time) and noise.steps in range(1, MOST_STEPS + 1)):
        raise NoiseError(
            f"{type(noise).__name__} needs time > 0 and 1 to {MOST_STEPS} steps, not time={noise.time}, "
            f"steps={noise.steps}."
        )
    object.__setattr__(noise, "steps", int(noise.steps))  # text gives 100.0
