"""Every noise: moments and laws against theory, composition, seeds, scaling, symmetry, words."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conftest import NOISES
from inverseflow.errors import InputError, NoiseError
from inverseflow.noise import (
    SDE,
    UNIT,
    Clip,
    CorrelatedGaussian,
    CorrelatedSignal,
    FunctionNoise,
    Gamma,
    Gaussian,
    Jacobi,
    Noise,
    Poisson,
    PoissonGaussian,
    Quantise,
    Rayleigh,
    Scaled,
    SignalDependent,
    Simulator,
    as_noise,
    from_dict,
    parse,
)

DRAWS = 20_000
ALPHA = 1e-5
LEVELS = (0.05, 0.3, 0.8)


def draws_at(noise: Noise, level: float, generator: torch.Generator, count: int = DRAWS) -> torch.Tensor:
    """(count,) independent draws of x1 given x0 = level; one pixel of each field, where the noise is correlated."""
    if isinstance(noise, CorrelatedGaussian | CorrelatedSignal):
        return noise.sample(torch.full((count, 1, 1, 1), level, dtype=torch.float64), generator=generator).flatten()
    return noise.sample(torch.full((count, 2), level, dtype=torch.float64), generator=generator)[:, 0]


@pytest.mark.parametrize("level", LEVELS)
def test_mean_and_variance_follow_theory(noise: Noise, level: float, generator: torch.Generator) -> None:
    x1 = draws_at(noise, level, generator)
    x0 = torch.full((1, 2), level, dtype=torch.float64)
    mean, std = float(noise.mean(x0)[0, 0]), float(noise.std(x0)[0, 0])
    if std == 0:
        assert torch.allclose(x1, torch.full_like(x1, mean))
        return
    weak_order = (
        0.005 if isinstance(noise, SDE | Jacobi) else 0.0
    )  # Euler-Maruyama's own error, first order in the step
    simulated = 4 / math.sqrt(256) if noise.to_dict()["kind"] in ("Unsaved",) or "Clip" in str(noise) else 0.0
    kurtosis = float(((x1 - x1.mean()) ** 4).mean() / x1.var() ** 2)
    assert abs(float(x1.mean()) - mean) < 5 * std / math.sqrt(DRAWS) + weak_order * std + simulated * std
    assert abs(float(x1.var()) / std**2 - 1) < 5 * math.sqrt((kurtosis - 1) / DRAWS) + 2 * weak_order + 2 * simulated


def laws(level: float) -> dict[str, tuple[Noise, object]]:
    """Noises whose law given x0 scipy knows."""
    return {
        "gaussian": (Gaussian(0.1), stats.norm(level, 0.1)),
        "correlated": (CorrelatedGaussian.cosine(0.2), stats.norm(level, 0.2)),
        "signal_dependent": (SignalDependent(0.5, 0.2, 0.1), stats.norm(level, math.sqrt(0.04 * level + 0.01))),
        "gamma": (Gamma(30.0), stats.gamma(30, scale=level / 30)),
        "rayleigh": (Rayleigh(0.3), stats.rayleigh(loc=level, scale=0.3 * level)),
        "long_jacobi_is_beta": (Jacobi(time=8.0, a=2.0, b=3.0, steps=4000), stats.beta(2.0, 3.0)),
    }


@pytest.mark.parametrize("name", sorted(laws(0.5)))
def test_law_is_the_one_scipy_knows(name: str, generator: torch.Generator) -> None:
    noise, law = laws(0.4)[name]
    x1 = draws_at(noise, 0.4, generator, 4000).numpy()
    assert stats.kstest(x1, law.cdf).pvalue > ALPHA


@pytest.mark.parametrize(("gain", "offset", "level"), [(0.01, 0.0, 0.3), (2.0, 5.0, 17.0), (0.5, -1.0, 0.2)])
def test_poisson_counts_follow_poissons_law(
    gain: float, offset: float, level: float, generator: torch.Generator
) -> None:
    counts = ((draws_at(Poisson(gain, offset), level, generator) - offset) / gain).round().long().numpy()
    law = stats.poisson((level - offset) / gain)
    edges = np.arange(int(law.ppf(0.01)), int(law.ppf(0.99)) + 1)
    observed = np.array(
        [(counts <= edges[0]).sum(), *[(counts == k).sum() for k in edges[1:]], (counts > edges[-1]).sum()]
    )
    expected = DRAWS * np.array([law.cdf(edges[0]), *law.pmf(edges[1:]), law.sf(edges[-1])])
    assert stats.chisquare(observed, expected).pvalue > ALPHA


def test_jacobi_follows_its_moment_equations(generator: torch.Generator) -> None:
    """Mean and second moment against the ODEs dm/dt = s/2 (a - (a+b) m), dM/dt = s ((a+1) m - (a+b+1) M), solved by
    scipy.
    """
    from scipy.integrate import solve_ivp

    noise, x0 = Jacobi(time=0.5, a=1.5, b=0.7, s=1.2, steps=400), 0.2
    a, b, s = 1.5, 0.7, 1.2
    end = solve_ivp(
        lambda t, y: [s / 2 * (a - (a + b) * y[0]), s * ((a + 1) * y[0] - (a + b + 1) * y[1])],
        (0, 0.5),
        [x0, x0**2],
        rtol=1e-10,
        atol=1e-12,
    ).y[:, -1]
    level = torch.full((1, 1), x0, dtype=torch.float64)
    assert float(noise.mean(level)) == pytest.approx(end[0], rel=1e-6)
    assert float(noise.std(level)) ** 2 == pytest.approx(end[1] - end[0] ** 2, rel=1e-6)
    x1 = draws_at(noise, x0, generator)
    assert float(x1.mean()) == pytest.approx(end[0], abs=5 * float(x1.std()) / math.sqrt(DRAWS) + 1e-3)
    assert float(x1.square().mean()) == pytest.approx(end[1], rel=0.02)
    assert float(x1.min()) >= 0
    assert float(x1.max()) <= 1


def test_sde_runs_for_the_right_total_time(generator: torch.Generator) -> None:
    """Pure drift dx = 1 dt for T = 0.7 moves by exactly 0.7 whatever the number of steps; diffusion alone has variance
    T.
    """
    x0 = torch.zeros(20_000, 1, dtype=torch.float64)
    for steps in (1, 3, 50):
        moved = SDE(lambda x, t: torch.ones_like(x), lambda x, t: torch.zeros_like(x), time=0.7, steps=steps).sample(
            x0, generator=generator
        )
        assert torch.allclose(moved, torch.full_like(moved, 0.7))
        spread = SDE(lambda x, t: torch.zeros_like(x), lambda x, t: torch.ones_like(x), time=0.7, steps=steps).sample(
            x0, generator=generator
        )
        assert float(spread.var()) == pytest.approx(0.7, rel=5 * math.sqrt(2 / 20_000))


def test_sde_reaches_the_ornstein_uhlenbeck_law(generator: torch.Generator) -> None:
    """dx = -x dt + 0.5 dw for T = 0.3: mean x0 exp(-T), variance 0.125 (1 - exp(-2 T)); 0.5 % for Euler's own error."""
    x1 = draws_at(NOISES["sde"], 0.8, generator)
    variance = 0.125 * (1 - math.exp(-0.6))
    assert float(x1.mean()) == pytest.approx(0.8 * math.exp(-0.3), abs=5 * math.sqrt(variance / DRAWS) + 0.001)
    assert float(x1.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / DRAWS) + 0.005)


