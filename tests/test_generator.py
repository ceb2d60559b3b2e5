"""New clean data: the right distribution from a generator, and what can be asked of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.features import features, frechet, patches

import inverseflow as ivf
from inverseflow.errors import InputError, ModelFileError
from inverseflow.metrics import energy_distance

QUICK = ivf.Settings(steps=3, batch_size=2)
IMAGES = torch.rand(3, 1, 40, 44, generator=torch.Generator().manual_seed(0))


def quick(**arguments) -> ivf.Generator:
    return ivf.Generator.train(
        IMAGES, **{"by": None, "settings": QUICK, "size": 16, "device": "cpu", "progress": False, **arguments}
    )


def test_draws_have_the_distribution_of_the_data() -> None:
    """Two far-away groups of points of different weight, in units far from 1."""
    generator = torch.Generator().manual_seed(0)

    def points(count: int) -> torch.Tensor:
        right = torch.rand(count, 1, generator=generator) < 0.7
        centre = torch.where(right, torch.tensor([[500.0, 0.0]]), torch.tensor([[-300.0, 200.0]]))
        return centre + 40 * torch.randn(count, 2, generator=generator)

    data, other = points(4000), points(4000)
    net = ivf.NetSpec("MLP", features=2, widths=(64, 64, 64))
    settings = ivf.Settings(steps=1200, batch_size=256, lr=2e-3, clip=None)
    trained = ivf.Generator.train(data, None, net=net, settings=settings, device="cpu", progress=False)
    drawn = trained.sample(4000)
    assert energy_distance(drawn, other) < 0.05 * energy_distance(
        data.mean(0) + data.std(0) * torch.randn(4000, 2), other
    )
    assert float((drawn[:, 0] > 100).float().mean()) == pytest.approx(0.7, abs=0.04)


@pytest.mark.parametrize("method", ["flow", "consistency"])
def test_images_of_any_size_come_again_with_their_seed(method: str, tmp_path: Path) -> None:
    trained = quick(method=method)
    draws = trained.sample(2)
    assert draws.shape == (2, 1, 16, 16)
    assert torch.equal(draws, trained.sample(2))
    assert not torch.equal(draws, trained.sample(2, seed=1))
    assert trained.sample(1, size=24).shape == (1, 1, 24, 24)
    assert trained.sample(1, size=(8, 24)).shape == (1, 1, 8, 24)
    trained.save(tmp_path / "new.safetensors")
    assert torch.equal(draws, ivf.Generator.load(tmp_path / "new.safetensors", device="cpu").sample(2))
    with pytest.raises(ModelFileError, match="exists"):
        trained.save(tmp_path / "new.safetensors")
    with pytest.raises(ModelFileError, match="not an inverseflow model"):
        ivf.Denoiser.load(tmp_path / "new.safetensors")


def test_it_learns_from_what_the_denoiser_recovers() -> None:
    """The scaling shows what was trained on: recovered images have less spread than noisy ones."""
    x, noise = torch.sin(torch.arange(44) / 4) + torch.zeros(3, 1, 40, 44), ivf.Gaussian(1.0)
    noisy = noise.sample(x, generator=torch.Generator().manual_seed(0))
    settings = ivf.Settings(steps=60, batch_size=8, lr=2e-3)
    denoiser = ivf.Denoiser.train(
        noisy, noise, estimate="flow", settings=settings, patch_size=32, device="cpu", progress=False
    )
    common = {"settings": QUICK, "size": 16, "device": "cpu", "progress": False}
    as_is, recovered = (ivf.Generator.train(noisy, by, **common) for by in (None, denoiser))
    assert float(as_is.scaling.scale) == pytest.approx(float(noisy.std()), rel=0.01)
    assert float(recovered.scaling.scale) == pytest.approx(float(denoiser.denoise(noisy).std()), rel=0.01)
    assert float(recovered.scaling.scale) < 0.9 * float(as_is.scaling.scale)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="flow or consistency"):
        quick(method="gan")
    with pytest.raises(InputError, match="above 0"):
        quick().sample(0)


def test_frechet_distance_of_normals_is_the_exact_one() -> None:
    """|m|^2 + sum (s_a - s_b)^2 for independent features."""
    random = np.random.default_rng(0)
    a, b = np.array([1.0, 2.0, 0.5]), np.array([2.0, 1.0, 0.5])
    x, y = a * random.standard_normal((200_000, 3)), 1.5 + b * random.standard_normal((200_000, 3))
    assert frechet(x, y) == pytest.approx(3 * 1.5**2 + 2, rel=0.01)
    assert frechet(x, x) == pytest.approx(0, abs=1e-6)


def test_features_tell_noise_from_none() -> None:
    clean = torch.nn.functional.avg_pool2d(torch.rand(40, 1, 128, 128, generator=torch.Generator().manual_seed(0)), 4)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    halves = (features(part) for part in clean.chunk(2))
    assert frechet(features(noisy), features(clean)) > 3 * frechet(*halves)


def test_patches_are_the_pieces() -> None:
    picture = torch.arange(2 * 6 * 8.0).reshape(2, 1, 6, 8)
    pieces = patches(picture, 4)
    assert pieces.shape == (4, 1, 4, 4)
    assert torch.equal(pieces[1, 0], picture[0, 0, :4, 4:8])
