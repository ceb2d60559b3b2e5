"""A method is one loss and the matching way to denoise. Frozen, no state: the network is handed in.

prepare(net, noise_rms)      wrap a plain network for this method
loss(model, batch, moment)   one value per sample
denoise(model, x1)           the learned map from x1 to x0
mean(model, x1)              E[x0 | x1], where the method has it for free; else None
phase(progress)              optional: that on which the loss depends, besides the batch and its draws; with it, steps
                             may be recorded on a GPU and replayed
pace                         optional: the part of Muon's learning rate that it bears
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from . import losses
from .errors import InputError
from .losses import Distance, Field, Weight, pseudo_huber, squared
from .nets.wrappers import Consistency, Velocity
from .process import Bridge, Process
from .tensors import Generator, ones
from .times import GrowingGrid


class Batch(NamedTuple):
    """Samples (B, *S) and which samples of the data set they come from, (B,)."""

    x: Tensor
    origin: Tensor


class Moment(NamedTuple):
    """A moment of the training: the part of it that is done (0 to 1), where draws come from, and the averaged network.

    The average is there for objectives that want a calmer opinion than the network's own; None outside of `fit`.
    """

    progress: float = 0.0
    generator: Generator = None
    average: Field | None = None


class Method(Protocol):
    def prepare(self, net: nn.Module, noise_rms: float) -> nn.Module: ...
    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor: ...
    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor: ...
    def mean(self, model: nn.Module, x1: Tensor) -> Tensor | None: ...


@dataclass(frozen=True)
class _FlowMethod:
    """What the two flow methods share: a velocity network and an ODE (NFE = 10 with the midpoint rule in 5 steps).

    spacing   1 for equal steps; above, they are shorter near t = 0, where weak structure is told from noise
    """

    process: Process
    solver: str = "midpoint"
    solver_steps: int = 5
    distance: Distance = squared
    spacing: float = 1.0

    def prepare(self, net: nn.Module, noise_rms: float) -> nn.Module:
        return Velocity(net, noise_rms)

    @property
    def times(self) -> Tensor:
        return torch.linspace(0, 1, self.solver_steps + 1) ** self.spacing

    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor:
        return self.process.project(losses.solve(model, x1, self.times.flip(0), method=self.solver))

    def mean(self, model: nn.Module, x1: Tensor) -> Tensor | None:
        """On a straight bridge with squared distance, v(x1, 1) = x1 - E[x0 | x1] (Lemma 1)."""
        if not isinstance(self.process, Bridge) or self.process.path is not None or self.distance is not squared:
            return None
        return self.process.project(x1 - model(x1, ones(x1)))


@dataclass(frozen=True)
class FlowMatching(_FlowMethod):
    """Conditional flow matching on clean data; `denoise` maps a draw of x1 to a new sample.

    at_end   the part of the times that is 1, where E[x0 | x1] is read off
    """

    at_end: float = 0.0

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        return losses.flow_matching_loss(
            model,
            batch.x,
            self.process.select(batch.origin),
            distance=self.distance,
            at_end=self.at_end,
            generator=moment.generator,
        )

    def phase(self, progress: float) -> int:
        return 0  # the same loss from the beginning to the end


@dataclass(frozen=True)
class InverseFlowMatching(_FlowMethod):
    """IFM (Algorithms 1 and 3): learns the velocity, denoises by solving the ODE.

    averaged   estimate x0 with the averaged network, see InverseConsistency
    """

    averaged: bool = False

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        return losses.inverse_flow_matching_loss(
            model,
            batch.x,
            self.process.select(batch.origin),
            self.times,
            estimator=moment.average if self.averaged else None,
            solver=self.solver,
            distance=self.distance,
            generator=moment.generator,
        )


@dataclass(frozen=True)
class _ConsistencyMethod:
    """What the consistency methods share: c(x, t) with an exact boundary, one network pass to denoise."""

    process: Process
    grid: GrowingGrid = field(default_factory=GrowingGrid)
    distance: Distance = pseudo_huber
    weight: Weight = losses.inverse_step

    def prepare(self, net: nn.Module, noise_rms: float) -> nn.Module:
        return Consistency(net, noise_rms, t_min=self.grid.eps)

    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor:
        return self.process.project(model(x1, ones(x1)))

    def mean(self, model: nn.Module, x1: Tensor) -> Tensor | None:
        return None

    def phase(self, progress: float) -> int:
        """The loss changes with the grid."""
        return self.grid.intervals(progress)

    def _arguments(self, batch: Batch, moment: Moment) -> dict[str, Any]:
        return {
            "times": self.grid.at(moment.progress, batch.x.device),
            "distance": self.distance,
            "weight": self.weight,
            "generator": moment.generator,
        }


@dataclass(frozen=True)
class ConsistencyTraining(_ConsistencyMethod):
    """Generalized consistency training on clean data; `denoise` maps a draw of x1 to a new sample."""

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        return losses.consistency_loss(
            model, batch.x, self.process.select(batch.origin), **self._arguments(batch, moment)
        )


@dataclass(frozen=True)
class ConsistencyDistillation(_ConsistencyMethod):
    """Consistency distillation of a trained velocity."""

    teacher: Field | None = None

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        process = self.process.select(batch.origin)
        return losses.consistency_loss(model, batch.x, process, teacher=self.teacher, **self._arguments(batch, moment))


@dataclass(frozen=True)
class InverseConsistency(_ConsistencyMethod):
    """ICM (Algorithms 2 and 4): learns the map itself, no ODE in training or denoising.

    averaged   estimate x0 with the averaged network: it learns more slowly, and its errors are not fed back before it
               has learned to answer them. Deterministic dynamics need that (see `Simulated`); noise does not.
    """

    averaged: bool = False
    pace: ClassVar[float] = 1 / 3  # of Muon's rate: every step learns from what the last one made

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        return losses.inverse_consistency_loss(
            model,
            batch.x,
            self.process.select(batch.origin),
            estimator=moment.average if self.averaged else None,
            **self._arguments(batch, moment),
        )


METHODS: dict[str, Callable[[Process], Method]] = {"icm": InverseConsistency, "ifm": InverseFlowMatching}


def choose_method(method: str | Callable[[Process], Method]) -> Callable[[Process], Method]:
    """A method by name, or the user's own function that makes one from a process."""
    if callable(method):
        return method
    if method not in METHODS:
        known = ", ".join(("auto", *METHODS))
        raise InputError(f"method must be {known} or a function process -> Method, not {method!r}.")
    return METHODS[method]