def test_composition_laws(generator: torch.Generator) -> None:
    two = Gaussian(0.3).then(Gaussian(0.4))
    assert stats.kstest(draws_at(two, 1.0, generator).numpy(), stats.norm(1.0, 0.5).cdf).pvalue > ALPHA
    x0 = torch.full((1, 1), 0.5, dtype=torch.float64)
    # Gamma then Poisson: Var = x^2/k + gain x, exactly
    assert float(Gamma(50.0).then(Poisson(0.01)).std(x0)) == pytest.approx(math.sqrt(0.25 / 50 + 0.005))
    # order matters: noise first then a multiplier scales the noise too
    late = Gamma(10.0).then(Gaussian(0.5)).sample(torch.full((400_000, 1), 2.0), generator=generator)
    early = Gaussian(0.5).then(Gamma(10.0)).sample(torch.full((400_000, 1), 2.0), generator=generator)
    assert float(late.var()) == pytest.approx(4 / 10 + 0.25, rel=0.015)
    assert float(early.var()) == pytest.approx(4.25 / 10 + 0.25, rel=0.015)
    three = Poisson(0.01).then(Gaussian(0.1)).then(Clip(0.0, 1.0))
    assert three == Poisson(0.01).then(Gaussian(0.1).then(Clip(0.0, 1.0)))


