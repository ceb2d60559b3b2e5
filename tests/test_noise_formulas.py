"""What a noise says of itself, and its draws from given randomness, against formulas written down here with numpy."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from inverseflow.errors import NoiseError
from inverseflow.losses import inverse_flow_matching_loss, solve
from inverseflow.noise import (
    Clip,
    Composition,
    CorrelatedGaussian,
    CorrelatedSignal,
    Domain,
    FunctionNoise,
    Gamma,
    Gaussian,
    Molecules,
    Noise,
    Poisson,
    PoissonGaussian,
    Quantise,
    Rayleigh,
    SignalDependent,
    Simulator,
    from_dict,
)
from inverseflow.noise.file import one_after_the_other, read_noise, write_noise
from inverseflow.process import Bridge
from inverseflow.times import karras_times

X = np.array([[0.6, 1.7, 3.2], [2.5, 0.9, 4.1]])  # (B, C): every term of every formula counts at these
KERNEL = np.outer([1.0, 2.0, 1.0], [0.5, 3.0, 0.5])


def like_x(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, np.float64))


FORMULAS: list[tuple[Noise, Any, Any]] = [
    (Gaussian(0.3), X, 0.3),
    (Gaussian([0.3, 0.5, 0.7]), X, [[0.3, 0.5, 0.7]] * 2),
    (Gaussian(like_x([[0.3], [0.6]])), X, [[0.3] * 3, [0.6] * 3]),
    (Poisson(0.7, offset=0.5), X, np.sqrt(0.7 * (X - 0.5))),
    (PoissonGaussian(0.7, 0.3, offset=0.5), X, np.sqrt(0.7 * (X - 0.5) + 0.09)),
    (SignalDependent(0.6, 0.4, 0.3), X, np.sqrt(0.16 * X**1.2 + 0.09)),
    (SignalDependent(1.0, [0.1, 0.2, 0.3], 0.0), X, X * [0.1, 0.2, 0.3]),
    (Gamma(7.0), X, X / math.sqrt(7)),
    (Gamma([4.0, 9.0, 16.0]), X, X / [2, 3, 4]),
    (Rayleigh(0.4), X * (1 + 0.4 * math.sqrt(math.pi / 2)), X * 0.4 * math.sqrt(2 - math.pi / 2)),
    (CorrelatedSignal(0.3, KERNEL, 0.7, 1.0, 0.2), X, np.sqrt(0.09 + 0.7 * (X - 1.0).clip(0) + (0.2 * X) ** 2)),
    (Clip(1.0, [2.0, 1.5, 4.0]), X.clip(1.0, [2.0, 1.5, 4.0]), 0.0),
    (Quantise(0.5), np.round(X / 0.5) * 0.5, 0.0),
    (Simulator(lambda x: x**2), X**2, 0.0),
    (Gamma(4.0).then(Poisson(0.5)).then(Gaussian(0.2)), X, np.sqrt(X**2 / 4 + 0.5 * X + 0.04)),
    (
        Rayleigh(0.4).then(PoissonGaussian(0.5, 0.2)),
        X * (1 + 0.4 * math.sqrt(math.pi / 2)),
        np.sqrt((X * 0.4) ** 2 * (2 - math.pi / 2) + 0.5 * X * (1 + 0.4 * math.sqrt(math.pi / 2)) + 0.04),
    ),
]


@pytest.mark.parametrize(("noise", "mean", "std"), FORMULAS, ids=[str(n) for n in range(len(FORMULAS))])
def test_mean_and_std_are_the_formulas(noise: Noise, mean: Any, std: Any) -> None:
    x0 = like_x(X)
    np.testing.assert_allclose(noise.mean(x0), mean, rtol=1e-12)
    np.testing.assert_allclose(np.broadcast_to(noise.std(x0), X.shape), np.broadcast_to(std, X.shape), rtol=1e-12)
    torch.testing.assert_close(x0, like_x(X))


def test_moments_without_a_formula_come_from_draws() -> None:
    """Of a stage after the first that is not centred, or whose variance is no straight line."""
    x0 = torch.full((1, 4000), 2.0, dtype=torch.float64)
    for noise, mean, std in (
        (Gaussian(0.5).then(Rayleigh(0.4)), 2 * (1 + 0.4 * math.sqrt(math.pi / 2)), None),
        (Gaussian(0.5).then(Gamma(4.0)), 2.0, math.sqrt(0.25 + (4 + 0.25) / 4)),
    ):
        assert float(noise.mean(x0).mean()) == pytest.approx(mean, rel=0.005)
        if std:
            assert float(noise.std(x0).mean()) == pytest.approx(std, rel=0.005)
    assert Composition((Gaussian(0.5), Gamma(4.0))).centred is False


def test_draws_of_signal_dependent_noises_have_the_formulas_spread() -> None:
    """Large fields at two levels, each of which makes another term count."""
    for level in (0.7, 3.0):
        x0 = torch.full((1, 1, 600, 600), level, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        spread = CorrelatedSignal(0.3, KERNEL, 0.7, 1.0, 0.2).sample(x0, generator=generator) - level
        assert float(spread.std()) == pytest.approx(
            math.sqrt(0.09 + 0.7 * max(level - 1, 0) + (0.2 * level) ** 2), rel=0.01
        )
        spread = SignalDependent(0.6, 0.4, 0.3).sample(x0, generator=generator) - level
        assert float(spread.std()) == pytest.approx(math.sqrt(0.16 * level**1.2 + 0.09), rel=0.01)


# --- correlated noise: the kernel


def narrowest(kernel: np.ndarray) -> np.ndarray:
    """The smallest window around the centre that has all but a millionth of the energy."""
    for reach in itertools.count():
        window = kernel[tuple(slice(max(n // 2 - reach, 0), n // 2 + reach + 1) for n in kernel.shape)]
        if (window**2).sum() >= (1 - 1e-6) * (kernel**2).sum():
            return window
    raise AssertionError


@pytest.mark.parametrize("shape", [(21,), (24, 31), (9, 12, 10)])
def test_a_spectrum_gives_the_narrowest_kernel_that_has_it(shape: tuple[int, ...]) -> None:
    """The kernel of zero phase: by numpy, from the spectrum of a kernel that is no square."""
    rng = np.random.default_rng(0)
    axes = range(len(shape))
    power = np.abs(np.fft.fftn(rng.standard_normal((3, 4, 2)[: len(shape)]), s=shape, axes=axes)) ** 2 + 0.1
    kernel = np.fft.fftshift(np.fft.ifftn(np.sqrt(power)).real)
    expected = narrowest(kernel)
    noise = CorrelatedGaussian.from_spectrum(2.0, power)
    assert noise.kernel.shape == expected.shape
    np.testing.assert_allclose(noise.kernel, expected / np.sqrt((expected**2).sum()), atol=1e-12)
    assert noise.sigma == 2.0
    assert noise.periodic is False
    assert CorrelatedGaussian.from_spectrum(2.0, power.tolist(), periodic=True).periodic is True


def test_a_short_kernel_in_a_large_spectrum_is_found_whole() -> None:
    power = np.abs(np.fft.fft(np.array([1.0, 2.0, 1.0]), 64)) ** 2
    np.testing.assert_allclose(
        CorrelatedGaussian.from_spectrum(1.0, power).kernel, np.array([1, 2, 1]) / math.sqrt(6), atol=1e-9
    )
    np.testing.assert_allclose(
        CorrelatedGaussian.from_spectrum(1.0, [4, 1, 0, 1]).kernel.sum() ** 2, 4 / 1.5, rtol=1e-6
    )
    assert CorrelatedGaussian.from_spectrum(1.0, [1.0, 0.5, 0.5]).kernel.ndim == 1  # no value above 1
    white = CorrelatedGaussian.from_spectrum(1.0, np.full((8, 8), 3.0))
    np.testing.assert_allclose(white.kernel, [[1.0]], atol=1e-12)
    assert CorrelatedGaussian.from_spectrum(1.0, np.eye(1, 16, 0)[0]).kernel.numel() == 16  # one wave: all of it


@pytest.mark.parametrize(
    "spectrum",
    [[1.0, -1e-9, 1.0], [0.0, 0.0], [math.nan, 1.0], np.ones((2, 2, 2, 2)), 3.0],
    ids=["negative", "zero", "nan", "4D", "a number"],
)
def test_what_is_no_spectrum_is_refused(spectrum: Any) -> None:
    with pytest.raises(NoiseError, match="must be a finite 1D, 2D or 3D array, not negative and not all zero"):
        CorrelatedGaussian.from_spectrum(1.0, spectrum)


@pytest.mark.parametrize("size", [(12, 10), (4, 3), (2, 9)])
def test_periodic_noise_is_a_circular_convolution(size: tuple[int, int]) -> None:
    """By numpy from the same white noise; where the kernel is larger than the image it goes round it."""
    noise = CorrelatedGaussian(0.7, np.random.default_rng(0).uniform(0.5, 1.5, (5, 7)), periodic=True)
    x0 = torch.zeros(2, 3, *size, dtype=torch.float64)
    white = torch.randn(x0.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).numpy()
    folded = np.zeros(size)
    for (y, x), value in np.ndenumerate(noise.kernel.numpy()):
        folded[y % size[0], x % size[1]] += value
    if size[0] < 5 or size[1] < 7:
        folded /= np.sqrt((folded**2).sum())
    expected = np.zeros(x0.shape)
    for (y, x), value in np.ndenumerate(folded):
        expected += value * np.roll(white, (y, x), (2, 3))
    drawn = noise.sample(x0, generator=torch.Generator().manual_seed(4))
    np.testing.assert_allclose(drawn, 0.7 * expected, atol=1e-12)


def test_noise_that_is_not_periodic_is_a_plain_convolution() -> None:
    noise = CorrelatedGaussian([0.7, 2.0], np.random.default_rng(0).uniform(0.5, 1.5, (3, 4)))
    x0 = torch.zeros(1, 2, 6, 5, dtype=torch.float64)
    white = torch.randn((1, 2, 8, 8), generator=torch.Generator().manual_seed(4), dtype=torch.float64).numpy()
    expected = np.zeros(x0.shape)
    for (y, x), value in np.ndenumerate(noise.kernel.numpy()):
        expected += value * white[:, :, 2 - y : 8 - y, 3 - x : 8 - x]
    drawn = noise.sample(x0, generator=torch.Generator().manual_seed(4))
    np.testing.assert_allclose(drawn, expected * np.array([0.7, 2.0])[:, None, None], atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_a_kernel_that_is_read_back_is_the_same_to_the_last_bit(seed: int) -> None:
    """Else a training would not go on with the noise that its own file holds."""
    noise = CorrelatedGaussian(1.0, np.random.default_rng(seed).standard_normal((3, 5)))
    again = from_dict(noise.to_dict())
    assert torch.equal(again.kernel, noise.kernel)
    assert float(noise.kernel.square().sum()) == pytest.approx(1, abs=1e-12)


def test_the_autocovariance_is_that_of_the_kernel() -> None:
    kernel = np.random.default_rng(0).standard_normal((2, 5))
    noise = CorrelatedGaussian(3.0, kernel)
    found, unit = noise.autocovariance(6), kernel / np.sqrt((kernel**2).sum())
    assert found.shape == (13, 13)
    for dy, dx in itertools.product(range(-6, 7), repeat=2):
        pairs = [unit[y, x] * unit[y + dy, x + dx] for y, x in np.ndindex(2, 5) if 0 <= y + dy < 2 and 0 <= x + dx < 5]
        assert float(found[6 + dy, 6 + dx]) == pytest.approx(sum(pairs), abs=1e-12)


def test_a_kernel_knows_its_symmetries() -> None:
    square, wide, slanted = np.ones((3, 3)), np.ones((1, 3)), np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    for noise_of in (lambda k: CorrelatedGaussian(1.0, k), lambda k: CorrelatedSignal(1.0, k)):
        assert all(noise_of(square).invariant(p, f) for p in ((0, 1), (1, 0)) for f in ((False, True), (True, False)))
        assert noise_of(wide).invariant((0, 1), (True, True))
        assert not noise_of(wide).invariant((1, 0), (False, False))
        assert noise_of(slanted).invariant((1, 0), (False, False))
        assert not noise_of(slanted).invariant((0, 1), (False, True))
        assert not noise_of(square).invariant((0, 1, 2), (False, False, False))


# --- counting


def test_counts_are_drawn_from_poisson_s_law_at_the_rate_of_each_value() -> None:
    noise = Poisson([0.5, 2.0], offset=[1.0, -3.0])
    x0 = torch.tensor([2.0, 5.0]).double().repeat(40_000, 1)
    counts = (noise.sample(x0, generator=torch.Generator().manual_seed(0)) - torch.tensor([1.0, -3.0])) / torch.tensor(
        [0.5, 2.0]
    )
    torch.testing.assert_close(counts, counts.round())
    for column, rate in zip(counts.T, (2.0, 4.0), strict=True):
        for k in range(5):
            share = math.exp(k * math.log(rate) - rate - special.gammaln(k + 1))
            assert float((column == k).double().mean()) == pytest.approx(share, abs=5 * math.sqrt(share / 40_000))


# --- what is not drawn: files, words, the ODE


def test_stages_come_from_files_and_words_in_order(tmp_path: Path) -> None:
    write_noise(tmp_path / "first.YAML", Poisson(0.5, 2.0))
    write_noise(tmp_path / "third.yml", Clip(0.0, 9.0))
    found = one_after_the_other([str(tmp_path / "first.YAML"), "gaussian:sigma=3", str(tmp_path / "third.yml")])
    assert found == Poisson(0.5, 2.0).then(Gaussian(3.0)).then(Clip(0.0, 9.0))
    assert one_after_the_other(["gaussian:sigma=3"]) == Gaussian(3.0)
    assert read_noise(tmp_path / "third.yml") == Clip(0.0, 9.0)


def test_numbers_without_a_point_are_numbers(tmp_path: Path) -> None:
    """YAML reads 1e-4 as text."""
    (tmp_path / "camera.yaml").write_text("noise:\n  kind: PoissonGaussian\n  gain: 1e-4\n  sigma: [2E-3, 3.e-3]\n")
    assert read_noise(tmp_path / "camera.yaml") == PoissonGaussian(1e-4, [2e-3, 3e-3])
    (tmp_path / "text.yaml").write_text("noise: gaussian:sigma=1e2\n")
    assert read_noise(tmp_path / "text.yaml") == Gaussian(100.0)


def test_a_composition_is_read_back_and_needs_stages() -> None:
    noise = Gamma(4.0).then(Poisson(0.5))
    assert from_dict(noise.to_dict()) == noise
    assert from_dict(
        {"kind": "composition", "noises": [Gamma(4.0).to_dict()]} | {"kind": "Composition"}
    ) == Composition((Gamma(4.0),))
    for noises in (None, [], "gamma", [3], {}):
        with pytest.raises(NoiseError, match="needs noises, a list of at least one"):
            from_dict({"kind": "Composition", "noises": noises})


def test_noises_that_say_the_same_are_equal() -> None:
    assert Gaussian(1) == Gaussian(1.0)
    assert hash(Gaussian([1, 2])) == hash(Gaussian([1.0, 2.0]))
    assert len({Gaussian(1.0), Gaussian(1.0), Gaussian(2.0)}) == 2
    assert Gaussian(1.0) != "gaussian"


def test_a_function_is_checked_once_on_what_it_first_sees() -> None:
    seen: list[int] = []

    def function(x0: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        seen.append(len(x0))
        return x0 + torch.randn(x0.shape, generator=generator)

    noise = FunctionNoise(function)
    before = noise.sample(torch.zeros(5, 1), generator=torch.Generator().manual_seed(0))
    assert seen == [5, 5, 5]  # twice to see that it repeats itself, once to draw
    noise.sample(torch.zeros(7, 1), generator=torch.Generator().manual_seed(0))
    assert seen == [5, 5, 5, 7]
    torch.testing.assert_close(before, torch.randn(5, 1, generator=torch.Generator().manual_seed(0)))
    assert not noise.invariant((0, 1), (True, False))
    assert FunctionNoise(function, pointwise=True).invariant((1, 0), (True, False))
    assert not Simulator(lambda x: x).invariant((0, 1), (False, False))


def test_the_ode_is_solved_to_the_tolerance_that_is_asked_for() -> None:
    """dx/dt = 3 cos(3 t) x, from t = 1 back to 0; every call sees one time for each sample, in the data's type."""
    x, calls = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64), []

    def velocity(state: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        assert t.shape == (3,)
        assert t.dtype == state.dtype == torch.float64
        calls.append(float(t[0]))
        return 3 * torch.cos(3 * t)[:, None] * state

    exact = x * math.exp(-math.sin(3))
    counts, errors = [], []
    for options in ({"rtol": 1e-2, "atol": 1e-2}, {}, {"rtol": 1e-9, "atol": 1e-9}, {"rtol": 1e-9, "atol": 1e-2}):
        calls.clear()
        end = solve(velocity, x, torch.tensor([1.0, 0.0]), method="dopri5", **options)
        counts.append(len(calls))
        errors.append(float(((end - exact) / exact).abs().max()))
    assert counts[0] < counts[1] < counts[2]
    assert counts[3] < counts[2]
    assert errors[0] > 1e-3
    assert errors[1] < 1e-4
    assert errors[2] < 1e-8


def test_inverse_flow_matching_walks_back_with_the_solver_it_is_given() -> None:
    """The estimate that the loss is computed on, by hand: x1 - 1 for a velocity of 1; and the process may move it."""
    times, x1 = karras_times(6), torch.full((2, 3), 2.0)
    seen: list[str] = []

    def loss(**options: Any) -> torch.Tensor:
        return inverse_flow_matching_loss(
            lambda x, t: seen.append("net") or torch.ones_like(x), x1, Bridge(Gaussian(0.1)), times,
            generator=torch.Generator().manual_seed(0), **options,
        )  # fmt: skip

    loss(solver="euler")
    euler = len(seen)
    seen.clear()
    loss()
    assert len(seen) - 1 == 2 * (euler - 1)  # midpoint looks twice in every step; the loss itself once
    seen.clear()
    loss(estimator=lambda x, t: torch.ones_like(x))
    assert len(seen) == 1


def test_molecules_are_counted_again_as_the_docstring_says() -> None:
    """Components, profile, Poisson at the cell's depth, log-normalised, components: by numpy but for the counts."""
    rng = np.random.default_rng(0)
    loadings, centre = np.linalg.qr(rng.standard_normal((6, 2)))[0] * [1.0, 3.0], rng.uniform(0.5, 2.0, 6)
    depth, target, x = np.array([[300.0], [4000.0]]), 100.0, rng.standard_normal((2, 2)) * 2
    noise = Molecules(loadings.tolist(), centre, like_x(depth), target)
    genes = (x @ (loadings / (loadings**2).sum(0)).T + centre).clip(0)
    profile = np.expm1(genes)
    rate = depth * profile / profile.sum(1, keepdims=True)
    counts = torch.poisson(like_x(rate), torch.Generator().manual_seed(3)).numpy()
    expected = (np.log1p(target * counts / counts.sum(1, keepdims=True)) - centre) @ loadings
    np.testing.assert_allclose(noise.sample(like_x(x), generator=torch.Generator().manual_seed(3)), expected, rtol=1e-9)
    assert not noise.invariant((0,), (True,))
    # A cell without any molecule, and one whose profile is empty, are still numbers.
    empty = Molecules(loadings, centre, 0.0, target).sample(like_x(x))
    np.testing.assert_allclose(empty, np.broadcast_to(-centre @ loadings, (2, 2)), rtol=1e-9)
    nothing = Molecules(loadings, np.full(6, -50.0), 10.0, target).sample(like_x(np.zeros((1, 2))))
    assert bool(torch.isfinite(nothing).all())
    with pytest.raises(NoiseError, match=r"have 2 components, not \(3,\)"):
        noise.sample(torch.zeros(2, 3))
    for wrong in ((np.ones(6), centre), (loadings, np.ones(5)), (loadings, np.ones((6, 2)))):
        with pytest.raises(NoiseError, match="needs loadings"):
            Molecules(*wrong, 10.0, target)


def test_the_paper_s_kernel_is_the_default_and_odd() -> None:
    noise = CorrelatedGaussian.cosine(1.0)
    r = np.hypot(*np.meshgrid(np.arange(-12, 13), np.arange(-12, 13)))
    kernel = np.cos(r) * np.exp(-(r**2) / 8)
    np.testing.assert_allclose(noise.kernel, kernel / np.sqrt((kernel**2).sum()), atol=1e-12)
    assert CorrelatedGaussian.cosine(1.0, 1.0, dims=1).kernel.shape == (13,)
    assert CorrelatedGaussian.cosine(1.0, 0.5, dims=3).kernel.shape == (7, 7, 7)
    for wrong in ({"a": math.inf}, {"a": 0.0}, {"omega": math.inf}, {"dims": 4}, {"a": 1e7}, {"a": 20.0, "dims": 3}):
        with pytest.raises(NoiseError, match="A cosine kernel"):
            CorrelatedGaussian.cosine(1.0, **wrong)


def test_bounds_of_other_samples_count_as_the_widest() -> None:
    """A noise with an offset for each of two samples, asked about three new ones."""
    domain = Domain(like_x([[1.0, 10.0], [2.0, 5.0]]), like_x([[3.0, 20.0], [4.0, 15.0]]))
    x = like_x([[0.0, 0.0], [30.0, 30.0]])
    np.testing.assert_allclose(domain.clamp(x), [[1.0, 10.0], [4.0, 15.0]])
    np.testing.assert_allclose(domain.clamp(like_x([[0.0, 0.0], [30.0, 30.0], [2.0, 7.0]])), [[1, 5], [4, 20], [2, 7]])
    np.testing.assert_allclose(Domain(like_x([1.0, 2.0])).clamp(torch.zeros(3, 2)), [[1, 2]] * 3)
    np.testing.assert_allclose(Domain(1.0, like_x([1.5, 2.0])).clamp(x), [[1, 1], [1.5, 2]])


def test_a_noise_file_may_be_nested_so_deep_and_no_deeper(tmp_path: Path) -> None:
    """And what is wrong is said with its line."""
    path = tmp_path / "n.yaml"
    for depth, words in ((16, "has no noise in it"), (17, r"line 2: nested too deeply")):
        path.write_text("about:\n  " + "[" * (depth - 1) + "1" + "]" * (depth - 1) + "\n")
        with pytest.raises(NoiseError, match=words):
            read_noise(path)
    path.write_text("about:\n" + "- [1]\n" * 40 + "noise: gaussian:sigma=2\n")  # wide, not deep
    assert read_noise(path) == Gaussian(2.0)
    path.write_text("noise: gaussian:sigma=2\nthen: &x [1]\nmore: *x\n")
    with pytest.raises(NoiseError, match=r"line 3: an alias, which a noise does not need\); correct it"):
        read_noise(path)
    path.write_bytes(b"noise: \xff\n")
    with pytest.raises(NoiseError, match=r"is not YAML as a noise is written; correct it"):
        read_noise(path)
    write_noise(path, Poisson(0.5, 2.0), overwrite=True)
    assert path.read_text().splitlines() == ["noise: {kind: Poisson, gain: 0.5, offset: 2.0}"]
