"""From the recovered distribution to what a user wants to know: the best estimate, its error, other possible truths.

The learned map recovers the *distribution* of x0. Fresh simulated noise on x0_hat = map(x1) makes labelled pairs
(x0_hat, x1') without one clean example, and pairs teach anything about x0 given x1:

PosteriorMean     squared loss: E[x0 | x1], the estimate of least error. (Not in the paper; Gaussian data N(0, s^2) with
                  noise sigma: the map is x1 s / sqrt(s^2 + sigma^2), the mean x1 s^2 / (s^2 + sigma^2).)
PosteriorSpread   Gaussian likelihood: the standard deviation of x0 around that mean, for any noise
PosteriorFlow     flow matching: draws of x0 given x1, from a normal one that has the right mean and spread already
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from .losses import Field, flow_matching_loss, posterior_mean_loss, solve
from .methods import Batch, Method, Moment
from .nets.wrappers import ResidualFlow
from .noise import Noise, Simulator
from .process import AffineGaussian
from .tensors import Generator, ones, sample_mean

Recover = Callable[[Tensor, Generator], Tensor]
"""x1 -> x0_hat, one draw from the recovered distribution."""
Estimate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""x1 -> the mean and the standard deviation of x0 given x1."""
TO_NORMAL = AffineGaussian(alpha=lambda t: 1 - t, sigma=lambda t: t)
SOLVER_STEPS = 4  # of the midpoint rule: 8 passes of the network for a draw


@dataclass(frozen=True)
class Pairs:
    """Clean and noisy, made from noisy alone."""

    recover: Recover
    noise: Noise

    @torch.no_grad()
    def draw(self, batch: Batch, generator: Generator) -> tuple[Tensor, Tensor]:
        x0 = self.recover(batch.x, generator)
        return x0, self.noise.select(batch.origin).draw(x0, generator)


def as_it_is(x0: Tensor, generator: Generator) -> Tensor:
    """Of data that is recovered already."""
    return x0


def by_map(method: Method, frozen: Field) -> Recover:
    return lambda x1, _: method.denoise(cast(nn.Module, frozen), x1)


class OfPairs:
    """The same loss from the beginning of a training to its end, so that one recorded step stands for all."""

    def phase(self, progress: float) -> int:
        return 0


@dataclass(frozen=True)
class PosteriorMean(OfPairs):
    """Regress x0_hat from fresh noise on it. The network is a copy of the map, used at t = 1 only."""

    pairs: Pairs

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x0, x1 = self.pairs.draw(batch, moment.generator)
        return posterior_mean_loss(lambda x: model(x, ones(x)), x0, x1)


@dataclass(frozen=True)
class PosteriorSpread(OfPairs):
    """log s + (x0 - mean)^2 / 2 s^2: its minimum is s^2 = E[(x0 - mean)^2 | x1]."""

    pairs: Pairs
    mean: Callable[[Tensor], Tensor]

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x0, x1 = self.pairs.draw(batch, moment.generator)
        with torch.no_grad():
            mean = self.mean(x1)
        std = model(x1, mean)
        return sample_mean(std.log() + 0.5 * ((x0 - mean) / std).square())


@dataclass(frozen=True)
class PosteriorFlow(OfPairs):
    """Flow matching from a standard normal to e = (x0 - mean) / std, by a network that is shown x1, mean and std."""

    pairs: Pairs
    estimate: Estimate

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x0, x1 = self.pairs.draw(batch, moment.generator)
        with torch.no_grad():
            mean, std = self.estimate(x1)
        shown = (x1, mean, std)
        return flow_matching_loss(
            lambda e, t: model(e, t, *shown), (x0 - mean) / std, TO_NORMAL, generator=moment.generator
        )


def draw_from(sampler: ResidualFlow, x1: Tensor, mean: Tensor, std: Tensor, z: Tensor) -> Tensor:
    """The x0 that belongs to x1 and the standard normal z, of one shape."""
    times = torch.linspace(1, 0, SOLVER_STEPS + 1)
    return mean + std * solve(lambda e, t: sampler(e, t, x1, mean, std), z, times)


@torch.no_grad()
def mean_is_free(method: Method, flow: nn.Module, noise: Noise, x: Tensor) -> bool:
    """Inverse flow matching has the mean in its velocity; a deterministic transformation has no spread to average."""
    return isinstance(noise, Simulator) or method.mean(flow, x) is not None