def test_a_later_stage_that_moves_values_into_its_domain_moves_the_moments() -> None:
    """Of z in N(0, 10^2) the later stage counts max(z, 0): mean 10 / sqrt(2 pi), variance 50 - 50 / pi + mean."""
    noise, dark = Gaussian(10.0).then(Poisson(1.0)), torch.zeros(2000, 1, dtype=torch.float64)
    mean = 10 / math.sqrt(2 * math.pi)
    assert float(noise.mean(dark).mean()) == pytest.approx(mean, rel=0.01)
    spread = math.sqrt(50 - 50 / math.pi + mean)
    assert float(noise.std(dark).square().mean().sqrt()) == pytest.approx(spread, rel=0.01)


def test_jacobi_without_a_drift_keeps_its_mean(generator: torch.Generator) -> None:
    noise, x0 = Jacobi(time=0.3, a=0.0, b=0.0, steps=300), torch.tensor([[0.2, 0.9]], dtype=torch.float64)
    spread = (x0 * (1 - x0) * (1 - math.exp(-0.3))).sqrt()
    torch.testing.assert_close(noise.mean(x0), x0)
    torch.testing.assert_close(noise.std(x0), spread)
    torch.testing.assert_close(Jacobi(time=0.3, a=[0.0, 0.0], b=[0.0, 0.0]).std(x0), spread)
    drawn = noise.draw(x0.expand(20_000, 2), generator)
    torch.testing.assert_close(drawn.std(0), spread[0], rtol=0.03, atol=0)


def test_values_per_channel_are_as_many_as_the_channels() -> None:
    noise = Poisson(2.0).then(Gaussian([1.0, 2.0, 3.0]))
    words = "Gaussian.sigma has 3 values, one per channel, but the data has 2 channels"
    with pytest.raises(NoiseError, match=words):
        noise.sample(torch.ones(4, 2, 8, 8))
    with pytest.raises(NoiseError, match=words):
        Scaled(noise, torch.zeros(2), torch.ones(2))
    assert noise.sample(torch.ones(4, 3)).shape == (4, 3)


def test_one_row_of_values_is_that_of_every_sample() -> None:
    noise = Gaussian(torch.tensor([[1.0, 2.0]]))
    assert noise.select(torch.tensor([5, 7])).std(torch.zeros(2, 2)).tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_camera_clips_and_rounds(generator: torch.Generator) -> None:
    camera = PoissonGaussian(2.0, 3.0).then(Clip(0, 255)).then(Quantise(1))
    x1 = camera.sample(torch.full((1000, 1), 250.0), generator=generator)
    assert float(x1.max()) == 255
    assert torch.equal(x1, x1.round())


