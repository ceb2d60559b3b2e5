"""The objectives, as pure functions of (network, batch, process).

Each returns one value per sample, reduces nothing, and draws only from the generator it is given. Time follows the
paper: x0 is clean at t = 0, x1 observed at t = 1, and s < t.

An inverse objective is the ordinary one with x0 replaced by the stop-gradient of the model's own estimate from x1 (or
that of another `estimator` of the same kind, such as the average of the model's past).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchdiffeq import odeint

from .process import Process
from .tensors import Generator, expand, ones, sample_mean, uniform
from .times import neighbours

Field = Callable[[Tensor, Tensor], Tensor]
Distance = Callable[[Tensor, Tensor], Tensor]
Weight = Callable[[Tensor, Tensor], Tensor]


def squared(a: Tensor, b: Tensor) -> Tensor:
    return sample_mean((a - b).square())


def pseudo_huber(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(d^2 + c^2) - c at every element, c = 0.00054 sqrt(elements of a sample), as in the authors' code."""
    c = 0.00054 * math.sqrt(a[0].numel())
    return sample_mean(((a - b).square() + c * c).sqrt() - c)


def inverse_step(s: Tensor, t: Tensor) -> Tensor:
    """1 / (t - s): the weight of the authors' code and of iCT."""
    return 1 / (t - s)


def step(s: Tensor, t: Tensor) -> Tensor:
    """t - s: the weight in the paper's text."""
    return t - s


def solve(
    velocity: Field, x: Tensor, times: Tensor, *, method: str = "midpoint", rtol: float = 1e-5, atol: float = 1e-5
) -> Tensor:
    """Integrate dx/dt = velocity(x, t) along `times` (in either direction) and return the end.

    Fixed-step methods ("euler", "midpoint", "rk4") step from each time to the next: midpoint on 6 times is NFE = 10.
    Adaptive ones ("dopri5") choose their own steps to the tolerances.
    """

    def field(t: Tensor, state: Tensor) -> Tensor:
        return velocity(state, t.to(state).expand(state.shape[0]))

    end: Tensor = odeint(field, x, times.to(x), method=method, rtol=rtol, atol=atol)[-1]
    return end


def flow_matching_loss(
    velocity: Field,
    x0: Tensor,
    process: Process,
    *,
    distance: Distance = squared,
    at_end: float = 0.0,
    generator: Generator = None,
) -> Tensor:
    """Conditional flow matching (Eq. 2 and 3). The part `at_end` of the times is 1, where the mean is read off."""
    t = (uniform(x0, generator) / (1 - at_end)).clamp(max=1)
    x_t, u_t = process.sample(x0, t, generator=generator)
    return distance(velocity(x_t, t), u_t)


def consistency_loss(
    consistency: Field,
    x0: Tensor,
    process: Process,
    times: Tensor,
    *,
    teacher: Field | None = None,
    distance: Distance = pseudo_huber,
    weight: Weight = inverse_step,
    generator: Generator = None,
) -> Tensor:
    """Generalized consistency training; with the variance-exploding process Song's; with a `teacher` velocity,
    distillation.
    """
    s, t = neighbours(times, x0, generator)
    x_t, u_t = process.sample(x0, t, generator=generator)
    with torch.no_grad():
        u = u_t if teacher is None else teacher(x_t, t)
        target = consistency(x_t - expand(t - s, x_t) * u, s)
    return weight(s, t) * distance(consistency(x_t, t), target)


def inverse_flow_matching_loss(
    velocity: Field,
    x1: Tensor,
    process: Process,
    times: Tensor,
    *,
    estimator: Field | None = None,
    solver: str = "midpoint",
    distance: Distance = squared,
    generator: Generator = None,
) -> Tensor:
    """IFM: Algorithm 1 with a closed-form process, Algorithm 3 with a bridge. `times` ascend; the ODE runs back along
    them.
    """
    with torch.no_grad():
        x0 = process.project(solve(estimator or velocity, x1, times.flip(0), method=solver))
    return flow_matching_loss(velocity, x0, process, distance=distance, generator=generator)


def inverse_consistency_loss(
    consistency: Field,
    x1: Tensor,
    process: Process,
    times: Tensor,
    *,
    estimator: Field | None = None,
    distance: Distance = pseudo_huber,
    weight: Weight = inverse_step,
    generator: Generator = None,
) -> Tensor:
    """ICM: Algorithm 2 with a closed-form process, Algorithm 4 with a bridge."""
    with torch.no_grad():
        x0 = process.project((estimator or consistency)(x1, ones(x1)))
    return consistency_loss(consistency, x0, process, times, distance=distance, weight=weight, generator=generator)


def posterior_mean_loss(mean: Callable[[Tensor], Tensor], x0: Tensor, x1: Tensor) -> Tensor:
    """Squared error of an estimate of x0 from x1; its minimum is E[x0 | x1] under the pairs' own distribution."""
    return squared(mean(x1), x0)
