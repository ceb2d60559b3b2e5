"""Correlated noise: how blocks are chosen, what is made of their spectrum, and the kernel of two numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from inverseflow import InputError, NoiseEstimate, estimate_noise
from inverseflow.estimate import blocks, kernel, shape, spectrum
from inverseflow.estimate.levels import Levels
from inverseflow.noise import CorrelatedGaussian, CorrelatedSignal, Gaussian, Noise
from test_estimate import SIZE, error, noisy, scenes


def blur(sigma: float, size: float = 0.1) -> CorrelatedGaussian:
    return CorrelatedGaussian.cosine(size, sigma, omega=0.0)


def pure(noise: Noise, count: int, seed: int = 0) -> np.ndarray:
    """Noise on a constant image: (count, SIZE, SIZE)."""
    x = noise.sample(np.full((count, 1, SIZE, SIZE), 20.0), generator=torch.Generator().manual_seed(seed))
    return x[:, 0].astype(np.float32)


def all_blocks(images: np.ndarray) -> spectrum.Spectrum:
    """The spectrum of every block, none chosen."""
    power = np.concatenate([spectrum.periodograms(image, Levels())[1] for image in images]).mean(0)
    covariance = spectrum.covariance_of(power)
    middle = covariance[spectrum.REACH, spectrum.REACH]
    return spectrum.Spectrum(
        covariance / middle, float(middle), 0.0, (1, 1), len(images) * 112.0, power.reshape(32, -1)
    )


SHAPES = {"paper": (2.0, 1.0), "blur": (1.2, 0.0), "narrow": (0.7, 0.0), "rings": (2.5, 0.6)}


@pytest.mark.parametrize("name", SHAPES)
def test_two_numbers_are_found_again(name: str) -> None:
    a, omega = SHAPES[name]
    true = CorrelatedGaussian.cosine(0.1, a, omega=omega)
    found = shape.fitted(all_blocks(pure(true, 8)))
    assert found.shape is not None
    assert np.sqrt(found.scale) == pytest.approx(0.1, rel=0.02)
    law = true.autocovariance(spectrum.REACH).numpy()
    assert np.abs(found.correlation - law).max() < 0.02  # a narrow kernel does not tell its two numbers apart
    if name in ("paper", "rings"):
        assert found.shape == pytest.approx((a, omega), rel=0.03)


def test_kernels_of_another_shape_stay_as_they_were_measured() -> None:
    for other in (np.ones((3, 3)), np.array([[1.0, 2.0, 1.0]]), np.array([[1.0, 0.25]])):
        measured = replace(all_blocks(pure(CorrelatedGaussian(0.1, other), 4)), blocks=14.0)  # as many as one image has
        assert shape.fitted(measured) is measured
        assert shape.fitted(measured, always=True).shape is not None


def test_the_kernel_can_be_asked_for() -> None:
    images = noisy(CorrelatedGaussian.cosine(0.1), scenes(4, seed=3))
    auto, measured, parametric = (
        estimate_noise(images, axes="SYX", kernel=how) for how in ("auto", "measured", "parametric")
    )
    assert auto.shape == parametric.shape == pytest.approx((2, 1), rel=0.1)
    assert measured.shape is None
    law = CorrelatedGaussian.cosine(0.1).autocovariance(12).numpy()
    off = {how: np.linalg.norm(found.autocorrelation - law) for how, found in (("auto", auto), ("measured", measured))}
    assert off["auto"] < 0.5 * off["measured"]
    assert "like cosine:a=" in str(auto)
    assert "like cosine" not in str(measured)
    box = estimate_noise(noisy(CorrelatedGaussian(0.1, np.ones((3, 3))), scenes(4)), axes="SYX")
    assert box.shape is None
    with pytest.raises(InputError, match="no kernel 'round'"):
        estimate_noise(images, axes="SYX", kernel="round")


def test_the_shape_survives_yaml(tmp_path: Path) -> None:
    found = estimate_noise(noisy(blur(1.0), scenes(3)), axes="SYX")
    found.to_yaml(tmp_path / "noise.yaml")
    again = NoiseEstimate.from_yaml(tmp_path / "noise.yaml")
    assert again.shape == pytest.approx(found.shape, abs=1e-4)
    assert again.spectrum == pytest.approx(found.spectrum, abs=1e-2)


@pytest.mark.parametrize("noise", [CorrelatedGaussian.cosine(0.1), blur(0.7), blur(1.0), blur(1.5)])
@pytest.mark.parametrize("how", ["measured", "parametric"])
def test_choosing_blocks_hardly_lowers_what_they_measure(noise: CorrelatedGaussian, how: str) -> None:
    """On an image without any structure there is nothing to choose; what is lost is the choice's own doing."""
    found = [
        float(estimate_noise(pure(noise, 3, seed), axes="SYX", kernel=how).raw.std(torch.full((1, 1, 1, 1), 20.0)))
        for seed in range(3)
    ]
    assert -0.06 < np.mean(found) / 0.1 - 1 < 0.01


