"""The rivals: losses have their minimum where theory says, hidden pixels stay hidden, Tweedie's formula is exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import inverseflow as ivf
from inverseflow.baselines import (
    SURE,
    Noise2Score,
    Noise2Self,
    Noise2Void,
    Supervised,
    one_in_every_cell,
    place_in_cell,
    random_neighbour,
    tweedie,
)
from inverseflow.methods import Batch, Method, Moment
from inverseflow.noise import Gamma, Gaussian, Noise, Poisson, Scaled
from inverseflow.process import Bridge

SIGNAL, SIGMA = 1.0, 0.6
WIENER = SIGNAL**2 / (SIGNAL**2 + SIGMA**2)


class Gain(nn.Module):
    """k x, or k times any linear filter of x."""

    def __init__(self, k: float, function: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.k, self.function = k, function

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.k * self.function(x)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def batch(x: Tensor) -> Batch:
    return Batch(x, torch.arange(len(x)))


def slope_and_error(method: Method, model: Gain, x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """d loss / dk over the batch, and its standard error. All losses are quadratic in k: differences are exact."""
    state, values = generator.get_state(), []
    for step in (-0.1, 0.1):
        moved = Gain(model.k + step, model.function)
        values.append(method.loss(moved, batch(x), Moment(0.5, generator.set_state(state))).detach())
    slopes = (values[1] - values[0]) / 0.2
    return float(slopes.mean()), float(slopes.std()) / len(slopes) ** 0.5


def is_minimum(method: Method, at: Callable[[float], Gain], best: float, x: Tensor, generator: torch.Generator) -> None:
    """The slope vanishes at the best k within 4 standard errors, and has the right sign on both sides."""
    slope, error = slope_and_error(method, at(best), x, generator)
    assert abs(slope) < 4 * error, (slope, error)
    for away in (-0.2, 0.2):
        slope, error = slope_and_error(method, at(best + away), x, generator)
        assert slope * np.sign(away) > 8 * error, (slope, error)


@pytest.mark.parametrize("fresh", [False, True])
def test_supervised_is_best_at_the_posterior_mean(generator: torch.Generator, fresh: bool) -> None:
    """f = x - v, v = k x: the best k is 1 - s^2 / (s^2 + sigma^2)."""
    noise = Gaussian(SIGMA)
    x0 = SIGNAL * normal(generator, 400, 1, 8, 8)
    x1 = noise.draw(x0, generator)
    method = Supervised(Bridge(noise), fresh=fresh)
    given = torch.zeros_like(x1) if fresh else x1  # fresh noise leaves the given x1 alone
    is_minimum(method, Gain, 1 - WIENER, torch.cat([given, x0], 1), generator)


def test_sure_is_the_squared_error_without_the_truth(generator: torch.Generator) -> None:
    """f = (1 - k) x: both are k^2 s^2 + (1 - k)^2 sigma^2 in expectation, per channel in its own units."""
    noise = Scaled(Gaussian([SIGMA, 2 * SIGMA]), torch.zeros(2), torch.tensor([1.0, 2.0]))
    x0 = SIGNAL * normal(generator, 400, 2, 8, 8)
    x1 = x0 + SIGMA * normal(generator, 400, 2, 8, 8)
    method = SURE(Bridge(noise))
    for k in (0.1, 0.5, 0.9):
        values = method.loss(Gain(k), batch(x1), Moment(0.0, generator)).detach()
        error = float(values.std()) / len(values) ** 0.5
        assert float(values.mean()) == pytest.approx(k**2 * SIGNAL**2 + (1 - k) ** 2 * SIGMA**2, abs=4 * error)
        assert error < 0.02
    is_minimum(method, Gain, 1 - WIENER, x1, generator)


def test_sure_refuses_what_stein_does_not_cover() -> None:
    for noise in (Poisson(0.01), ivf.CorrelatedGaussian.cosine(0.1), Gaussian(0.1, [[1.0, 0.5], [0.5, 1.0]])):
        with pytest.raises(ivf.NoiseError, match="independent Gaussian"):
            SURE(Bridge(Scaled(noise, torch.zeros(1), torch.ones(1))))


def ring(x: Tensor) -> Tensor:
    """The mean of the 8 pixels around, never the pixel itself."""
    kernel = x.new_full((1, 1, 3, 3), 1 / 8)
    kernel[..., 1, 1] = 0
    return nn.functional.conv2d(nn.functional.pad(x, (1, 1, 1, 1), mode="circular"), kernel)


@pytest.mark.parametrize("method", [Noise2Void, Noise2Self])
def test_blind_spots_are_best_at_the_mean_given_the_neighbours(
    generator: torch.Generator, method: Callable[..., Method]
) -> None:
    """Flat images c ~ N(0, s^2): from the mean of 8 neighbours, c and the hidden noisy pixel have one best estimate."""
    x1 = SIGNAL * normal(generator, 3000, 1, 1, 1) + SIGMA * normal(generator, 3000, 1, 8, 8)
    chosen = method(Bridge(Gaussian(SIGMA)), 8)  # one hidden pixel in 8 x 8
    is_minimum(chosen, lambda k: Gain(k, ring), SIGNAL**2 / (SIGNAL**2 + SIGMA**2 / 8), x1, generator)


def test_noise2void_never_shows_the_hidden_pixel(generator: torch.Generator) -> None:
    """One hidden pixel: the network's input, all of it, has no derivative by its value."""
    x1 = normal(generator, 4, 2, 9, 9).requires_grad_()
    seen: list[Tensor] = []

    def spy(x: Tensor, t: Tensor) -> Tensor:
        seen.append(x)
        return x

    method = Noise2Void(Bridge(Gaussian(SIGMA)), cell=9)
    state = generator.get_state()
    method.loss(spy, batch(x1), Moment(0.0, generator))
    hidden = one_in_every_cell(x1, 9, generator.set_state(state))
    assert hidden.flatten(2).sum(2).eq(1).all()
    for direction in (torch.ones_like(x1), normal(generator, *x1.shape)):
        slope = torch.autograd.grad((seen[0] * direction).sum(), x1, retain_graph=True)[0]
        assert slope[hidden].abs().max() == 0
        assert slope[~hidden].abs().min() > 0


