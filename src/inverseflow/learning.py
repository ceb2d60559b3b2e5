"""How a denoiser is trained: the map, then what is learned from pairs that the map makes.

Stages, each one call of `fit` with its own folder: flow (the method), mean, spread (error bars) and sampler (draws).
Several rounds repeat the last three with pairs that the sampler makes, the step of the EM algorithm.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from . import tiling
from .calibration import Calibration
from .losses import Field
from .methods import InverseFlowMatching, Method
from .nets import NetSpec
from .nets.wrappers import ResidualFlow, Spread
from .noise import Noise
from .patches import Data, Patches
from .posterior import (
    Estimate,
    Pairs,
    PosteriorFlow,
    PosteriorMean,
    PosteriorSpread,
    Recover,
    as_it_is,
    by_map,
    draw_from,
)
from .recipe import SAMPLER_SHARE, SPREAD_SHARE
from .replay import phase_of
from .settings import Settings
from .sweeps import Sweeps, in_sweeps, moments_for
from .tensors import normal_like
from .train import Fitted, Renewal, Watch, as_function, fit

CALIBRATION_VALUES = 2**19


@dataclass
class Stages:
    """What all stages of a training share, and those that are done."""

    data: Data
    noise: Noise
    net: NetSpec | nn.Module
    device: str
    seed: int
    folder: Path | None
    resume: bool
    progress: bool
    identity: dict[str, Any]
    done: dict[str, Fitted] = field(default_factory=dict)

    def run(
        self,
        name: str,
        title: str,
        start: nn.Module,
        of: Any,
        how: Settings,
        watch: Watch | None = None,
        *,
        record: bool = True,
        renewal: Renewal | None = None,
    ) -> Any:
        """Train `start` by the loss of `of`; the trained network."""
        self.done[name] = fit(
            start,
            of.loss,
            self.data,
            how,
            seed=self.seed + len(self.done),
            device=self.device,
            folder=self.folder / name if self.folder else None,
            resume=self.resume,
            identity=self.identity,
            watch=watch,
            renewal=renewal,
            phase=phase_of(of, self.net, self.noise) if record else None,
            progress=self.progress,
            title=title,
            pace=getattr(of, "pace", 1.0),
        )
        return self.done[name].model

    def fast(self, model: nn.Module, how: Settings) -> Field:
        return as_function(model, how, self.data, self.device)


@dataclass
class Uncertainty:
    """What a denoiser knows beyond its mean: error bars, their calibration, and a sampler; each None if not learned."""

    spread: nn.Module | None = None
    calibration: Calibration | None = None
    sampler: nn.Module | None = None


def learn_flow(
    stages: Stages, method: Method, start: nn.Module, how: Settings, watch: Watch | None, *, free_mean: bool
) -> nn.Module:
    """The map, by the method's own loss, or in sweeps over whole images where that is less work."""
    title, data = "recovering", stages.data
    if not in_sweeps(method, free_mean, data, how):
        flow: nn.Module = stages.run("flow", title, start, method, how, watch)
        return flow
    images = cast(Patches, data.to(torch.device(stages.device)))
    sweeps = Sweeps(cast(InverseFlowMatching, method), images, start, moments_for(data, how))
    swept = replace(stages, data=sweeps.data)
    flow = swept.run("flow", title, start, sweeps.objective, how, watch, renewal=sweeps)
    return flow


def learn_posterior(
    stages: Stages,
    method: Method,
    flow: nn.Module,
    rms: float,
    nets: dict[str, NetSpec],
    first: Settings,
    second: Settings,
    *,
    free_mean: bool,
    std: bool,
    samples: bool,
    rounds: int,
) -> tuple[nn.Module | None, Uncertainty]:
    """The mean (None if the map has it for free) and what surrounds it."""
    noisy, found, mean = stages.data, Uncertainty(), None
    coming = [] if free_mean else [second]
    coming += [_part(first, SPREAD_SHARE)] if std or samples else []
    stages.data, recover = recovery(stages, method, flow, second, sum(how.steps or math.inf for how in coming))
    for number in range(rounds):
        last = number == rounds - 1
        again = f"{number + 1}" if number else ""
        # An ODE in a step, of a flow or of later rounds, waits for the device; a method with phases has none.
        record = not number and hasattr(method, "phase")
        pairs = Pairs(recover, stages.noise)
        if not free_mean:
            start = copy.deepcopy(flow if mean is None else mean).requires_grad_(True)
            mean = stages.run(f"mean{again}", "posterior mean", start, PosteriorMean(pairs), second, record=record)
        best = _mean_function(method, stages.fast(flow if mean is None else mean, second), free_mean)
        if last and not (std or samples):
            return mean, Uncertainty()
        typical = _typical_error(stages, pairs, best)
        short, long = (_part(first, share) for share in (SPREAD_SHARE, SAMPLER_SHARE))
        spread = Spread(nets["spread"].build(stages.seed), rms, typical)
        spread = stages.run(f"spread{again}", "error bars", spread, PosteriorSpread(pairs, best), short, record=record)
        found = Uncertainty(spread, _calibrate(stages, pairs, best, spread))
        if samples or not last:
            estimate = _with_spread(best, stages.fast(spread, second))
            flow_of_errors = ResidualFlow(nets["sampler"].build(stages.seed), rms, typical)
            sampler = stages.run(
                f"sampler{again}", "sampler", flow_of_errors, PosteriorFlow(pairs, estimate), long, record=record
            )
            found.sampler = sampler if samples else None
            stages.data, recover = noisy, _by_sampler(stages.noise, sampler, estimate)
    return mean, found


