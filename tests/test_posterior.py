"""Mean, error bars, intervals and draws against exact posteriors; and what a user may ask of a trained model."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import inverseflow as ivf
from inverseflow.calibration import PROBABILITIES, Calibration, quantile
from inverseflow.errors import InputError
from inverseflow.imaging import denoise_image, normal_field, sample_image, scratch
from inverseflow.learning import Stages, Uncertainty, recovery
from inverseflow.nets import NetSpec
from inverseflow.nets.wrappers import ResidualFlow, Spread
from inverseflow.noise import Gaussian
from inverseflow.patches import Patches, Rows
from inverseflow.posterior import Pairs, PosteriorFlow, PosteriorSpread, draw_from
from inverseflow.train import Fitted

CENTRES, WIDTH, SIGMA = torch.tensor([-1.0, 1.0]), 0.3, 0.6
"""A mixture of two normals in one dimension, whose posterior is known and has two peaks."""


def mixture(count: int, generator: torch.Generator) -> Tensor:
    which = torch.randint(2, (count, 1), generator=generator)
    return CENTRES[which] + WIDTH * torch.randn(count, 1, generator=generator)


def exact(x1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the two peaks, their means and their common standard deviation, given x1 (B, 1)."""
    both = WIDTH**2 + SIGMA**2
    weights = torch.softmax(-(x1 - CENTRES).square() / (2 * both), dim=1)
    means = CENTRES + WIDTH**2 / both * (x1 - CENTRES)
    return weights, means, torch.tensor(WIDTH * SIGMA / math.sqrt(both))


def exact_mean(x1: Tensor) -> Tensor:
    weights, means, _ = exact(x1)
    return (weights * means).sum(1, keepdim=True)


def exact_std(x1: Tensor) -> Tensor:
    weights, means, width = exact(x1)
    return ((weights * (means - exact_mean(x1)).square()).sum(1, keepdim=True) + width**2).sqrt()


@pytest.fixture(scope="module")
def data() -> tuple[Rows, Pairs]:
    """Clean data stands for what the map recovers, so that only the stage under test can be wrong."""
    clean = mixture(20_000, torch.Generator().manual_seed(0))
    return Rows(clean), Pairs(lambda x, _: x, Gaussian(SIGMA))


HOW = ivf.Settings(steps=2500, batch_size=512, lr=2e-3, clip=None)
SEEN = torch.linspace(-2.5, 2.5, 101)[:, None]


def test_error_bars_are_the_exact_ones(data) -> None:
    rows, pairs = data
    model = Spread(NetSpec("MLP", features=1, widths=(64, 64), given=1).build(0), SIGMA, 0.5)
    loss = PosteriorSpread(pairs, exact_mean).loss
    fitted = ivf.fit(model, loss, rows, HOW, device="cpu", progress=False)
    with torch.no_grad():
        predicted = fitted.model(SEEN, exact_mean(SEEN))
    off = predicted / exact_std(SEEN) - 1
    assert off.square().mean().sqrt() < 0.03
    assert exact_std(SEEN).max() / exact_std(SEEN).min() > 1.5  # else one number would do


def test_draws_have_the_exact_posterior_with_both_peaks(data) -> None:
    rows, pairs = data
    model = ResidualFlow(NetSpec("MLP", features=1, widths=(128, 128, 128), given=3).build(0), SIGMA, 0.5)
    loss = PosteriorFlow(pairs, lambda x1: (exact_mean(x1), exact_std(x1))).loss
    fitted = ivf.fit(model, loss, rows, HOW, device="cpu", progress=False)
    generator = torch.Generator().manual_seed(1)
    for value in (-1.5, 0.0, 0.4):
        x1 = torch.full((4000, 1), value)
        z = torch.randn(x1.shape, generator=generator)
        with torch.no_grad():
            drawn = draw_from(fitted.model, x1, exact_mean(x1), exact_std(x1), z)
        weights, means, width = (part.numpy() for part in exact(x1[:1]))
        peaks = np.random.default_rng(0).choice(means[0], 4000, p=weights[0] / weights[0].sum())
        truth = peaks + width * np.random.default_rng(1).standard_normal(4000)
        distance = stats.wasserstein_distance(drawn[:, 0].numpy(), truth)
        normal = float(exact_mean(x1[:1])) + float(exact_std(x1[:1])) * z[:, 0].numpy()
        assert distance < 0.1 * float(exact_std(x1[:1]))
        if value == 0:  # a normal draw of the same mean and spread is no substitute
            assert distance < 0.5 * stats.wasserstein_distance(normal, truth)