def test_weakly_correlated_noise_is_not_taken_for_white() -> None:
    """Neighbours that correlate by 0.26 hide a quarter of the noise from the frequencies that measure white noise."""
    true, clean = blur(0.5), scenes(3, seed=2)
    found = estimate_noise(noisy(true, clean), axes="SYX")
    assert found.family == "correlated"
    assert float(found.raw.std(torch.full((1, 1, 1, 1), 0.5))) == pytest.approx(0.1, rel=0.05)
    assert found.lag1 == pytest.approx(true.autocovariance(1)[1, [0, 2]].tolist(), abs=0.05)
    flat = [estimate_noise(image) for image in pure(true, 6)]
    assert sum(alone.family == "correlated" for alone in flat) >= 5  # all blocks are alike: that is no texture
    white = estimate_noise(noisy(Gaussian(0.1), clean), axes="SYX")
    assert white.family == "gaussian"


def test_a_little_correlation_is_put_back_into_the_size() -> None:
    """Too little to call the noise correlated, but it would be measured 10 % too small."""
    true = CorrelatedGaussian(0.1, np.outer([0.05, 1, 0.05], [0.05, 1, 0.05]))
    clean = scenes(12, seed=2)
    found = estimate_noise(noisy(true, clean), axes="SYX")
    assert found.family == "gaussian"
    assert float(found.raw.sigma) == pytest.approx(0.1, rel=0.05)
    white = estimate_noise(noisy(Gaussian(0.1), clean), axes="SYX")
    assert error(white, Gaussian(0.1), clean) < 0.01


@pytest.mark.parametrize("lags", [(0.0, 0.0), (0.1, 0.0), (0.08, -0.12)])
def test_energy_of_high_coefficients_where_neighbours_correlate(lags: tuple[float, float]) -> None:
    kernels = []
    for lag in lags:  # of (1, b) is b / (1 + b^2)
        b = (1 - np.sqrt(1 - 4 * lag**2)) / (2 * lag) if lag else 0.0
        kernels.append([1.0, b])
    images = pure(CorrelatedGaussian(1.0, np.outer(*kernels)), 4)
    measured = np.mean([blocks.measure_blocks(x, x, Levels(), 8).high.mean() for x in images])
    assert blocks.high_energy(*lags) == pytest.approx(measured, rel=0.01)


def test_a_spectrum_is_the_nearest_that_is_not_negative() -> None:
    """Against the projection onto a simplex by its own equation: the mean of max(S - t, 0) is 1."""
    law = CorrelatedGaussian.cosine(1.0).autocovariance(12).numpy()
    noise = np.random.default_rng(0).normal(0, 0.02, law.shape)
    correlation = law + noise + noise[::-1, ::-1]
    correlation[12, 12] = 1
    grid = np.zeros((32, 32))
    for y in range(-12, 13):
        for x in range(-12, 13):
            grid[y % 32, x % 32] = correlation[12 + y, 12 + x]
    raw = np.fft.fft2(grid).real
    assert raw.min() < -0.1
    over = brentq(lambda t: np.maximum(raw - t, 0).mean() - 1, -5, 5)
    power = kernel.power_of(correlation)
    np.testing.assert_allclose(power, np.maximum(raw - over, 0), atol=1e-6)
    np.testing.assert_allclose(kernel.power_of(law), np.maximum(np.fft.fft2(_on_grid(law)).real, 0), atol=2e-3)


def _on_grid(correlation: np.ndarray) -> np.ndarray:
    return np.fft.ifftshift(np.pad(correlation, ((4, 3), (4, 3))))


@pytest.mark.parametrize("true", [blur(1.0, 1.0), CorrelatedGaussian.cosine(1.0), CorrelatedGaussian(1, [[1, 2, 1]])])
def test_a_kernel_gives_the_correlation_it_was_made_from(true: CorrelatedGaussian) -> None:
    law = true.autocovariance(12).numpy()
    made = kernel.kernel_of(kernel.power_of(law))
    assert all(side % 2 for side in made.shape)
    np.testing.assert_allclose(CorrelatedGaussian(1.0, made).autocovariance(12).numpy(), law, atol=0.01)
    flat = kernel.kernel_of(np.ones((16, 32, 32)))
    assert flat.shape == (1, 1, 1)


def test_the_lowest_frequencies_are_continued() -> None:
    fy = np.minimum(np.arange(32), 32 - np.arange(32))[:, None]
    true = np.exp(1 - 0.02 * fy**2 - 0.01 * np.arange(17) ** 2)
    spoilt = true.copy()
    spoilt[np.hypot(fy, np.arange(17)) < 1.5] = 1000.0
    np.testing.assert_allclose(spectrum.continued(spoilt.ravel()), true, rtol=1e-6)


def test_signal_dependence_is_not_read_into_coarse_curves() -> None:
    """Large blocks keep some texture, and bright places have more: a law must do clearly better to depend on x."""
    flat = [estimate_noise(noisy(blur(1.0), scenes(1, seed)), axes="SYX").raw for seed in range(6)]
    assert sum(isinstance(noise, CorrelatedGaussian) for noise in flat) >= 5
    true = CorrelatedSignal(0.0, blur(1.0).kernel, gain=0.02)
    found = estimate_noise(noisy(true, scenes(4)), axes="SYX").raw
    assert isinstance(found, CorrelatedSignal)
    at = torch.tensor([0.1, 0.9])[:, None, None, None]
    assert found.std(at).ravel().tolist() == pytest.approx(true.std(at).ravel().tolist(), rel=0.15)
