"""Inverse flow matching on images: whole images are estimated anew in sweeps, not crops in every step.

Algorithm 3 solves an ODE for every crop of every step, which is most of its work. The estimates change slowly, so here
all images go through the network a few times in a training, and the steps between are flow matching on what came out.

The first sweeps take the mean, the others the map. For Gaussian data N(0, s^2) with noise sigma, estimates of variance
v become ones of (s^2 + sigma^2) (v / (v + sigma^2))^(2p) in a sweep, p = 1 by the mean and 1/2 by the map. The map
alone leaves sigma^2 / (k + 1) after k sweeps where there is nothing but noise. After two by the mean it is
sigma^2 / (k + 25), and what is there besides grows back, by s^2 / sigma^2 of itself in a sweep.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from . import tiling
from .losses import Field
from .methods import FlowMatching, InverseFlowMatching, Method
from .patches import Data, Patches
from .settings import Settings

MOMENTS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The parts of the training after which all images are estimated anew."""
BY_MEAN = 2
FEWER = MOMENTS[:BY_MEAN] + MOMENTS[BY_MEAN::2]
"""For so many images that all of MOMENTS would be more than half of the training."""
SOLVER_STEPS, SPACING = 3, 1.5
"""Of the map's ODE, by the midpoint rule. Two equal steps lose what is a third of the noise and less for good."""
AT_END = 0.5  # of the times
PASSES = 3  # of the network in a step of flow matching, a backward pass counted as two
LITTLE = 0.5  # of the work of all steps


class Sweeps:
    """The estimates that a training sees as its data, which its averaged network renews."""

    def __init__(
        self, method: InverseFlowMatching, noisy: Patches, model: nn.Module, moments: tuple[float, ...] = MOMENTS
    ) -> None:
        self.noisy, self.model, self.moments = noisy, model, moments
        self.data = noisy.mapped(torch.clone)  # at first, as the network begins as the identity
        self.method = replace(method, solver_steps=SOLVER_STEPS, spacing=SPACING)
        self.objective = FlowMatching(method.process, at_end=AT_END)

    def due(self, progress: float) -> int:
        """How many there should have been by now."""
        return sum(progress >= moment for moment in self.moments)

    def renew(self, average: Field, number: int) -> None:
        network = cast(nn.Module, average)

        def estimate(x1: Tensor) -> Tensor:
            mean = self.method.mean(network, x1) if number <= BY_MEAN else None
            return self.method.denoise(network, x1) if mean is None else mean

        found = self.noisy.mapped(lambda images: tiling.everywhere(estimate, images, self.model))
        self.data.values.copy_(found.values)


def in_sweeps(method: Method, free_mean: bool, data: Data, how: Settings) -> bool:
    """Images in memory, and so many steps that sweeps are less work than an ODE in each of them."""
    if not isinstance(method, InverseFlowMatching) or not free_mean or method.averaged:
        return False
    return sweeps_over_steps(data, how, FEWER) < 2 * method.solver_steps / PASSES


def pay(data: Data, how: Settings) -> bool:
    """Are sweeps little beside the training itself?"""
    return sweeps_over_steps(data, how, FEWER) < 2 * LITTLE


def moments_for(data: Data, how: Settings) -> tuple[float, ...]:
    return MOMENTS if sweeps_over_steps(data, how, MOMENTS) < LITTLE else FEWER


def sweeps_over_steps(data: Data, how: Settings, moments: tuple[float, ...]) -> float:
    """The work of the sweeps over that of all steps; infinite for what is no images in memory."""
    if not isinstance(data, Patches):
        return math.inf
    sweeps = (BY_MEAN + 2 * SOLVER_STEPS * (len(moments) - BY_MEAN)) * data.values.numel()
    return sweeps / (PASSES * (how.steps or math.inf) * how.batch_size * data.values_per_sample)