def test_noise2void_hides_one_pixel_of_every_cell_and_shows_a_near_one(generator: torch.Generator) -> None:
    x = torch.arange(16 * 24, dtype=torch.float64).reshape(1, 1, 16, 24).repeat(500, 1, 1, 1)
    hidden = one_in_every_cell(x, 8, generator)
    cells = hidden.reshape(500, 2, 8, 3, 8).sum((2, 4))
    assert cells.eq(1).all()
    counts = hidden.double().sum(0).flatten()
    assert float(counts.max()) < 500 / 64 + 6 * (500 / 64) ** 0.5  # every place as likely as any other
    assert float(counts.min()) > 0
    other = random_neighbour(x, 2, generator)
    rows, columns = (other // 24 - x // 24), (other % 24 - x % 24)
    assert (other != x).all()
    assert (rows.abs().max(), columns.abs().max()) == (2, 2)
    pairs = torch.stack([rows, columns], -1)[:, 0, 2:-2, 2:-2].reshape(-1, 2)
    _, frequency = pairs.unique(dim=0, return_counts=True)
    assert len(frequency) == 24
    assert float(frequency.max() / frequency.min()) < 1.1


def test_noise2self_predicts_every_pixel_without_itself(generator: torch.Generator) -> None:
    """The Jacobian of `denoise` has a zero diagonal for any network; the network alone does not."""
    net = nn.Conv2d(1, 1, 3, padding=1, dtype=torch.float64)
    x1 = normal(generator, 1, 1, 6, 7)
    method = Noise2Self(Bridge(Gaussian(SIGMA)), width=3)

    def diagonal(function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.autograd.functional.jacobian(function, x1).reshape(42, 42).diagonal()

    assert diagonal(lambda x: method.denoise(lambda y, t: net(y), x)).abs().max() == 0
    assert diagonal(net).abs().min() > 0
    assert place_in_cell(x1, 3)[:3, :3].flatten().tolist() == list(range(9))


def test_noise2score_is_best_at_the_score_of_the_blurred_law(generator: torch.Generator) -> None:
    """x1 ~ N(0, v): with noise s on it, the score is -x / (v + s^2)."""
    noise = Gaussian(SIGMA)
    method = Noise2Score(Bridge(noise), first=1.0, last=0.5)
    x1 = SIGNAL * normal(generator, 1000, 1, 8, 8) + SIGMA * normal(generator, 1000, 1, 8, 8)
    s = 0.75 * SIGMA  # half of the training is done
    is_minimum(method, Gain, -1 / (SIGNAL**2 + SIGMA**2 + s**2), x1, generator)
    with pytest.raises(ivf.NoiseError, match="Noise2Score has a formula"):
        Noise2Score(Bridge(ivf.Rayleigh(0.3)))


def score_by_autograd(log_density: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(log_density(x).sum(), x)[0]


def test_tweedie_for_gaussian_data() -> None:
    x1 = torch.linspace(-3, 3, 50, dtype=torch.float64)[None, None]
    law = torch.distributions.Normal(0.3, (SIGNAL**2 + SIGMA**2) ** 0.5)
    estimate = tweedie(Gaussian(SIGMA), x1, score_by_autograd(law.log_prob, x1))
    assert torch.allclose(estimate, 0.3 + WIENER * (x1 - 0.3))


def test_tweedie_for_counts_with_a_gamma_prior() -> None:
    """x0 = offset + gain r, r ~ Gamma(a, b): given n, r ~ Gamma(a + n, b + 1) and E log r = psi(a + n) - log(b + 1)."""
    gain, offset, a, b = 0.02, 0.3, 4.0, 0.1
    n = torch.arange(5, 200, dtype=torch.float64)[None, None]
    counts = lambda x: torch.lgamma(n_of(x) + a) - torch.lgamma(n_of(x) + 1) - n_of(x) * np.log(1 + b)  # noqa: E731
    n_of = lambda x: (x - offset) / gain  # noqa: E731
    x1 = offset + gain * n
    estimate = tweedie(Poisson(gain, offset), x1, score_by_autograd(counts, x1))
    exact = offset + gain * torch.exp(torch.digamma(n + a)) / (1 + b)
    assert float(((estimate - offset) / (exact - offset) - 1).abs().max()) < 1 / (24 * 5.5**2)  # of log n!'s slope
    below = (offset + gain * (n + a) / (1 + b) - estimate) / gain * (1 + b)
    assert torch.allclose(below, torch.full_like(n, 0.5), atol=0.02)  # half a count below the posterior mean


def test_tweedie_for_speckle_with_an_inverse_gamma_prior() -> None:
    """x0 ~ InvGamma(a, b): given x1 it is InvGamma(a + k, b + k x1), and 1 / E[1 / x0] = (b + k x1) / (a + k)."""
    k, a, b = 20.0, 5.0, 2.0
    x1 = torch.linspace(0.05, 4, 60, dtype=torch.float64)[None, None]
    marginal = lambda x: (k - 1) * x.log() - (a + k) * (b + k * x).log()  # noqa: E731
    estimate = tweedie(Gamma(k), x1, score_by_autograd(marginal, x1))
    assert torch.allclose(estimate, (b + k * x1) / (a + k))


@pytest.mark.parametrize("noise", [Gaussian(0.2), Poisson(0.02, 0.1), Gamma(30.0)], ids=lambda n: type(n).__name__)
def test_tweedie_does_not_depend_on_the_scaling(noise: Noise, generator: torch.Generator) -> None:
    """y = (x - shift) / scale: the score of y is scale times that of x."""
    shift, scale = torch.tensor([0.4, -0.2], dtype=torch.float64), torch.tensor([0.3, 2.0], dtype=torch.float64)
    x1 = 0.2 + torch.rand(3, 2, 5, 5, generator=generator, dtype=torch.float64)
    score = normal(generator, 3, 2, 5, 5)
    a, b = shift[:, None, None], scale[:, None, None]
    scaled = tweedie(Scaled(noise, shift, scale), (x1 - a) / b, score * b)
    assert torch.allclose(scaled * b + a, tweedie(noise, x1, score))


@pytest.mark.parametrize("method", [Noise2Void, Noise2Self, Noise2Score, SURE])
def test_rivals_train_as_methods_of_a_denoiser(method: Callable[..., Method], generator: torch.Generator) -> None:
    """Smooth images, a small network: each must take away most of the noise."""
    coarse = torch.randn(4, 1, 4, 4, generator=generator)
    clean = nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic")
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=generator)
    model = ivf.Denoiser.train(
        noisy,
        Gaussian(0.5),
        method=method,
        estimate="flow",
        net=ivf.NetSpec("UNet", widths=(16, 32), blocks=1, patch=2),
        settings=ivf.Settings(steps=100, batch_size=8, lr=5e-3, ema=0.9, clip=None),
        patch_size=16,
        device="cpu",
        progress=False,
    )
    result = model.denoise(noisy)
    assert float((result - clean).square().mean()) < 0.4 * 0.5**2
