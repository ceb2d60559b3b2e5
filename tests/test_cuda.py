"""On a GPU only: every noise draws there with the right moments, and a training step never waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import inverseflow as ivf
from inverseflow.methods import Batch, FlowMatching, InverseConsistency, InverseFlowMatching, Moment
from inverseflow.nets.wrappers import ResidualFlow, Spread, Velocity
from inverseflow.noise import FunctionNoise, Noise, Scaled
from inverseflow.patches import Patches, allowed_operations
from inverseflow.posterior import TO_NORMAL, Pairs, PosteriorFlow, PosteriorMean, PosteriorSpread, by_map
from inverseflow.process import Bridge
from inverseflow.replay import Phase, can_replay
from inverseflow.sweeps import Sweeps

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


def test_every_noise_draws_on_the_device_as_on_the_host(noise: Noise) -> None:
    x0 = 0.1 + 0.8 * torch.rand(500, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    host = noise.sample(x0, generator=torch.Generator().manual_seed(1))
    device = noise.sample(x0.cuda(), generator=torch.Generator("cuda").manual_seed(1)).cpu()
    assert float((host.mean() - device.mean()).abs()) < 0.02 * float(host.std())
    assert float(host.std() / device.std()) == pytest.approx(1, rel=0.02)
    again = noise.sample(x0.cuda(), generator=torch.Generator("cuda").manual_seed(1)).cpu()
    assert torch.equal(device, again)


def test_a_training_step_never_waits_for_the_device(noise: Noise) -> None:
    """ICM and the posterior mean. (In IFM torchdiffeq checks its times, which waits once per solve.)"""
    if isinstance(noise, FunctionNoise):
        noise.sample(torch.rand(2, 2, 16, 16).cuda(), generator=torch.Generator("cuda"))  # its first use is checked
    images = [torch.rand(2, 24, 24).cuda() for _ in range(4)]
    data = Patches(images, 16, allowed_operations(noise, 2))
    inner = Scaled(noise, torch.tensor([0.1, 0.2]), torch.tensor([1.0, 2.0]))
    chosen = InverseConsistency(Bridge(inner))
    model = chosen.prepare(ivf.NetSpec("UNet", channels=2, widths=(8, 16), blocks=1).build(), 0.3).cuda()
    host, device = torch.Generator().manual_seed(0), torch.Generator("cuda").manual_seed(0)

    def step() -> None:
        batch: Batch = data.draw(4, host)
        chosen.loss(model, batch, Moment(0.5, device)).mean().backward()
        PosteriorMean(Pairs(by_map(chosen, model), inner)).loss(model, batch, Moment(0.5, device)).mean().backward()

    step()  # plans and workspaces are made once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_replayed_steps_are_the_ordinary_steps(noise: Noise) -> None:
    """The same draws and the same weights, over all grids of a training, for every noise that is replayed."""
    if not can_replay(noise):
        pytest.skip("a user's function is not recorded")
    inner = Scaled(noise, torch.tensor([0.1, 0.2]), torch.tensor([1.0, 2.0])).to("cuda")
    images = [torch.rand(2, 24, 24, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    chosen = InverseConsistency(Bridge(inner))

    def trained(phase: Phase | None) -> dict[str, torch.Tensor]:
        model = chosen.prepare(ivf.NetSpec("UNet", channels=2, widths=(8, 16), blocks=1).build(), 0.3)
        data = Patches(images, 16, allowed_operations(noise, 2))
        settings = ivf.Settings(steps=60, batch_size=4, precision="32-true")
        return ivf.fit(
            model, chosen.loss, data, settings, phase=phase, device="cuda", progress=False
        ).model.state_dict()

    replayed, ordinary = trained(chosen.phase), trained(None)
    for name, values in ordinary.items():
        assert torch.allclose(replayed[name], values, atol=2e-3), name


def test_replayed_steps_of_what_is_learned_from_pairs() -> None:
    noise = ivf.Gaussian(0.3).to("cuda")
    chosen = InverseConsistency(Bridge(noise))
    kind: dict[str, Any] = {"channels": 2, "widths": (8, 16), "blocks": 1}
    images = [torch.rand(2, 24, 24, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    frozen = chosen.prepare(ivf.NetSpec("UNet", **kind).build(), 0.3).cuda()
    pairs = Pairs(by_map(chosen, frozen), noise)

    def mean(x1: torch.Tensor) -> torch.Tensor:
        return chosen.denoise(frozen, x1)

    parts = {
        "spread": (
            PosteriorSpread(pairs, mean),
            lambda: Spread(ivf.NetSpec("UNet", **kind, given=1).build(), 0.3, 0.2),
        ),
        "sampler": (
            PosteriorFlow(pairs, lambda x1: (mean(x1), 0.2 + 0 * x1)),
            lambda: ResidualFlow(ivf.NetSpec("UNet", **kind, given=3).build(), 0.3, 0.2),
        ),
        "generator": (FlowMatching(TO_NORMAL), lambda: Velocity(ivf.NetSpec("UNet", **kind).build(), 0.15)),
    }
    for name, (part, start) in parts.items():
        found = []
        for phase in (part.phase, None):
            data, settings = Patches(images, 16), ivf.Settings(steps=40, batch_size=4, precision="32-true")
            fitted = ivf.fit(start(), part.loss, data, settings, phase=phase, device="cuda", progress=False)
            found.append(fitted.model.state_dict())
        for key, values in found[1].items():
            assert torch.allclose(found[0][key], values, atol=2e-3), (name, key)


def test_replayed_steps_on_data_that_is_renewed() -> None:
    """A recorded step reads what the last sweep has made of the images."""
    method = InverseFlowMatching(Bridge(ivf.Gaussian(0.3).to("cuda")))
    images = [torch.rand(1, 24, 24, generator=torch.Generator().manual_seed(k)).cuda() for k in range(4)]
    found = []
    for recorded in (True, False):
        start = method.prepare(ivf.NetSpec("UNet", widths=(8, 16), blocks=1).build(), 0.3).cuda()
        sweeps, settings = (
            Sweeps(method, Patches(images, 16), start),
            ivf.Settings(steps=60, batch_size=4, precision="32-true"),
        )
        phase = sweeps.objective.phase if recorded else None
        common: dict[str, Any] = {"renewal": sweeps, "phase": phase, "device": "cuda", "progress": False}
        found.append(ivf.fit(start, sweeps.objective.loss, sweeps.data, settings, **common).model.state_dict())
        assert not torch.equal(sweeps.data.values, sweeps.noisy.values)
    for name, values in found[1].items():
        assert torch.allclose(found[0][name], values, atol=2e-3), name


@pytest.mark.parametrize("compiled", [False, True])
def test_training_on_the_device(compiled: bool, tmp_path) -> None:
    clean = (
        torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        .repeat_interleave(8, 2)
        .repeat_interleave(8, 3)
    )
    noisy = ivf.Gaussian(0.2).sample(clean, generator=torch.Generator().manual_seed(1))
    settings = ivf.Settings(steps=150, batch_size=8, lr=2e-3, compile=compiled)
    model = ivf.Denoiser.train(
        noisy, ivf.Gaussian(0.2), settings=settings, mean_settings=settings, device="cuda", progress=False
    )
    result = model.denoise(noisy)
    assert float((result - clean).square().mean()) < 0.3 * float((noisy - clean).square().mean())
    model.save(tmp_path / "m.safetensors")
    on_cpu = ivf.Denoiser.load(tmp_path / "m.safetensors", device="cpu").denoise(noisy)
    assert torch.allclose(on_cpu, result, atol=0.02)


def test_error_bars_and_draws_on_the_device(tmp_path) -> None:
    noisy = torch.rand(4, 2, 40, 40, generator=torch.Generator().manual_seed(0))
    settings = ivf.Settings(steps=20, batch_size=4)
    model = ivf.Denoiser.train(
        noisy, ivf.Gaussian(0.2), samples=True, rounds=2, settings=settings, device="cuda", progress=False
    )
    model.save(tmp_path / "m.safetensors")
    again = ivf.Denoiser.load(tmp_path / "m.safetensors", device="cpu")
    for here, there in zip(model.denoise(noisy, return_std=True), again.denoise(noisy, return_std=True), strict=True):
        assert torch.allclose(here, there, atol=0.02)
    assert torch.allclose(model.sample(noisy, 1), again.sample(noisy, 1), atol=0.05)
    assert torch.allclose(model.interval(noisy)[0], again.interval(noisy)[0], atol=0.05)
