"""Noise of volumes: correlation along z is found, measured and drawn again, and not taken for the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from scipy import ndimage
from skimage.data import coins
from typer.testing import CliRunner

from inverseflow import Image, InputError, NoiseEstimate, estimate_noise
from inverseflow.cli import app
from inverseflow.estimate import depth, planes, spectrum
from inverseflow.estimate.levels import Levels
from inverseflow.finding import noise_of
from inverseflow.noise import CorrelatedGaussian, CorrelatedSignal, Gaussian, Noise, PoissonGaussian
from inverseflow.noise.file import one_after_the_other
from inverseflow.options import Options

SHAPE = (16, 128, 128)


def volume(shape: tuple[int, int, int] = SHAPE, seed: int = 1) -> np.ndarray:
    """A smooth field in [0.05, 1] with surfaces where it jumps."""
    rng = np.random.default_rng(seed)
    smooth, steps = (ndimage.gaussian_filter(rng.standard_normal(shape), (4, 16, 16), mode="wrap") for _ in range(2))
    field = smooth / smooth.std() + 1.5 * (steps > 0)
    low, high = np.quantile(field, [0.01, 0.99])
    return (np.clip((field - low) / (high - low), 0, 1) * 0.95 + 0.05).astype(np.float32)


def bell(sigma: float) -> np.ndarray:
    return np.exp(-(np.arange(-4, 5) ** 2) / (2 * sigma**2))


def noisy(noise: Noise, clean: np.ndarray, seed: int = 0) -> np.ndarray:
    """(frames, Z, Y, X) of a clean (frames, Z, Y, X)."""
    return noise.sample(clean[:, None], generator=torch.Generator().manual_seed(seed))[:, 0]


def lags(noise: Noise) -> list[float]:
    """Correlation of neighbours along z, y and x, by theory."""
    if not isinstance(noise, CorrelatedGaussian | CorrelatedSignal):
        return [0.0, 0.0, 0.0]
    law = getattr(noise, "field", noise).autocovariance(1)
    return [float(law[2, 1, 1]), float(law[1, 2, 1]), float(law[1, 1, 2])]


def drawn_lags(noise: Noise, shape: tuple[int, ...] = (4, 1, 24, 64, 64)) -> tuple[float, list[float]]:
    """The same of draws, and their standard deviation at the level 0.5."""
    x = noise.sample(np.full(shape, 0.5), generator=torch.Generator().manual_seed(5)) - 0.5
    neighbours = [x.take(range(1, x.shape[axis]), axis) * x.take(range(x.shape[axis] - 1), axis) for axis in (2, 3, 4)]
    return float(x.std()), [float(pair.mean() / x.var()) for pair in neighbours]


BLUR = bell(0.8)[:, None, None] * np.outer(bell(1.0), bell(1.0))
NOISES: dict[str, Noise] = {
    "white": Gaussian(0.1),
    "photons": PoissonGaussian(0.01, 0.03),
    "in the plane": CorrelatedGaussian(0.1, np.outer(bell(1.0), bell(1.0))[None]),
    "along z": CorrelatedGaussian(0.1, np.array([1.0, 2.0, 1.0])[:, None, None]),
    "everywhere": CorrelatedGaussian(0.1, BLUR),
    "rings": CorrelatedGaussian.cosine(0.1, 1.5, dims=3),
    "with the signal": CorrelatedSignal(0.03, BLUR, gain=0.01),
}


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("name", NOISES)
def test_size_and_lags_of_simulated_noise(name: str, frames: int) -> None:
    true = NOISES[name]
    images = noisy(true, np.stack([volume()] * frames))
    found = estimate_noise(images if frames == 2 else images[0], axes="TZYX" if frames == 2 else "ZYX")
    assert found.method == ("repeats" if frames == 2 else "flat blocks")
    assert (found.family == "correlated") == isinstance(true, CorrelatedGaussian | CorrelatedSignal)
    assert (found.autocorrelation is not None and found.autocorrelation.ndim == 3) == (lags(true)[0] > 0.1)
    at = torch.full((1, 1, 1, 1, 1), 0.5)
    size, expected = float(found.raw.std(at)), float(true.std(at))
    assert size == pytest.approx(expected, rel=0.02 if frames == 2 else 0.05)
    assert found.lag1 == pytest.approx(lags(true), abs=0.02 if frames == 2 else 0.08)
    sd, drawn = drawn_lags(found.raw)
    assert sd == pytest.approx(size, rel=0.03)
    assert drawn == pytest.approx(lags(true), abs=0.03 if frames == 2 else 0.1)


def test_planes_get_a_noise_of_planes() -> None:
    images = noisy(NOISES["everywhere"], volume()[None])[0]
    found = estimate_noise(images, axes="ZYX", dims=2)
    assert found.noise.kernel.ndim == 2
    assert found.autocorrelation.shape == (25, 25)
    assert found.lag1 == pytest.approx(lags(NOISES["everywhere"])[1:], abs=0.06)
    assert found.noise.sample(np.zeros((1, 1, 32, 32))).shape == (1, 1, 32, 32)
    with pytest.raises(InputError, match="needs a Z axis"):
        estimate_noise(images[0], dims=3)
    with pytest.raises(InputError, match="2 for planes or 3"):
        estimate_noise(images, axes="ZYX", dims=4)


def test_an_image_that_goes_on_from_slice_to_slice_is_not_correlated_noise() -> None:
    """All slices show the same photograph, so that signal alone correlates by 1 along z."""
    clean = np.repeat(coins()[None, None, :256, :256].astype(np.float32), 8, 1)
    found = estimate_noise(noisy(Gaussian(4.0), clean)[0], axes="ZYX")
    assert found.family == "gaussian"
    assert abs(found.lag1[0]) < 0.05
    assert float(found.raw.sigma) == pytest.approx(4, rel=0.06)


def test_few_slices_need_repeats() -> None:
    true = NOISES["along z"]
    pair = noisy(true, np.stack([volume()[:3]] * 2))
    alone = estimate_noise(pair[0], axes="ZYX")
    assert len(alone.lag1) == 2
    assert any("along Z cannot be told" in sentence for sentence in alone.warnings)
    both = estimate_noise(pair, axes="TZYX")
    assert both.lag1 == pytest.approx(lags(true), abs=0.03)
    assert not any("along Z" in sentence for sentence in estimate_noise(pair[0, :1], axes="ZYX").warnings)


def test_a_slant_keeps_its_direction() -> None:
    """Noise that returns in the next slice one pixel to the right: c(1, 0, 1) is large and c(1, 0, -1) is zero."""
    kernel = np.zeros((2, 1, 2))
    kernel[0, 0, 0], kernel[1, 0, 0], kernel[1, 0, 1] = 1.0, 0.5, 1.0
    noise = CorrelatedGaussian(1.0, kernel)
    x = noise.sample(np.full((2, 1, 12, 128, 128), 9.0), generator=torch.Generator().manual_seed(0))[:, 0]
    x, r = x.astype(np.float32), spectrum.REACH
    flat = spectrum.flat_spectrum(np.concatenate([spectrum.periodograms(plane, Levels())[1] for plane in x[0]]))
    blocks = depth.of_blocks([x[0]], Levels(), np.ones_like, flat)
    differences = depth.of_differences([(x[0] - x[1]) / np.sqrt(2)])
    law = noise.autocovariance(2).numpy()
    assert law[3, 2, 3] > 0.4
    assert law[3, 2, 1] == pytest.approx(0, abs=1e-12)
    for found, bound in ((blocks, 0.1), (differences, 0.02)):
        middle = found.correlation[1, r - 2 : r + 3, r - 2 : r + 3]
        np.testing.assert_allclose(middle, law[3], atol=bound)
    assert differences.error == pytest.approx(np.sqrt(np.sum(law[2] ** 2) / x[0].size), rel=0.1)
    found = estimate_noise(x, axes="TZYX", repeats="T")
    np.testing.assert_allclose(found.raw.autocovariance(2).numpy(), law, atol=0.03)


def test_slabs_are_neighbouring_slices_from_all_over() -> None:
    numbers = np.arange(2 * 30 * 3 * 20 * 24, dtype=np.float32).reshape(2, 30, 3, 20, 24)  # S Z T Y X
    source = planes.Source(numbers, "SZTYX")
    parts = list(planes.slabs([source], ["T"], 0, None))
    assert [part.shape for part in parts] == [(2, 12, 20, 24)] * 4  # the last six slices are no whole slab
    np.testing.assert_array_equal(parts[1], numbers[0, 12:24, 0:2].transpose(1, 0, 2, 3))
    assert list(planes.slabs([planes.Source(numbers[0, :1, 0], "ZYX")], [""], 0, None)) == []
    mask = np.ones((20, 24), bool)
    mask[3] = False
    masked = next(planes.slabs([source], ["T"], 0, mask))
    assert np.isnan(masked[:, :, 3]).all()
    assert np.isfinite(np.delete(masked, 3, 2)).all()


def test_huge_volumes_are_sampled() -> None:
    class Counting:
        """A series of 40 volumes of 400 x 2000 x 2000 that exist only where they are looked at."""

        shape, dtype, read = (40, 400, 2000, 2000), np.dtype(np.uint16), 0

        def __getitem__(self, key: Any) -> np.ndarray:
            shape = [len(range(*k.indices(n))) for k, n in zip(key, self.shape, strict=True) if isinstance(k, slice)]
            self.read += int(np.prod(shape))
            return np.zeros(shape, np.uint16)

    lazy = Counting()
    assert len(list(planes.slabs([planes.Source(lazy, "TZYX")], [""], 0, None))) >= 1
    assert lazy.read <= planes.VALUES


def test_a_volume_s_noise_survives_yaml_and_is_drawn(tmp_path: Path) -> None:
    found = estimate_noise(noisy(NOISES["everywhere"], volume()[None])[0], axes="ZYX")
    found.to_yaml(tmp_path / "noise.yaml")
    again = NoiseEstimate.from_yaml(tmp_path / "noise.yaml")
    assert again.noise.autocovariance(2).numpy() == pytest.approx(found.noise.autocovariance(2).numpy(), abs=1e-6)
    assert again.spectrum == pytest.approx(found.spectrum, abs=0.05)
    assert again.lag1 == pytest.approx(found.lag1, abs=1e-4)
    assert f"{found.lag1[0]:.2f} to the next slice" in again.plot().axes[1].get_title()


@pytest.mark.parametrize("dim", [None, 2, 3])
def test_the_command_finds_a_noise_that_fits_the_network(dim: int | None) -> None:
    data = 1000 * noisy(NOISES["everywhere"], volume((8, 64, 64))[None])[0]
    found = noise_of(Options(files=[], dim=dim, quiet=True), [Image(data, "ZYX")])
    axes = dim or 3  # eight slices are a volume
    assert found.kernel.ndim == axes
    x = np.full((1, 1, 8, 64, 64)[:2] + (8, 64, 64)[-axes:], 500.0)
    assert found.sample(x, generator=torch.Generator().manual_seed(0)).std() == pytest.approx(100, rel=0.2)
    few = noise_of(Options(files=[], quiet=True), [Image(data[:3], "ZYX")])
    assert few.kernel.ndim == 2  # three slices are three planes


def test_the_command_writes_a_noise_that_the_next_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = 1000 * noisy(NOISES["everywhere"], volume((8, 64, 64))[None])[0]
    tifffile.imwrite("volume.ome.tif", data.astype(np.float32), ome=True, metadata={"axes": "ZYX"})
    result = CliRunner().invoke(app, ["noise", "volume.ome.tif", "-o", "found.yaml"])
    assert result.exit_code == 0, result.output
    assert "CorrelatedGaussian" in result.output
    assert one_after_the_other(["found.yaml"]).kernel.ndim == 3
