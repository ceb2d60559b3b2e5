"""Processes: both ends, the velocity against finite differences, the two forms of the paper, deterministic dynamics."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from inverseflow.noise import Gaussian, Poisson, Rayleigh, Scaled
from inverseflow.process import AffineGaussian, Bridge, Simulated, noise_rms
from inverseflow.tensors import ones


def curved(x0: torch.Tensor, x1: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """A smooth path that is not straight."""
    a = torch.sin(math.pi / 2 * t)
    return x0 + a * (x1 - x0) + t * (1 - t) * x0.square()


PROCESSES = {
    "bridge": Bridge(Poisson(0.02)),
    "curved_bridge": Bridge(Gaussian(0.3), path=curved),
    "variance_exploding": AffineGaussian.variance_exploding(0.3),
    "variance_preserving": AffineGaussian.variance_preserving(),
    "pendulum": Simulated(lambda x, t: torch.stack([x[:, 1], -torch.sin(3 * x[:, 0])], 1), steps=40),
}


def at(process, x0: torch.Tensor, t: float) -> tuple[torch.Tensor, torch.Tensor]:
    return process.sample(x0, torch.full((len(x0),), t, dtype=x0.dtype), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", sorted(PROCESSES))
def test_velocity_is_the_derivative_of_the_path(name: str) -> None:
    x0, t, h = torch.rand(50, 2, dtype=torch.float64), 0.6, 1e-5
    process = PROCESSES[name]
    difference = (at(process, x0, t + h)[0] - at(process, x0, t - h)[0]) / (2 * h)
    assert torch.allclose(at(process, x0, t)[1], difference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(PROCESSES))
def test_path_starts_at_x0(name: str) -> None:
    x0 = torch.rand(50, 2, dtype=torch.float64)
    assert torch.allclose(at(PROCESSES[name], x0, 0.0)[0], x0, atol=1e-5)


@pytest.mark.parametrize("path", [None, curved])
def test_bridge_ends_at_the_noise(path) -> None:
    x0 = torch.full((4000, 1), 0.4, dtype=torch.float64)
    x1, _ = Bridge(Gaussian(0.3), path=path).sample(x0, ones(x0), generator=torch.Generator().manual_seed(0))
    assert stats.kstest(x1.flatten().numpy(), stats.norm(0.4, 0.3).cdf).pvalue > 1e-5


def test_both_forms_of_the_paper_agree_draw_for_draw() -> None:
    """The bridge to a simulated Gaussian x1' (Algorithms 3-4) and the closed form (Algorithms 1-2) are the same
    process.
    """
    x0, t = torch.rand(20, 3, dtype=torch.float64), torch.rand(20, dtype=torch.float64)
    bridge = Bridge(Gaussian(0.3)).sample(x0, t, generator=torch.Generator().manual_seed(1))
    closed = AffineGaussian.variance_exploding(0.3).sample(x0, t, generator=torch.Generator().manual_seed(1))
    for a, b in zip(bridge, closed, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_variance_preserving_keeps_the_variance() -> None:
    x0 = torch.randn(200_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for t in (0.1, 0.5, 0.9):
        assert float(at(AffineGaussian.variance_preserving(), x0, t)[0].var()) == pytest.approx(1.0, rel=0.02)


def test_mean_velocity_is_the_analytic_field() -> None:
    """Lemma 1 for Gaussian data: E[u_t | x_t] = x_t t sigma^2 / (s^2 + t^2 sigma^2), as a regression slope."""
    generator = torch.Generator().manual_seed(4)
    s, sigma, t = 1.0, 0.7, 0.6
    x0 = s * torch.randn(400_000, 1, dtype=torch.float64, generator=generator)
    x_t, u_t = Bridge(Gaussian(sigma)).sample(x0, torch.full((len(x0),), t, dtype=x0.dtype), generator=generator)
    slope = float((x_t * u_t).sum() / x_t.square().sum())
    assert slope == pytest.approx(t * sigma**2 / (s**2 + t**2 * sigma**2), rel=0.02)


def test_simulated_is_exact_for_a_known_solution_and_of_fourth_order() -> None:
    x0 = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    t = torch.tensor([1.0, 0.3], dtype=torch.float64)
    w = 2.0
    exact = torch.stack(
        [
            x0[:, 0] * torch.cos(w * t) + x0[:, 1] * torch.sin(w * t),
            x0[:, 1] * torch.cos(w * t) - x0[:, 0] * torch.sin(w * t),
        ],
        1,
    )

    def error(steps: int) -> float:
        rotation = Simulated(lambda x, _: torch.stack([w * x[:, 1], -w * x[:, 0]], 1), steps=steps)
        return float((rotation.forward(x0, t) - exact).abs().max())

    assert error(16) < 1e-5
    assert math.log2(error(8) / error(16)) == pytest.approx(4, abs=0.4)


def test_simulation_may_start_nearby_and_states_may_be_confined() -> None:
    decay = Simulated(lambda x, t: -x, steps=20, perturb=lambda x, generator: x + 0.5, onto=lambda x: x.clamp(min=0))
    x0, t = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([1.0, 0.5], dtype=torch.float64)
    x_t, u_t = decay.sample(x0, t)
    expected = (x0 + 0.5) * torch.exp(-t)[:, None]
    assert torch.allclose(x_t, expected, rtol=1e-7, atol=0)
    assert torch.equal(u_t, -x_t)
    assert decay.project(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_noise_rms_counts_bias_and_spread() -> None:
    x1 = torch.full((100, 1), 2.0)
    assert noise_rms(Gaussian(0.3), x1) == pytest.approx(0.3, rel=0.01)
    bias, std = 2 * 0.3 * math.sqrt(math.pi / 2), 2 * 0.3 * math.sqrt(2 - math.pi / 2)
    assert noise_rms(Rayleigh(0.3), x1) == pytest.approx(math.hypot(bias, std), rel=0.01)
    assert noise_rms(Scaled(Gaussian(0.3), torch.zeros(1), torch.full((1,), 2.0)), x1) == pytest.approx(0.15, rel=0.01)


def test_noise_of_the_chosen_samples_is_used() -> None:
    bridge = Bridge(Gaussian(torch.tensor([[1.0], [100.0]]))).select(torch.tensor([1, 1]))
    _, u = bridge.sample(torch.zeros(2, 1000), torch.ones(2), generator=torch.Generator().manual_seed(0))
    assert u.std(1).tolist() == pytest.approx([100.0, 100.0], rel=0.1)
