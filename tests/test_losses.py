"""The objectives: values by hand, the paper's equivalences, what gradients may flow through, solvers' orders."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from inverseflow import losses
from inverseflow.noise import Gaussian
from inverseflow.process import AffineGaussian, Bridge
from inverseflow.tensors import expand
from inverseflow.times import karras_times, neighbours


class Gain(nn.Module):
    """c(x, t) = (1 - a t) x: linear, one parameter."""

    def __init__(self, a: float = 0.3) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a, dtype=torch.float64))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x * (1 - self.a * expand(t, x))


class Fixed:
    """A process without chance: x_t = x0 + t d, u_t = d."""

    def __init__(self, d: Tensor) -> None:
        self.d = d

    def sample(self, x0: Tensor, t: Tensor, *, generator=None) -> tuple[Tensor, Tensor]:
        return x0 + expand(t, x0) * self.d, self.d.expand_as(x0)

    def project(self, x0: Tensor) -> Tensor:
        return x0

    def select(self, index: Tensor) -> Fixed:
        return self


def test_values_by_hand() -> None:
    """Grid {0.5, 1}: s = 0.5, t = 1. x0 = (1, 2), d = 0.4: x_t = (1.4, 2.4), x_s = (1.2, 2.2); c = (1 - 0.3 t) x."""
    net, x0, times = Gain(0.3), torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([0.5, 1.0])
    process = Fixed(torch.tensor([[0.4]], dtype=torch.float64))
    expected = [(0.7 * 1.4 - 0.85 * 1.2) ** 2, (0.7 * 2.4 - 0.85 * 2.2) ** 2]
    code = losses.consistency_loss(net, x0, process, times, distance=losses.squared)
    paper = losses.consistency_loss(net, x0, process, times, distance=losses.squared, weight=losses.step)
    assert code.tolist() == pytest.approx([2 * e for e in expected])
    assert paper.tolist() == pytest.approx([0.5 * e for e in expected])
    # the inverse one starts from c(x1, 1) = 0.7 x1
    inverse = losses.inverse_consistency_loss(net, x0 / 0.7, process, times, distance=losses.squared)
    assert inverse.tolist() == pytest.approx(code.tolist())
    # or from another estimator of the same kind, here one that knows x0 = x1 / 5
    other = losses.inverse_consistency_loss(
        net, 5 * x0, process, times, estimator=lambda x, t: x / 5, distance=losses.squared
    )
    assert other.tolist() == pytest.approx(code.tolist())
    # distillation steps along the teacher: x_s = x_t - 0.5 * 2 = (0.4, 1.4)
    taught = losses.consistency_loss(
        net, x0, process, times, teacher=lambda x, t: torch.full_like(x, 2.0), distance=losses.squared
    )
    assert taught.tolist() == pytest.approx([2 * (0.7 * 1.4 - 0.85 * 0.4) ** 2, 2 * (0.7 * 2.4 - 0.85 * 1.4) ** 2])


def test_flow_matching_by_hand() -> None:
    x0, d = torch.tensor([[1.0, 3.0]], dtype=torch.float64), torch.tensor([[0.5, -0.5]], dtype=torch.float64)
    loss = losses.flow_matching_loss(lambda x, t: torch.ones_like(x), x0, Fixed(d))
    assert loss.tolist() == pytest.approx([(0.5**2 + 1.5**2) / 2])
    # inverse: v = 1, so the ODE from t = 1 to 0 subtracts exactly 1 and the loss is that of x0 = x1 - 1
    inverse = losses.inverse_flow_matching_loss(
        lambda x, t: torch.ones_like(x), x0 + 1, Fixed(d), torch.linspace(0, 1, 6)
    )
    assert inverse.tolist() == pytest.approx(loss.tolist())


def test_distances_by_hand() -> None:
    a, b = torch.tensor([[3.0, 0.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    assert float(losses.squared(a, b)) == pytest.approx(4.5)
    c = 0.00054 * math.sqrt(2)
    assert float(losses.pseudo_huber(a, b)) == pytest.approx((math.sqrt(9 + c * c) - c) / 2)


def songs_consistency_training(
    net: nn.Module, x0: Tensor, times: Tensor, sigma: float, generator: torch.Generator
) -> Tensor:
    """Song et al. 2023 written from their equation: x_t = x0 + t z, x_s = x0 + s z with one z."""
    s, t = neighbours(times, x0, generator)
    z = sigma * torch.randn(x0.shape, generator=generator, dtype=x0.dtype)
    return (net(x0 + expand(t, x0) * z, t) - net(x0 + expand(s, x0) * z, s).detach()).square().mean(1) / (t - s)


def test_song_is_the_variance_exploding_case() -> None:
    net, x0, times = Gain(), torch.randn(1000, 2, dtype=torch.float64), karras_times(11)
    song = songs_consistency_training(net, x0, times, 0.5, torch.Generator().manual_seed(1))
    for process in (AffineGaussian.variance_exploding(0.5), Bridge(Gaussian(0.5))):
        ours = losses.consistency_loss(
            net, x0, process, times, distance=losses.squared, generator=torch.Generator().manual_seed(1)
        )
        assert float((ours - song).detach().abs().max()) < 1e-6
        gradients = [torch.autograd.grad(value.mean(), net.a, retain_graph=True)[0] for value in (ours, song)]
        assert float((gradients[0] - gradients[1]).abs()) < 1e-6


def gradient_gap(n: int, generator: torch.Generator, samples: int = 2_000_000) -> float:
    """|E grad GCT - E grad CD| of the loss without weight on a uniform grid of n points, for data N(0, 1) and noise 1.

    The nonlinear c(x, t) = x - t tanh(a x) makes the two differ at finite step. The exact teacher is u(x, t) = x t / (1
    + t^2). Common draws for both, so that chance cancels.
    """
    a = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    times = torch.linspace(0.02, 1, n, dtype=torch.float64)

    def consistency(x: Tensor, t: Tensor) -> Tensor:
        return x - expand(t, x) * torch.tanh(a * x)

    x0 = torch.randn(samples, 1, dtype=torch.float64, generator=generator)
    seed = int(torch.randint(10**9, (), generator=generator))
    gradients = []
    for teacher in (None, lambda x, t: x * expand(t / (1 + t * t), x)):
        process, chance = AffineGaussian.variance_exploding(1.0), torch.Generator().manual_seed(seed)
        value = losses.consistency_loss(
            consistency, x0, process, times, teacher=teacher, distance=losses.squared, generator=chance
        )
        gradients.append(torch.autograd.grad(value.mean(), a)[0])
    return float((gradients[0] - gradients[1]).abs())


def test_theorem_2_gct_gradient_approaches_cd_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    """With weight 1 / dt the gradients are of order 1 and their difference must vanish with the step; the rate is
    fitted.
    """
    steps = [5, 9, 17, 33]
    gaps = [sum(gradient_gap(n, torch.Generator().manual_seed(7 + k)) for k in range(2)) / 2 for n in steps]
    x, y = [math.log(0.98 / (n - 1)) for n in steps], [math.log(g) for g in gaps]
    mx, my = sum(x) / 4, sum(y) / 4
    rate = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
    with capsys.disabled():
        print(
            f"\nTheorem 2: |grad GCT - grad CD| = {', '.join(f'{g:.2e}' for g in gaps)} "
            f"for N = {steps}; fitted rate dt^{rate:.2f}"
        )
    assert gaps[-1] < gaps[0] / 4
    assert rate > 0.8


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_expected_gradient_vanishes_at_the_analytic_optimum(wrong: float) -> None:
    """Flow matching on Gaussian data: v = x t sigma^2 / (s^2 + t^2 sigma^2) is stationary, a wrong gain is not. The
    loss itself stays > 0.
    """
    gain = torch.tensor(1.0 + wrong, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(3)
    x0 = torch.randn(400_000, 1, dtype=torch.float64, generator=generator)
    value = losses.flow_matching_loss(
        lambda x, t: gain * x * expand(0.49 * t / (1 + 0.49 * t * t), x), x0, Bridge(Gaussian(0.7)), generator=generator
    )
    gradient = float(torch.autograd.grad(value.mean(), gain)[0])
    assert float(value.detach().mean()) > 0.2
    assert (abs(gradient) < 0.002) == (wrong == 0.0)


def test_no_gradient_through_the_estimate_and_the_target() -> None:
    """With stop-gradients the derivative is that of c(x_t, t) alone: 2 (c - target) dc/da, checked by hand on a frozen
    draw.
    """
    net, x1 = Gain(0.3), torch.tensor([[2.0]], dtype=torch.float64)
    process, times = Fixed(torch.tensor([[0.4]], dtype=torch.float64)), torch.tensor([0.5, 1.0])
    value = losses.inverse_consistency_loss(net, x1, process, times, distance=losses.squared)
    x0 = 0.7 * 2.0
    x_t, x_s = x0 + 0.4, x0 + 0.2
    by_hand = 2 * 2 * (0.7 * x_t - 0.85 * x_s) * (-x_t)
    assert float(torch.autograd.grad(value.sum(), net.a)[0]) == pytest.approx(by_hand)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_solvers_have_their_order_backwards_in_time(method: str, order: int) -> None:
    """dx/dt = x cos t has x(t) = x0 exp(sin t); solved from 1 back to 0."""
    start = torch.full((1, 1), math.exp(math.sin(1.0)), dtype=torch.float64)

    def error(n: int) -> float:
        end = losses.solve(
            lambda x, t: x * expand(t.cos(), x), start, torch.linspace(1, 0, n + 1, dtype=torch.float64), method=method
        )
        return abs(float(end) - 1.0)

    assert math.log2(error(8) / error(16)) == pytest.approx(order, abs=0.35)


def test_adaptive_solver_and_number_of_evaluations() -> None:
    calls = 0

    def field(x: Tensor, t: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return -x

    x = torch.ones(3, 2, dtype=torch.float64)
    losses.solve(field, x, torch.linspace(1, 0, 6))
    assert calls == 10  # the paper's NFE
    end = losses.solve(field, x, torch.tensor([1.0, 0.0]), method="dopri5", rtol=1e-8, atol=1e-8)
    assert torch.allclose(end, x * math.e, rtol=1e-7)


def test_one_value_per_sample_and_no_global_chance() -> None:
    x1, times = torch.rand(7, 2, 5, 5), karras_times(5)
    state = torch.random.get_rng_state()
    for loss in (
        losses.inverse_consistency_loss(
            lambda x, t: 0.9 * x, x1, Bridge(Gaussian(0.1)), times, generator=torch.Generator().manual_seed(0)
        ),
        losses.inverse_flow_matching_loss(
            lambda x, t: 0.1 * x, x1, Bridge(Gaussian(0.1)), times, generator=torch.Generator().manual_seed(0)
        ),
    ):
        assert loss.shape == (7,)
    assert torch.equal(state, torch.random.get_rng_state())
