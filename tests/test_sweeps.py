"""Inverse flow matching in sweeps: what a sweep does, what is learned, going on, and when it is chosen."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import inverseflow as ivf
from inverseflow.methods import InverseConsistency, InverseFlowMatching
from inverseflow.patches import Patches, Rows
from inverseflow.process import Bridge
from inverseflow.settings import Settings
from inverseflow.sweeps import BY_MEAN, FEWER, MOMENTS, Sweeps, in_sweeps, moments_for, pay
from inverseflow.tensors import expand
from inverseflow.train import fit

TINY = ivf.NetSpec("UNet", widths=(8, 16), blocks=1, embedding=16)
METHOD = InverseFlowMatching(Bridge(ivf.Gaussian(1.0)))


def images(count: int = 3, side: int = 24) -> list[Tensor]:
    return [torch.rand(1, side, side + 4, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def test_a_sweep_follows_the_exact_flow_of_gaussian_data() -> None:
    """Estimates of variance v: by the mean they become v / (v + sigma^2) of what is seen, by the map its root."""
    v, sigma = 0.6, 1.0

    def exact(x: Tensor, t: Tensor) -> Tensor:
        return x * expand(t * sigma**2 / (v + t**2 * sigma**2), x)

    noisy = Patches(images(), 16)
    sweeps = Sweeps(METHOD, noisy, METHOD.prepare(TINY.build(), 1.0))
    assert torch.equal(sweeps.data.values, noisy.values)
    sweeps.renew(exact, BY_MEAN)
    assert torch.allclose(sweeps.data.values, noisy.values * v / (v + sigma**2), rtol=1e-5)
    sweeps.renew(exact, BY_MEAN + 1)  # always from what was seen; three steps of the midpoint rule are good to 1 %
    assert torch.allclose(sweeps.data.values, noisy.values * math.sqrt(v / (v + sigma**2)), rtol=0.01)


@pytest.mark.parametrize(
    ("moments", "ratio", "least"),
    [(MOMENTS, 1.0, 0.99), (MOMENTS, 2.0, 0.88), (MOMENTS, 4.0, 0.75), (FEWER, 1.0, 0.97), (FEWER, 2.0, 0.77)],
)
def test_what_is_weaker_than_the_noise_is_kept(moments: tuple[float, ...], ratio: float, least: float) -> None:
    """Gaussian data N(0, 1), noise `ratio`: the spread of the estimates after all sweeps, each by a network that knows
    the distribution of the last ones.
    """
    method = InverseFlowMatching(Bridge(ivf.Gaussian(ratio)))
    noisy = Patches([math.sqrt(1 + ratio**2) * torch.ones(1, 16, 16)], 16)
    sweeps, variance = Sweeps(method, noisy, method.prepare(TINY.build(), ratio), moments), 1 + ratio**2

    def network(x: Tensor, t: Tensor) -> Tensor:
        return x * expand(t * ratio**2 / (variance + t**2 * ratio**2), x)

    for number in range(1, len(moments) + 1):
        sweeps.renew(network, number)
        variance = float(sweeps.data.values[0]) ** 2
    assert least < math.sqrt(variance) < 1.01


def test_sweeps_are_counted_by_progress() -> None:
    due = Sweeps(METHOD, Patches(images(), 16), METHOD.prepare(TINY.build(), 1.0)).due
    assert [due(part) for part in (0.0, 0.049, 0.05, 0.1, 1.0)] == [0, 0, 1, 2, len(MOMENTS)]


def test_map_and_mean_of_gaussian_images() -> None:
    """White Gaussian images N(0, 1) with noise 1: the map is x1 sqrt(1/2), the mean x1 / 2."""
    generator = torch.Generator().manual_seed(0)
    x1 = torch.randn(8, 1, 64, 64, generator=generator) * math.sqrt(2)
    model = ivf.Denoiser.train(
        x1,
        ivf.Gaussian(1.0),
        net=ivf.NetSpec("UNet", widths=(16,), blocks=1),
        settings=Settings(steps=600, batch_size=8, lr=2e-3),
        patch_size=32,
        std=False,
        device="cpu",
        progress=False,
    )
    assert model.description["method"] == "ifm"
    assert model.mean is None
    power = x1.square().mean()
    assert float((model.denoise(x1) * x1).mean() / power) == pytest.approx(0.5, rel=0.05)
    assert float((model.denoise(x1, estimate="flow") * x1).mean() / power) == pytest.approx(math.sqrt(0.5), rel=0.05)


def test_a_run_that_was_stopped_goes_on_with_the_same_estimates(tmp_path: Path) -> None:
    """Stopped between two sweeps; its data is made again by the weights that had made it, so all weights agree."""

    def trained(folder: Path | None, stop_at: int = 0) -> dict[str, Tensor]:
        start = METHOD.prepare(TINY.build(seed=1), 1.0)
        sweeps, calls = Sweeps(METHOD, Patches(images(), 16), start), 0

        def loss(*arguments):
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise InterruptedError
            return sweeps.objective.loss(*arguments)

        settings = Settings(steps=40, batch_size=4, checkpoint_steps=1, clip=1.0)
        resume = folder is not None and folder.exists()
        common = {"seed": 5, "folder": folder, "resume": resume, "device": "cpu", "progress": False}
        return fit(start, loss, sweeps.data, settings, renewal=sweeps, **common).model.state_dict()

    whole = trained(None)
    for stop_at in (15, 11):  # after step 14 and, gone on, after step 24: sweeps fall on 12, 16 and 20, 24
        with pytest.raises(InterruptedError):
            trained(tmp_path / "run", stop_at)
    resumed = trained(tmp_path / "run")
    for name, values in whole.items():
        assert torch.equal(values, resumed[name]), name


def test_sweeps_or_an_ode_in_every_step() -> None:
    data, many, few = Patches(images(), 16), Settings(steps=1000), Settings(steps=3)
    assert in_sweeps(METHOD, True, data, many)
    assert not in_sweeps(METHOD, True, data, few)
    assert not in_sweeps(METHOD, False, data, many)
    assert not in_sweeps(METHOD, True, Rows(torch.rand(9, 4)), many)
    assert not in_sweeps(InverseConsistency(METHOD.process), True, data, many)
    assert pay(data, Settings(steps=None, seconds=60))
    steps = 3 * 8 * 256 / data.values.numel()  # of each value in a step: three passes over eight crops of 16 x 16
    few, all_of_them = 2 + 5 * 6, 2 + 10 * 6  # passes: two means, five or ten ODEs
    assert pay(data, Settings(steps=math.ceil(1.01 * few / steps)))
    assert not pay(data, Settings(steps=math.floor(0.99 * few / steps)))
    assert moments_for(data, Settings(steps=math.ceil(1.01 * 2 * all_of_them / steps))) == MOMENTS
    assert moments_for(data, Settings(steps=math.floor(0.99 * 2 * all_of_them / steps))) == FEWER


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        ({}, "ifm"),
        ({"method": "icm"}, "icm"),
        ({"x1": torch.rand(50, 3)}, "icm"),
        ({"noise": ivf.Simulator(lambda x: 2 * x)}, "icm"),
        ({"settings": Settings(steps=2, batch_size=2)}, "icm"),  # sweeps would be most of the work
        ({"estimate": "flow"}, "icm"),
        ({"mean_settings": Settings(steps=2)}, "icm"),
        ({"rounds": 2}, "icm"),
    ],
)
def test_the_method_that_is_chosen(arguments, method: str, monkeypatch) -> None:
    class Chosen(Exception):
        pass

    def note(name):
        raise Chosen(name)

    monkeypatch.setattr("inverseflow.denoiser.choose_method", note)
    usual = {"x1": torch.rand(1, 1, 64, 64), "noise": ivf.Gaussian(0.1), "preset": "fast", "device": "cpu"}
    with pytest.raises(Chosen, match=method):
        ivf.Denoiser.train(**(usual | arguments))