def test_calibration_corrects_the_size_and_the_shape() -> None:
    """Predictions half as large as they should be, errors of Laplace instead of normal shape."""
    generator = torch.Generator().manual_seed(0)
    true = torch.rand(200_000, generator=generator) + 0.1
    uniform = torch.rand(true.shape, generator=generator) - 0.5
    error = -true / math.sqrt(2) * uniform.sign() * torch.log1p(-2 * uniform.abs())
    found = Calibration.of(true / 2, error)
    torch.testing.assert_close(found.std(true / 2), true, rtol=0.03, atol=0)
    for p in (0.025, 0.3, 0.95):
        expected = true * float(stats.laplace.ppf(p)) / math.sqrt(2)
        torch.testing.assert_close(found.quantile(true / 2, p), expected, rtol=0.06, atol=0.01)
    for level, share in found.coverage.items():
        assert share == pytest.approx(float(level), abs=0.01)


def test_quantile_is_numpy_s() -> None:
    x = torch.randn(1001, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(quantile(x, PROBABILITIES), np.quantile(x.numpy(), PROBABILITIES), atol=1e-5)


IMAGE = ivf.Gaussian(0.2).sample(
    torch.sin(torch.arange(48.0) / 5)[None, None, None] * torch.ones(2, 1, 40, 48),
    generator=torch.Generator().manual_seed(0),
)
QUICK = ivf.Settings(steps=4, batch_size=2)
STEEP = 1e-3
"""A network of four steps says nearly the same everywhere, so that a rounding is a step from one group of the
calibration to the next. Another batch size rounds otherwise, and so does another processor.
"""


def quick(x1=IMAGE, noise="gaussian:sigma=0.2", **arguments) -> ivf.Denoiser:
    arguments = {"settings": QUICK, "patch_size": 16, "progress": False, "device": "cpu", **arguments}
    return ivf.Denoiser.train(x1, noise, **arguments)


@pytest.fixture(scope="module")
def model() -> ivf.Denoiser:
    return quick(samples=True)


def test_error_bars_come_in_the_shape_and_kind_of_the_data(model) -> None:
    mean, std = model.denoise(IMAGE, return_std=True)
    assert mean.shape == std.shape == IMAGE.shape
    assert torch.equal(mean, model.denoise(IMAGE))
    assert std.min() > 0
    one, its_std = model.denoise(ivf.Image(IMAGE[0, 0].numpy(), "YX", pixel_size={"X": 0.1}), return_std=True)
    assert its_std.axes == "YX"
    assert its_std.pixel_size == {"X": 0.1}
    np.testing.assert_allclose(its_std.data, std[0, 0], rtol=STEEP)
    many, their_std = model.denoise([IMAGE[:1], IMAGE[1:]], return_std=True)
    torch.testing.assert_close(torch.cat(their_std), std, rtol=STEEP, atol=0)
    torch.testing.assert_close(torch.cat(many), mean)
    np.testing.assert_allclose(one.data, mean[0, 0], rtol=1e-5)


def test_data_in_other_units_has_error_bars_in_those_units() -> None:
    """1000 x + 5 with 1000 times the noise: the same training, so the same result in the other units."""
    mean, std = quick().denoise(IMAGE, return_std=True)
    mean2, std2 = quick(1000 * IMAGE + 5, "gaussian:sigma=200").denoise(1000 * IMAGE + 5, return_std=True)
    torch.testing.assert_close(std2, 1000 * std, rtol=1e-3, atol=0)
    torch.testing.assert_close(mean2, 1000 * mean + 5, rtol=1e-3, atol=1)


def test_quantiles_ascend_and_the_interval_is_made_of_them(model) -> None:
    quantiles = model.quantiles(IMAGE, (0.05, 0.25, 0.5, 0.75, 0.95))
    assert all((b >= a).all() for a, b in itertools.pairwise(quantiles))
    low, high = model.interval(IMAGE, 0.9)
    assert torch.equal(low, quantiles[0])
    assert torch.equal(high, quantiles[-1])
    assert set(model.description["coverage"]) == {"0.5", "0.8", "0.9", "0.95"}


def test_bounds_stay_where_clean_data_can_be() -> None:
    counts = torch.poisson(torch.full((2, 1, 32, 32), 0.3), generator=torch.Generator().manual_seed(0))
    found = quick(counts, "poisson:gain=1", samples=True)
    low, high = found.interval(counts, 0.95)
    assert low.min() >= 0
    assert (high > low).all()
    assert found.sample(counts, 2).min() >= 0


def test_draws_differ_and_come_again_with_their_seed(model) -> None:
    draws = model.sample(IMAGE, 3)
    assert draws.shape == (3, *IMAGE.shape)
    assert not torch.equal(draws[0], draws[1])
    assert torch.equal(draws, model.sample(IMAGE, 3))
    assert torch.equal(draws[:2], model.sample(IMAGE, 2))
    assert not torch.equal(draws, model.sample(IMAGE, 3, seed=1))
    assert model.sample(IMAGE.numpy(), 2).shape == (2, *IMAGE.shape)


def test_a_blend_lies_between_mean_and_map(model) -> None:
    mean, flow = (model.denoise(IMAGE, estimate=which) for which in ("mean", "flow"))
    torch.testing.assert_close(model.denoise(IMAGE, estimate=0.25), 0.75 * mean + 0.25 * flow)
    assert torch.equal(model.denoise(IMAGE, estimate=0), mean)
    assert torch.equal(model.denoise(IMAGE, estimate=1.0), flow)


def test_everything_is_in_the_file(model, tmp_path: Path) -> None:
    model.save(tmp_path / "model.safetensors")
    again = ivf.Denoiser.load(tmp_path / "model.safetensors", device="cpu")
    for a, b in zip(model.denoise(IMAGE, return_std=True), again.denoise(IMAGE, return_std=True), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(model.sample(IMAGE, 1), again.sample(IMAGE, 1))
    assert torch.equal(model.interval(IMAGE)[0], again.interval(IMAGE)[0])
    assert again.description == model.description


def test_files_give_what_arrays_give(model) -> None:
    """Streamed through tiles, several results at once; draws do not depend on the tiles."""
    image = ivf.Image(IMAGE[:, 0].numpy(), "TYX")
    mean, std = model.denoise(IMAGE, return_std=True)
    low, _ = model.interval(IMAGE, 0.8)
    with scratch(image.shape) as a, scratch(image.shape) as b, scratch(image.shape) as c:
        found = denoise_image(model, image, [a, b, c], std=True, quantiles=[0.1])
        for result, expected, off in zip(found, (mean, std, low), (1e-5, STEEP, STEEP), strict=True):
            np.testing.assert_allclose(result.data, expected[:, 0], rtol=off, atol=off / 10)
        whole = sample_image(model, image, a, 7)
        tiled = sample_image(model, image, b, 7, tile_size=24, tile_overlap=8)
        other = sample_image(model, image, c, 8)
        # The network of 2 x 2 patches and two halvings sees further than 8 pixels, but little.
        assert np.abs(whole.data - tiled.data).max() < 0.2 * np.abs(whole.data - other.data).max()


def test_a_field_of_noise_is_the_same_in_every_tile() -> None:
    shape = (20, 30)
    whole = normal_field((3, 0), 2, shape, (slice(0, 20), slice(0, 30)))
    part = normal_field((3, 0), 2, shape, (slice(5, 9), slice(10, 14)))
    assert torch.equal(part, whole[:, 5:9, 10:14])
    assert stats.kstest(whole.flatten().numpy(), "norm").pvalue > 0.01


def test_channels_alone_have_their_own_error_bars() -> None:
    two = torch.cat([IMAGE, 3 * IMAGE.flip(-1)], dim=1)
    found = quick(two, ivf.Gaussian([0.2, 0.6]))
    changed = two.clone()
    changed[:, 1] += 1
    assert torch.equal(found.denoise(two, return_std=True)[1][:, 0], found.denoise(changed, return_std=True)[1][:, 0])


def test_inverse_flow_matching_has_error_bars_too() -> None:
    found = quick(method="ifm", samples=True)
    assert set(found.description["steps"]) == {"flow", "spread", "sampler"}
    mean, std = found.denoise(IMAGE, return_std=True)
    assert mean.shape == std.shape
    assert found.sample(IMAGE, 1).shape == (1, *IMAGE.shape)


def test_several_rounds_repeat_the_last_stages() -> None:
    found = quick(rounds=2)
    assert list(found.description["steps"]) == ["flow", "mean", "spread", "sampler", "mean2", "spread2"]
    assert found.uncertainty.sampler is None
    assert quick(rounds=2, std=False).uncertainty == Uncertainty()


def test_training_without_error_bars_is_possible_and_said() -> None:
    found = quick(std=False)
    assert found.uncertainty == Uncertainty()
    with pytest.raises(InputError, match="no error bars"):
        found.denoise(IMAGE, return_std=True)
    with pytest.raises(InputError, match="cannot draw samples"):
        found.sample(IMAGE)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.sample(IMAGE, 0), "above 0"),
        (lambda m: m.sample(IMAGE, -3), "above 0"),
        (lambda m: m.quantiles(IMAGE, (0.0, 0.5)), "between 0 and 1"),
        (lambda m: m.quantiles(IMAGE, (0.5, 1.2)), "between 0 and 1"),
        (lambda m: m.quantiles(IMAGE, (1e-5,)), "too rare"),
        (lambda m: m.interval(IMAGE, 1.0), "between 0 and 1"),
        (lambda m: m.denoise(IMAGE, estimate=1.5), "from 0"),
        (lambda m: quick(rounds=0), "at least 1"),
        (lambda m: quick(rounds=2, method="ifm"), "icm"),
    ],
)
def test_what_makes_no_sense_is_refused(model, call, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        call(model)
    assert "\n" not in str(caught.value)


def test_gaussian_data_from_noisy_data_alone() -> None:
    """Everything together: rows N(0, diag(1, 1/4)), noise 0.5. The exact spread is s sigma / sqrt(s^2 + sigma^2)."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([1.0, 0.5])
    noisy = Gaussian(0.5).sample(spread * torch.randn(8000, 2, generator=generator), generator=generator)
    settings = ivf.Settings(steps=800, batch_size=256, lr=2e-3, clip=None)
    net = NetSpec("MLP", features=2, widths=(64, 64))
    found = ivf.Denoiser.train(noisy, Gaussian(0.5), net=net, settings=settings, device="cpu", progress=False)
    test = Gaussian(0.5).sample(spread * torch.randn(2000, 2, generator=generator), generator=generator)
    _mean, std = found.denoise(test, return_std=True)
    exactly = spread * 0.5 / (spread.square() + 0.25).sqrt()
    torch.testing.assert_close(std.square().mean(0).sqrt(), exactly, rtol=0.05, atol=0)
    # For Gaussian noise the variance is also sigma^2 times the slope of the mean.
    h = 0.1
    slope = torch.stack(
        [found.denoise(test + h * e)[:, i] - found.denoise(test - h * e)[:, i] for i, e in enumerate(torch.eye(2))]
    )
    crossed = (0.25 * (slope / (2 * h)).mean(1)).sqrt()
    torch.testing.assert_close(std.square().mean(0).sqrt(), crossed, rtol=0.06, atol=0)


@pytest.mark.parametrize(("steps", "coming", "whole"), [(1, 100, False), (100, 1, False), (100, 20, True)])
def test_images_go_through_the_map_once_and_whole_unless_that_is_more_work(
    steps: int, coming: int, whole: bool
) -> None:
    """Images of 40 x 56 pixels, of which one step of two crops sees a part."""
    images = [torch.rand(1, 40, 56) for _ in range(2)]
    noise, how = Gaussian(0.1), ivf.Settings(steps=steps, batch_size=2)
    method = ivf.InverseConsistency(ivf.Bridge(noise))
    spec = NetSpec("UNet", widths=(8, 16), blocks=1)
    flow = method.prepare(spec.build(0), 0.1)
    torch.nn.init.normal_(
        next(p for p in reversed(list(flow.parameters())) if p.ndim == 4)
    )  # it begins as the identity
    stages = Stages(Patches(images, 16), noise, spec, "cpu", 0, None, False, False, {})
    stages.done["flow"] = Fitted(flow, [], steps, 0.0)
    data, recover = recovery(stages, method, flow, how, coming)
    crops = data.draw(4, torch.Generator().manual_seed(0))
    if not whole:
        assert data is stages.data
        assert torch.equal(recover(crops.x, None), method.denoise(flow, crops.x))
        return
    assert recover(crops.x, None) is crops.x
    expected = Patches([method.denoise(flow, image[None])[0] for image in images], 16)
    assert torch.allclose(crops.x, expected.draw(4, torch.Generator().manual_seed(0)).x, atol=1e-5)
    assert not torch.allclose(crops.x, stages.data.draw(4, torch.Generator().manual_seed(0)).x, atol=1e-2)


def test_error_bars_of_a_mean_that_is_free_learn_from_whole_images_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second stage then, whose steps could tell how many crops will be drawn."""
    seen: list[tuple[float, bool]] = []

    def watched(stages: Stages, method: Any, flow: Any, how: ivf.Settings, steps: float) -> Any:
        data, recover = recovery(stages, method, flow, how, steps)
        seen.append((steps, data is not stages.data))
        return data, recover

    monkeypatch.setattr("inverseflow.learning.recovery", watched)
    settings = ivf.Settings(steps=50, batch_size=4)
    net = NetSpec("UNet", widths=(8, 16), blocks=1)
    noisy = torch.rand(1, 1, 48, 48, generator=torch.Generator().manual_seed(0))
    model = ivf.Denoiser.train(
        noisy, Gaussian(0.1), net=net, settings=settings, method="ifm", patch_size=16, device="cpu", progress=False
    )
    assert model.mean is None
    assert seen == [(10, True)]  # a fifth of the first stage