@pytest.mark.parametrize("dims", [2, 3])
def test_correlated_noise_has_its_autocovariance(dims: int, generator: torch.Generator) -> None:
    noise = CorrelatedGaussian.cosine(0.5, a=1.0 if dims == 3 else 2.0, dims=dims)
    shape = (60, 1, 64, 64) if dims == 2 else (12, 1, 24, 24, 24)
    field = noise.sample(torch.zeros(shape, dtype=torch.float64), generator=generator)
    expected = noise.autocovariance(3)
    assert float(expected[(3,) * dims]) == pytest.approx(1.0)
    for lag in (0, 1, 2, 3):
        a, b = field[..., lag:], field[..., : field.shape[-1] - lag]
        measured = float((a * b).mean()) / 0.25
        assert measured == pytest.approx(float(expected[(*(3,) * (dims - 1), 3 + lag)]), abs=0.02)
    # the paper's kernel, computed independently with numpy on a large grid
    r = np.hypot(*np.meshgrid(np.arange(-40, 41), np.arange(-40, 41)))
    if dims == 2:
        g = np.cos(r) * np.exp(-(r**2) / 8)
        spectrum = np.abs(np.fft.fft2(g)) ** 2
        covariance = np.fft.ifft2(spectrum).real / np.fft.ifft2(spectrum).real[0, 0]
        assert np.allclose(expected[3, 3:].numpy(), covariance[0, :4], atol=1e-5)


def test_correlated_noise_does_not_wrap_around(generator: torch.Generator) -> None:
    field = CorrelatedGaussian.cosine(1.0).sample(torch.zeros(3000, 1, 16, 16), generator=generator)
    wrapped = CorrelatedGaussian.cosine(1.0, periodic=True).sample(torch.zeros(3000, 1, 16, 16), generator=generator)
    first_last = [float((f[..., 0] * f[..., -1]).mean()) for f in (field, wrapped)]
    assert abs(first_last[0]) < 0.03
    assert first_last[1] > 0.4


def test_spectrum_gives_back_its_kernel(generator: torch.Generator) -> None:
    noise = CorrelatedGaussian.cosine(1.0)
    grid = torch.zeros(64, 64, dtype=torch.float64)
    k = noise.kernel.shape[0]
    grid[:k, :k] = noise.kernel
    spectrum = torch.fft.fft2(grid).abs().square()
    again = CorrelatedGaussian.from_spectrum(1.0, spectrum)
    assert torch.allclose(again.autocovariance(5), noise.autocovariance(5), atol=1e-3)


def test_a_cosine_kernel_without_waves_is_a_gaussian_blur() -> None:
    """The correlation of white noise blurred by exp(-r^2 / 2 a^2) is exp(-r^2 / 4 a^2)."""
    reach = np.arange(-4, 5)
    law = np.exp(-np.add.outer(reach**2, reach**2) / (4 * 1.5**2))
    np.testing.assert_allclose(CorrelatedGaussian.cosine(1.0, 1.5, omega=0).autocovariance(4), law, atol=1e-6)
    assert parse("cosine:sigma=2,a=1.5,omega=0") == CorrelatedGaussian.cosine(2.0, 1.5, omega=0)
    assert CorrelatedGaussian.cosine(1.0, 1.5) == CorrelatedGaussian.cosine(1.0, 1.5, omega=1.0)


def test_channel_correlation_is_drawn(generator: torch.Generator) -> None:
    matrix = [[1.0, 0.7, 0.0], [0.7, 1.0, -0.4], [0.0, -0.4, 1.0]]
    for noise in (
        Gaussian([1.0, 2.0, 3.0], channel_correlation=matrix),
        CorrelatedGaussian([1.0, 2.0, 3.0], [[1.0]], channel_correlation=matrix),
    ):
        z = noise.sample(torch.zeros(20_000, 3, 1, 1), generator=generator).flatten(1)
        assert np.allclose(np.corrcoef(z.T.numpy()), matrix, atol=0.03)
        assert np.allclose(z.std(0).numpy(), [1, 2, 3], rtol=0.03)


def test_parameters_by_channel_and_by_sample(generator: torch.Generator) -> None:
    x0 = torch.zeros(4000, 2, 2, 2)
    by_channel = Gaussian([1.0, 5.0]).sample(x0, generator=generator)
    assert by_channel.std(dim=(0, 2, 3)).tolist() == pytest.approx([1.0, 5.0], rel=0.03)
    sigma = torch.linspace(0.5, 3, 4000)[:, None]
    by_sample = Gaussian(sigma)
    assert torch.allclose(by_sample.sample(x0, generator=generator).flatten(1).std(1).mean(), sigma.mean(), rtol=0.05)
    chosen = by_sample.select(torch.tensor([0, 3999]))
    assert chosen.std(torch.zeros(2, 1))[:, 0].tolist() == pytest.approx([0.5, 3.0])
    composed = Scaled(by_sample.then(Gaussian(1.0)), torch.zeros(2), torch.ones(2)).select(torch.tensor([3999]))
    assert float(composed.std(torch.zeros(1, 2))[0, 0]) == pytest.approx(math.sqrt(10))


