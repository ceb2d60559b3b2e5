"""When training ends by itself, and the figure that decides it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import inverseflow as ivf
from inverseflow.audit.measures import NEGLIGIBLE
from inverseflow.methods import Batch, InverseConsistency, Moment
from inverseflow.patches import Rows
from inverseflow.process import Bridge
from inverseflow.state import HURRY, LOOKS, PATIENCE
from inverseflow.stopping import Renoising, renoising
from inverseflow.train import Fitted, fit

DATA = Rows(torch.linspace(-1, 1, 64)[:, None])


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        return self.slope * x


def loss(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
    noise = torch.randn(batch.x.shape, generator=moment.generator)
    return (model(batch.x) - 2 * batch.x + 0.1 * noise).square().mean(1)


def train(watch: Callable[[object], float]) -> Fitted:
    settings = ivf.Settings(steps=400, lr=1e-2)
    return fit(Line(), loss, DATA, settings, watch=watch, progress=False, device="cpu")


def figures(values: Callable[[int], float]) -> Callable[[object], float]:
    """A watch that gives the figure of each look in turn."""
    count = iter(range(10**6))
    return lambda average: values(next(count))


def test_a_figure_that_falls_lets_the_training_end_as_planned() -> None:
    seen = []
    fitted = train(lambda average: seen.append(1) or 0.9 ** len(seen))
    assert fitted.steps == 400
    assert len(seen) == LOOKS


def test_a_figure_that_stays_ends_it_with_the_whole_schedule() -> None:
    """The fifth look is the lowest; PATIENCE later a quarter of the steps done is left."""
    fitted = train(figures(lambda look: max(0.5, 1 - 0.15 * look)))
    last_look = 400 // LOOKS * (5 + PATIENCE)
    assert fitted.steps == last_look + math.ceil(HURRY * last_look)
    rates = [row["lr"] for row in fitted.history]
    assert rates[-1] < 0.03 * max(rates)  # the learning rate came down all the same


def test_a_figure_that_rises_again_ends_it() -> None:
    assert train(figures(lambda look: abs(look - 5) + 1.0)).steps < 400


def test_an_interrupted_run_remembers_what_it_saw(tmp_path: Path) -> None:
    """The figure is the network's own; the resumed run ends where the other ends, with the same weights."""

    def watch(average: Callable[[Tensor, Tensor], Tensor]) -> float:
        return abs(float(average(torch.ones(1, 1), torch.ones(1))) - 2) + 0.05

    settings = ivf.Settings(steps=400, lr=5e-2, ema=0.9, checkpoint_steps=30)
    common = {"watch": watch, "progress": False, "device": "cpu"}
    whole = fit(Line(), loss, DATA, settings, **common)
    assert 200 < whole.steps < 400

    def interrupted(model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        if moment.progress > 0.7:
            raise RuntimeError("killed")
        return loss(model, batch, moment)

    with pytest.raises(RuntimeError, match="killed"):
        fit(Line(), interrupted, DATA, settings, folder=tmp_path, **common)
    resumed = fit(Line(), loss, DATA, settings, folder=tmp_path, resume=True, **common)
    assert resumed.steps == whole.steps
    assert torch.equal(resumed.model.slope, whole.model.slope)


def test_distance_of_doing_nothing_is_that_of_theory() -> None:
    """x0_hat = x1 has the noise twice: power v + 2 s^2 where v + s^2 was seen, at every frequency."""
    v, s = 4.0, 1.5
    clean = math.sqrt(v) * torch.randn(64, 1, 64, 64, generator=torch.Generator().manual_seed(10))
    x1 = ivf.Gaussian(s).sample(clean, generator=torch.Generator().manual_seed(11))
    method = InverseConsistency(Bridge(ivf.Gaussian(s)))
    distance = Renoising(method, ivf.Gaussian(s), Batch(x1, torch.arange(64)))
    floor = NEGLIGIBLE * s * s
    assert distance(lambda x, t: x) == pytest.approx(math.log((v + 2 * s * s + floor) / (v + s * s + floor)), rel=0.04)
    shrunk = math.sqrt(v / (v + s * s))
    assert distance(lambda x, t: shrunk * x) < 0.03  # the exact map of white data


def test_only_images_with_noise_are_watched() -> None:
    method = InverseConsistency(Bridge(ivf.Gaussian(1.0)))
    assert renoising(method, ivf.Gaussian(1.0), Rows(torch.zeros(8, 3)), "cpu") is None
    assert renoising(method, ivf.Simulator(torch.sin), Rows(torch.zeros(8, 1, 16, 16)), "cpu") is None
    assert renoising(method, ivf.Gaussian(1.0), Rows(torch.rand(8, 1, 16, 16)), "cpu") is not None


def test_steps_that_are_asked_for_are_done() -> None:
    flat = ivf.Gaussian(1.0).sample(torch.zeros(1, 1, 64, 64), generator=torch.Generator().manual_seed(0))
    asked = ivf.Denoiser.train(flat, ivf.Gaussian(1.0), max_steps=23, estimate="flow", progress=False, device="cpu")
    assert asked.description["steps"] == {"flow": 23}
