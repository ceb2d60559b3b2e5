"""The paper's claim on data where the answer is known in closed form: x0 ~ N(0, s^2), noise sigma.

The exact flow map is x1 s / sqrt(s^2 + sigma^2), the posterior mean x1 s^2 / (s^2 + sigma^2).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import inverseflow as ivf
from inverseflow.losses import squared
from inverseflow.methods import InverseConsistency, InverseFlowMatching
from inverseflow.noise import Gaussian
from inverseflow.patches import Rows
from inverseflow.posterior import Pairs, PosteriorMean, by_map
from inverseflow.process import AffineGaussian, Bridge
from inverseflow.settings import Settings
from inverseflow.tensors import expand, ones
from inverseflow.times import GrowingGrid, recovered_spread
from inverseflow.train import fit


def curve(*, from_zero: bool) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
    if from_zero:
        nn.init.zeros_(layers[-1].weight)
        nn.init.zeros_(layers[-1].bias)
    return layers


class LinearMap(nn.Module):
    """c(x, t) = k_t x with a free smooth curve for k and k = 1 at t_min: linear in x."""

    def __init__(self, t_min: float) -> None:
        super().__init__()
        self.t_min, self.curve = t_min, curve(from_zero=True)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x * expand(torch.exp(-(t - self.t_min) * self.curve(t[:, None])[:, 0]), x)


class LinearVelocity(nn.Module):
    """v(x, t) = a_t x with a free smooth curve for a."""

    def __init__(self) -> None:
        super().__init__()
        self.curve = curve(from_zero=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x * expand(self.curve(t[:, None])[:, 0], x)


def gaussian_data(s: float, sigma: float, count: int = 200_000) -> Tensor:
    return math.hypot(s, sigma) * torch.randn(count, 1, generator=torch.Generator().manual_seed(11))


def learned_gain(method, model: nn.Module) -> float:
    with torch.no_grad():
        y = method.denoise(model, torch.tensor([[-1.0], [1.0]]))
    return float((y[1] - y[0]) / 2)


FORMS = {"v1_closed_form": AffineGaussian.variance_exploding, "v2_bridge": lambda sigma: Bridge(Gaussian(sigma))}
LINEAR = Settings(steps=1200, batch_size=4096, lr=0.01, ema=0.99, clip=None)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_icm_recovers_map_and_mean(form: str, ratio: float) -> None:
    s = 1.0
    method = InverseConsistency(FORMS[form](ratio), grid=GrowingGrid(10, 80), distance=squared)
    data = Rows(gaussian_data(s, ratio))
    flow = fit(LinearMap(method.grid.eps), method.loss, data, LINEAR, progress=False).model
    assert learned_gain(method, flow) == pytest.approx(s / math.hypot(s, ratio), rel=0.03)
    second = PosteriorMean(Pairs(by_map(method, flow), Gaussian(ratio)))
    mean = fit(
        LinearMap(method.grid.eps),
        second.loss,
        data,
        Settings(steps=300, batch_size=4096, lr=0.01, ema=0.98, clip=None),
        progress=False,
    ).model
    assert learned_gain(method, mean) == pytest.approx(s**2 / (s**2 + ratio**2), rel=0.03)


@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_ifm_recovers_map_and_mean_at_ten_evaluations(form: str, ratio: float) -> None:
    s = 1.0
    method = InverseFlowMatching(FORMS[form](ratio))
    assert method.solver == "midpoint"
    assert method.solver_steps * 2 == 10
    model = fit(
        LinearVelocity(),
        method.loss,
        Rows(gaussian_data(s, ratio)),
        Settings(steps=700, batch_size=4096, lr=0.01, ema=0.99, clip=None),
        progress=False,
    ).model
    assert learned_gain(method, model) == pytest.approx(s / math.hypot(s, ratio), rel=0.03)
    mean = 1 - float(model(torch.ones(1, 1), torch.ones(1)))  # E[x0 | x1] = x1 - v(x1, 1)
    assert mean == pytest.approx(s**2 / (s**2 + ratio**2), rel=0.03)


@pytest.mark.parametrize("n", [11, 21, 51])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_icm_equals_the_finite_grid_fixed_point(n: int, ratio: float) -> None:
    """What a grid of N points costs is known exactly (`recovered_spread`); the trained map must show just that."""
    s = 1.0
    method = InverseConsistency(Bridge(Gaussian(ratio)), grid=GrowingGrid.fixed(n, eps=0.002, rho=7), distance=squared)
    model = fit(LinearMap(method.grid.eps), method.loss, Rows(gaussian_data(s, ratio)), LINEAR, progress=False).model
    recovered = learned_gain(method, model) * math.hypot(s, ratio) / s
    assert recovered == pytest.approx(recovered_spread(method.grid.at(0), ratio), rel=0.02)


@pytest.mark.slow
def test_default_keeps_nine_tenths_where_noise_is_twice_the_signal() -> None:
    """The default method, network and grid, on a table whose features have noise 0.5, 1 and 2 times their signal."""
    generator = torch.Generator().manual_seed(5)
    spread = torch.tensor([1.0, 0.5, 0.25])
    x0 = spread * torch.randn(20_000, 3, generator=generator)
    x1 = Gaussian(0.5).sample(x0, generator=generator)
    model = ivf.Denoiser.train(x1, Gaussian(0.5), progress=False)
    kept = (model.denoise(x1, estimate="flow").std(0) / spread).tolist()
    mean = model.denoise(x1, estimate="mean")
    slopes = ((mean * x1).sum(0) / x1.square().sum(0)).tolist()
    print(
        f"\nkept of the spread at noise/signal 0.5, 1, 2: {[round(k, 3) for k in kept]}; "
        f"slopes of the mean {[round(k, 3) for k in slopes]}"
    )
    assert min(kept) >= 0.9
    assert max(kept) < 1.15
    assert slopes == pytest.approx([0.8, 0.5, 0.2], rel=0.1)


def test_time_one_is_the_network_s_time_for_the_observed_data() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            seen.append(t)
            return torch.zeros_like(x)

    method = InverseConsistency(Bridge(Gaussian(0.4)))
    method.denoise(method.prepare(Spy(), 0.4), torch.zeros(2, 1))
    assert torch.allclose(seen[0], 0.4 * ones(torch.zeros(2, 1)))