def test_same_seed_same_draw_and_input_untouched(noise: Noise) -> None:
    x0 = torch.rand(3, 2, 8, 8)
    before = x0.clone()
    first, again, other = (noise.sample(x0, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(x0, before)
    assert isinstance(noise, Simulator) or not torch.equal(first, other)
    assert (first.shape, first.dtype) == (x0.shape, x0.dtype)
    state = torch.random.get_rng_state()
    noise.sample(x0, generator=torch.Generator().manual_seed(1))
    assert torch.equal(state, torch.random.get_rng_state())


def test_numpy_in_numpy_out() -> None:
    x1 = Poisson(0.1).sample(np.full((2, 1, 4, 4), 3, dtype=np.uint16), generator=torch.Generator().manual_seed(0))
    assert isinstance(x1, np.ndarray)
    assert x1.dtype == np.float32


def test_scaling_carries_every_noise(noise: Noise) -> None:
    """(noise(x) - shift) / scale and the scaled noise of (x - shift) / scale are one draw, mean, std and domain."""
    x = 0.1 + 0.8 * torch.rand(3, 2, 6, 6, dtype=torch.float64)
    shift, scale = torch.tensor([0.3, -0.2], dtype=torch.float64), torch.tensor([0.5, 7.0], dtype=torch.float64)
    scaled = Scaled(noise, shift, scale)

    def inside(v: torch.Tensor) -> torch.Tensor:
        return (v - shift[:, None, None]) / scale[:, None, None]

    outer = noise.sample(x, generator=torch.Generator().manual_seed(5))
    inner = scaled.draw(inside(x), torch.Generator().manual_seed(5))
    assert torch.allclose(inner, inside(outer), atol=1e-9)
    assert torch.allclose(scaled.mean(inside(x)), inside(noise.mean(x)), atol=1e-9)
    assert torch.allclose(scaled.std(inside(x)), noise.std(x) / scale[:, None, None], atol=1e-9)
    wild = 10 * torch.randn(3, 2, 6, 6, dtype=torch.float64)
    assert torch.allclose(scaled.project(inside(wild)), inside(noise.project(wild)), atol=1e-9)


def test_symmetry_of_directed_noise() -> None:
    turn, keep = (1, 0), (0, 1)
    none, one, both = (False, False), (True, False), (True, True)
    round_kernel = CorrelatedGaussian.cosine(1.0)
    assert all(round_kernel.invariant(p, f) for p in (turn, keep) for f in (none, one, both))
    line = CorrelatedGaussian(1.0, torch.ones(1, 5))
    assert line.invariant(keep, one)
    assert not line.invariant(turn, none)
    diagonal = CorrelatedGaussian(1.0, torch.eye(4))
    assert diagonal.invariant(keep, both)
    assert diagonal.invariant(turn, none)
    assert not diagonal.invariant(keep, one)
    assert not Gaussian(1.0).then(line).invariant(turn, none)
    assert Gaussian(1.0).invariant(turn, one)


def test_words_round_trip(noise: Noise) -> None:
    if noise.to_dict()["kind"] == "Unsaved":
        again = from_dict(noise.to_dict())
        with pytest.raises(NoiseError, match="Python code"):
            again.sample(torch.zeros(1, 1))
    else:
        assert from_dict(noise.to_dict()) == noise


def test_a_noise_that_holds_arrays_prints_in_one_line() -> None:
    noise = CorrelatedGaussian.cosine(25.0, a=2.0)
    size = "x".join(map(str, noise.kernel.shape)).replace("x", " x ")
    assert repr(noise) == str(noise) == f"CorrelatedGaussian(sigma=25, kernel={size} values)"
    assert repr([noise.then(Clip(0.0, 1.0))]).count("\n") == 0
    assert repr(Gaussian(0.1)) == "Gaussian(sigma=0.1, channel_correlation=None)"


def test_text_is_read() -> None:
    assert parse("gaussian:sigma=25") == Gaussian(25)
    assert parse("cosine:sigma=25,a=2") == CorrelatedGaussian.cosine(25, 2)
    assert as_noise("poisson-gaussian: gain=2, sigma=3, offset=-1") == PoissonGaussian(2, 3, -1)
    assert parse("poisson:gain=0.01 + gaussian:sigma=0.04") == Poisson(0.01).then(Gaussian(0.04))
    with pytest.raises(NoiseError, match="did you mean gaussian"):
        parse("gausian:sigma=25")
    with pytest.raises(NoiseError, match="name=number"):
        parse("gaussian:sigma=much")
    with pytest.raises(NoiseError, match="takes gain, offset"):
        parse("poisson:sigma=3")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Gaussian(-1.0), "not negative"),
        (lambda: Gaussian(float("nan")), "finite"),
        (lambda: Gaussian("much"), "must be a number"),
        (lambda: Gaussian(torch.ones(2, 2, 2)), "one number"),
        (lambda: Poisson(0.0), "greater than 0"),
        (lambda: Gamma(0.0), "greater than 0"),
        (lambda: Quantise(0.0), "greater than 0"),
        (lambda: Clip(1.0, 0.0), "lower < upper"),
        (lambda: Jacobi(time=0.0), "time > 0"),
        (lambda: parse("jacobi:s=0"), "s must be greater than 0"),
        (lambda: parse("gaussian:sigma=1,sigma=30"), "says sigma twice"),
        (lambda: parse("gaussian:sigma=[1,2]"), "one number per channel in a YAML file"),
        (lambda: CorrelatedGaussian(1.0, torch.zeros(3, 3)), "non-zero"),
        (lambda: CorrelatedGaussian.cosine(1.0, 0.0), "width a > 0"),
        (lambda: parse("cosine:sigma=1,a=2,omega=inf"), "finite omega"),
        (lambda: CorrelatedGaussian.from_spectrum(1.0, -torch.ones(4, 4)), "not negative"),
        (lambda: Gaussian(1.0, channel_correlation=[[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
        (lambda: Poisson(1.0).sample(torch.tensor([[-1.0]])), r"needs clean values in \[0, inf\]"),
        (lambda: Jacobi().sample(torch.tensor([[1.5]])), r"\[0, 1\]"),
        (lambda: Gaussian(1.0).sample(torch.tensor([[float("nan")]])), "NaN"),
        (lambda: CorrelatedGaussian.cosine(1.0).sample(torch.zeros(2, 3)), "2D correlated noise needs"),
        (lambda: as_noise(3), "noise must be"),
    ],
)
def test_bad_words_get_one_sentence(build, words: str) -> None:
    with pytest.raises((NoiseError, InputError), match=words) as caught:
        build()
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, g: x[:1], "shape"),
        (lambda x, g: x / 0, "NaN or infinite"),
        (lambda x, g: x + torch.rand(x.shape), "same generator"),
        (lambda x, g: x.add_(1), "in place"),
    ],
)
def test_user_function_is_checked_on_first_use(function, words: str) -> None:
    with pytest.raises(NoiseError, match=words):
        FunctionNoise(function).sample(torch.rand(4, 3))


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 100), st.floats(-10, 10), st.floats(0, 1000))
def test_poisson_variance_is_gain_times_signal(gain: float, offset: float, above: float) -> None:
    x0 = torch.full((1, 1), offset + above, dtype=torch.float64)
    assert float(Poisson(gain, offset).std(x0)) ** 2 == pytest.approx(gain * above, rel=1e-6, abs=1e-9)


def test_domain_of_jacobi_is_the_unit_interval() -> None:
    assert Jacobi().domain == UNIT
    assert Jacobi().project(torch.tensor([[-1.0, 0.5, 2.0]])).tolist() == [[0.0, 0.5, 1.0]]