def recovery(stages: Stages, method: Method, flow: nn.Module, how: Settings, steps: float) -> tuple[Data, Recover]:
    """The data that later stages draw from in so many steps, and how x0_hat is had from it.

    Images go through the map once, as a whole: a crop in training would do so in every step, and end in borders that
    the image does not have. Not so where it is more work than for all crops, nor for data that stays on disk.
    """
    data, steps = stages.data, min(steps, stages.done["flow"].steps)
    if not isinstance(data, Patches) or data.values.numel() > steps * how.batch_size * data.values_per_sample:
        return data, by_map(method, stages.fast(flow, how))
    recover = by_map(method, stages.fast(flow, replace(how, compile=False)))  # images of many sizes, each seen once

    @torch.no_grad()
    def whole(x1: Tensor) -> Tensor:
        return recover(x1.to(stages.device), None).cpu()

    return data.mapped(lambda images: tiling.everywhere(whole, images, flow)), as_it_is


def _part(settings: Settings, share: float) -> Settings:
    steps = max(1, round(share * settings.steps)) if settings.steps else None
    return replace(settings, steps=steps, seconds=share * settings.seconds if settings.seconds else None)


def _mean_function(method: Method, net: Any, free: bool) -> Callable[[Tensor], Tensor]:
    """The mean network is the map's twin, so the map's method applies it: one pass at t = 1, then the domain."""

    @torch.no_grad()
    def mean(x1: Tensor) -> Tensor:
        found = method.mean(net, x1) if free else None
        return method.denoise(net, x1) if found is None else found

    return mean


def _with_spread(mean: Callable[[Tensor], Tensor], spread: Field) -> Estimate:
    @torch.no_grad()
    def estimate(x1: Tensor) -> tuple[Tensor, Tensor]:
        centre = mean(x1)
        return centre, spread(x1, centre)

    return estimate


def _by_sampler(noise: Noise, sampler: Any, estimate: Estimate) -> Recover:
    @torch.no_grad()
    def recover(x1: Tensor, generator: torch.Generator | None) -> Tensor:
        return noise.project(draw_from(sampler, x1, *estimate(x1), normal_like(x1, generator)))

    return recover


def _typical_error(stages: Stages, pairs: Pairs, mean: Callable[[Tensor], Tensor]) -> float:
    x0, x1 = _fresh_pairs(stages, pairs, 1, stages.seed)[0]
    return max(float((x0 - mean(x1)).square().mean().sqrt()), 1e-6)


@torch.no_grad()
def _calibrate(stages: Stages, pairs: Pairs, mean: Callable[[Tensor], Tensor], spread: nn.Module) -> Calibration:
    """On pairs whose noise is new."""
    count = 32 if stages.data.values_per_sample > 1000 else 512
    batches = max(2, math.ceil(CALIBRATION_VALUES / (count * stages.data.values_per_sample)))
    predicted, errors = [], []
    for x0, x1 in _fresh_pairs(stages, pairs, batches, stages.seed + 10_000, count):
        centre = mean(x1)
        predicted.append(spread(x1, centre).flatten().cpu())
        errors.append((x0 - centre).flatten().cpu())
    return Calibration.of(torch.cat(predicted), torch.cat(errors))


def _fresh_pairs(stages: Stages, pairs: Pairs, batches: int, seed: int, count: int = 32) -> list[tuple[Tensor, Tensor]]:
    data, host = stages.data.to(torch.device(stages.device)), torch.Generator().manual_seed(seed)
    generator = torch.Generator(stages.device).manual_seed(seed)
    return [pairs.draw(data.draw(count, host), generator) for _ in range(batches)]
