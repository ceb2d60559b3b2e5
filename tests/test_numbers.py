"""Numbers as they come from instruments: missing, tiny, huge, of any type and layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow import learning, masking
from inverseflow.checkpoint import read_tensors
from inverseflow.cli import app
from inverseflow.report import planes
from inverseflow.samples import Scaling, check_against_noise, read_samples, representative
from inverseflow.tensors import as_float_tensor

NET = ivf.NetSpec("UNet", channels=1, dims=2, widths=(8,), blocks=1, patch=2)
SHORT = ivf.Settings(steps=4, batch_size=2)
SIGMA = 0.3


def scene(height: int = 48, width: int = 56, seed: int = 0) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.sin(x / 7) * np.cos(y / 9) + SIGMA * np.random.default_rng(seed).standard_normal((height, width))


def train(x1: Any, noise: Any = f"gaussian:sigma={SIGMA}", **arguments: Any) -> ivf.Denoiser:
    chosen = {"axes": "YX", "net": NET, "settings": SHORT, "std": False, "progress": False, **arguments}
    return ivf.Denoiser.train(x1, noise, **chosen)


def denoised(x1: Any, noise: Any = f"gaussian:sigma={SIGMA}") -> np.ndarray:
    return np.asarray(train(x1, noise).denoise(x1, axes="YX"), np.float64)


@pytest.fixture(autouse=True)
def few_values_to_calibrate_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "CALIBRATION_VALUES", 2**13)


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    return denoised(scene())


# --- types and layouts


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "b1"])
def test_any_type_is_read_as_it_is(kind: str) -> None:
    """A value of every kind arrives exactly, in both byte orders."""
    values = np.array([[0, 1, 100], [3, 7, 127]]).astype(kind)
    for order in "<>":
        x = as_float_tensor(values.astype(values.dtype.newbyteorder(order)))
        assert x.dtype == (torch.float64 if values.dtype.kind == "f" and values.dtype.itemsize > 4 else torch.float32)
        assert x.tolist() == values.astype(float).tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "int8", "uint8", "int64", "uint16", "bool"])
def test_any_tensor_is_read_as_it_is(name: str) -> None:
    values = torch.tensor([[0, 1], [3, 100]]).to(getattr(torch, name))
    assert as_float_tensor(values).tolist() == values.double().tolist()


def test_whole_numbers_beyond_single_precision_are_kept() -> None:
    """2^24 + 1 is the first whole number that float32 does not hold."""
    for values in (np.array([2**24 + 1, -5]), np.array([-(2**24) - 1, 5]), np.array([2**40 + 1], np.uint64)):
        assert as_float_tensor(values).tolist() == values.tolist()
        assert as_float_tensor(torch.from_numpy(values.astype(np.int64))).tolist() == values.tolist()
    assert as_float_tensor(np.array([2**24, 5])).dtype == torch.float32


def test_layout_in_memory_does_not_matter(plain: np.ndarray) -> None:
    image = scene()
    mirrored = np.ascontiguousarray(image[::-1, ::-1])[::-1, ::-1]  # strides below zero
    locked = image.copy()
    locked.flags.writeable = False
    every_second = np.repeat(np.repeat(image, 2, 0), 3, 1)[::2, ::3]
    swapped = image.astype(image.dtype.newbyteorder(">"))
    for other in (mirrored, locked, every_second, np.asfortranarray(image), swapped, image.tolist()):
        np.testing.assert_array_equal(denoised(other), plain)
    tensor = torch.from_numpy(image.copy()).requires_grad_()
    np.testing.assert_array_equal(denoised(tensor), plain)
    assert tensor.grad is None


@pytest.mark.parametrize("suffix", [".npy", ".tif"])
def test_big_endian_files(suffix: str, tmp_path: Path) -> None:
    image, path = scene().astype(">f4"), tmp_path / f"big{suffix}"
    np.save(path, image) if suffix == ".npy" else tifffile.imwrite(path, image, byteorder=">")
    read = ivf.read(path, axes="YX")
    np.testing.assert_array_equal(np.asarray(read), image)
    assert np.asarray(read).dtype.isnative


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.full((20, 20), 3.0), "constant .3 everywhere., so leave it out"),
        (np.zeros((20, 20)), "constant .0 everywhere."),
        (np.ones((1, 1)), "constant"),
        (np.zeros((0, 20)), "is empty"),
        ([], "list of images is empty"),
        ([[1.0, 2.0], [3.0]], "rows have several lengths"),
        ("picture.tif", "not real numbers"),
        (None, "object and not real numbers"),
        (np.array([["a"]]), "not real numbers"),
        (np.zeros((3, 3), "M8[s]"), "datetime64.* and not real numbers"),
        (np.ones((3, 3), complex), "complex128 and not real numbers"),
        (torch.ones(3, 3, dtype=torch.complex64), "complex64 and not real numbers"),
        (np.full((20, 20), np.nan), "has 400 NaN or infinite values of 400, the first at C 0, Y 0, X 0"),
    ],
)
def test_what_is_no_image_is_refused_in_a_sentence(data: Any, words: str) -> None:
    with pytest.raises(ivf.InputError, match=words):
        train(data)


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (2, 2), (3, 5), (7, 1)])
def test_images_of_a_few_pixels(shape: tuple[int, int]) -> None:
    image = scene()[: shape[0], : shape[1]]
    model = train(image, std=True)
    result, std = model.denoise(image, axes="YX", return_std=True)
    assert result.shape == std.shape == shape
    assert np.isfinite(result).all()
    assert (std > 0).all()
    one = model.denoise(np.array([[0.5]]), axes="YX")  # a model of others may be asked about one pixel
    assert one.shape == (1, 1)
    assert np.isfinite(one).all()


# --- scales and offsets


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)) / b.std())


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_result_does_not_depend_on_the_unit(scale: float, plain: np.ndarray) -> None:
    """The same image in other units, its noise too: the same result."""
    assert relative(denoised(scene() * scale, f"gaussian:sigma={SIGMA * scale}") / scale, plain) < 1e-4


@pytest.mark.parametrize("power", [-40, 40])
def test_nothing_else_depends_on_the_unit(power: int) -> None:
    """Powers of two round nothing, so that error bars and audit come out bit for bit, where no constant has a unit."""
    scale, image = 2.0**power, scene(96, 96)
    one, other = (train(image * s, f"gaussian:sigma={SIGMA * s}", std=True) for s in (1.0, scale))
    results = one.denoise(image, axes="YX", return_std=True)
    scaled = other.denoise(image * scale, axes="YX", return_std=True)
    for result, same in zip(results, scaled, strict=True):
        np.testing.assert_array_equal(same / scale, result)
    audits = (ivf.audit(image * s, x, m, axes="YX") for s, x, m in ((1.0, results[0], one), (scale, scaled[0], other)))
    for check, same in zip(*(audit.checks for audit in audits), strict=True):
        assert check.value == pytest.approx(same.value, rel=1e-6), check.name


@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("text", ["gaussian:sigma={}", "poissongaussian:gain={},sigma={},offset={}", "poisson:gain={}"])
def test_the_noise_does_not_depend_on_the_unit(text: str, scale: float) -> None:
    one, other = (ivf.noise.parse(text.replace("{}", repr(s))) for s in (1.0, scale))
    x0 = torch.rand(4, 1, 16, 16) * 40 + 3
    drawn, scaled = (
        noise.sample(x0 * s, generator=torch.Generator().manual_seed(1)) / s
        for noise, s in ((one, 1.0), (other, scale))
    )
    # a count may fall the other way where a rate was rounded
    assert float((drawn - scaled).abs().median()) < 1e-4
    assert float(drawn.std()) == pytest.approx(float(scaled.std()), rel=1e-2)
    torch.testing.assert_close(other.std(x0 * scale) / scale, one.std(x0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_estimates_and_pages_do_not_depend_on_the_unit(scale: float) -> None:
    image = 5 + np.kron(np.arange(16).reshape(4, 4), np.ones((40, 40))) + scene(160, 160)
    one, other = (ivf.estimate_noise((image * s).astype(np.float32), axes="YX") for s in (1.0, scale))
    assert other.family == one.family
    np.testing.assert_allclose(other.std_curve[1] / scale, one.std_curve[1], rtol=1e-3)
    np.testing.assert_allclose(other.interval[0] / scale, one.interval[0], rtol=1e-3)
    shown = [planes.encode((image * s).astype(np.float32)) for s in (1.0, scale)]
    assert shown[0]["src"] == pytest.approx(shown[1]["src"]) or shown[1]["high"] / scale == pytest.approx(
        shown[0]["high"], rel=1e-5
    )


@pytest.mark.parametrize(("scale", "words"), [(1e-18, "too small"), (1e18, "too large")])
def test_what_single_precision_cannot_hold_is_refused(scale: float, words: str) -> None:
    with pytest.raises(ivf.InputError, match=f"{words} for single precision; multiply the data, and the numbers"):
        train(scene() * scale, ivf.Gaussian(SIGMA * scale))


def test_denormal_values_are_zeros(plain: np.ndarray) -> None:
    image = scene()
    tiny, zero = image.copy(), image.copy()
    tiny[::3], zero[::3] = 1e-42, 0.0
    np.testing.assert_allclose(denoised(tiny), denoised(zero), atol=1e-5)


def test_an_offset_of_a_million_is_taken_off_in_double_precision(plain: np.ndarray) -> None:
    """float32 has steps of 0.06 at 1e6; the result does, and it says so, but what is learned does not."""
    image = scene() + 1e6
    with pytest.warns(UserWarning, match=r"up to 1000001\.\d+ that vary by 0\.\d+; .* steps of 0\.062"):
        model = train(image)
    exact = (scene() - scene().mean()) / scene().std()
    scaled = model.scaling.onto(torch.from_numpy(image)[None, None], "cpu")[0, 0].numpy()
    assert np.abs(scaled - scaled.mean() - exact).max() < 1e-4
    result = model.denoise(image, axes="YX")
    assert np.abs(result - 1e6 - plain).max() < 0.1
    with pytest.raises(ivf.InputError, match="less than single precision tells apart there; subtract a constant"):
        train(scene() + 1e9)


def test_large_whole_numbers_are_warned_of() -> None:
    counts = np.round(100 * scene()).astype(np.int64)
    with pytest.warns(UserWarning, match="steps of 4 there, so subtract a constant"):
        model = train(counts + 2**25, "gaussian:sigma=30")
    result = model.denoise(counts + 2**25, axes="YX")
    assert np.abs(result - 2**25 - denoised(counts, "gaussian:sigma=30")).max() < 4


def test_scaling_is_that_of_the_definition() -> None:
    x = torch.from_numpy(scene())
    scaling = Scaling.of([x[None], 3 * x[None, :10]])
    both = torch.cat([x.flatten(), 3 * x[:10].flatten()])
    assert float(scaling.shift) == pytest.approx(float(both.mean()), rel=1e-6)
    assert float(scaling.scale) == pytest.approx(float(both.std(correction=0)), rel=1e-6)
    y = scaling.apply(x[None, None])
    torch.testing.assert_close(scaling.undo(y), x[None, None], rtol=1e-6, atol=1e-6)
    with pytest.raises(ivf.InputError, match=r"feature 1 is constant \(2 everywhere\)"):
        Scaling.of([torch.stack([x, torch.full_like(x, 2.0)])])


# --- missing values


def with_gaps(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """An image with scattered dead pixels, a hole, and an empty margin."""
    image, gone = scene(), np.random.default_rng(seed).random((48, 56)) < 0.02
    gone[20:29, 30:37] = gone[:, :5] = True
    image[gone] = np.where(np.arange(gone.sum()) % 3, np.nan, np.inf)
    return image, gone


def test_gaps_are_refused_with_their_number_and_place(tmp_path: Path) -> None:
    image, gone = with_gaps()
    y, x = np.argwhere(gone)[0]
    words = rf"has {gone.sum()} NaN or infinite values of 2688, the first at C 0, Y {y}, X {x}; .*nan='mask'"
    with pytest.raises(ivf.InputError, match=words):
        train(image)
    with pytest.raises(ivf.InputError, match=rf"{gone.sum()} NaN .* the first at Y {y}, X {x};"):
        train(scene()).denoise(image, axes="YX")
    with pytest.raises(ivf.InputError, match="has 1 NaN or infinite value of 4, the first at X 1, Y 0"):
        train(scene()).denoise(np.array([[0.0, 1.0], [np.inf, 0.0]]), axes="XY")
    with pytest.raises(ivf.InputError, match="nan must be refuse or mask, not 'drop'"):
        train(image, nan="drop")


def test_gaps_are_masked_and_restored() -> None:
    image, gone = with_gaps()
    model = train(image, nan="mask", std=True, samples=True)
    for result in (
        *model.denoise(image, axes="YX", nan="mask", return_std=True),
        *model.interval(image, axes="YX", nan="mask"),
        *model.sample(image, 2, axes="YX", nan="mask"),
        model.denoise(image, axes="YX", nan="mask", tile_size=24, tile_overlap=8),
        ivf.denoise(
            image, "gaussian:sigma=0.3", axes="YX", nan="mask", net=NET, settings=SHORT, std=False, progress=False
        ),
    ):
        np.testing.assert_array_equal(np.isnan(result), gone)
    known = image[~gone]
    assert float(model.scaling.shift) == pytest.approx(known.mean(), rel=1e-5)
    assert float(model.scaling.scale) == pytest.approx(known.std(), rel=1e-5)


def test_masked_arrays_are_masked() -> None:
    image, gone = with_gaps()
    hidden = np.ma.masked_array(np.where(gone, 1e6, image), gone)
    with pytest.raises(ivf.InputError, match="NaN or infinite"):
        train(hidden)
    model = train(hidden, nan="mask")
    expected = model.denoise(image, axes="YX", nan="mask")
    np.testing.assert_array_equal(model.denoise(hidden, axes="YX", nan="mask"), expected)


def test_gaps_do_not_harm_their_neighbours() -> None:
    """Next to a dead pixel the result is as it would be had the pixel worked, to within a part of the noise."""
    image, gone = scene(), np.zeros((48, 56), bool)
    gone[10:40:6, 10:40:6] = True
    model = train(image, settings=ivf.Settings(steps=40, batch_size=2))
    dead = image.copy()
    dead[gone] = np.nan
    whole, result = model.denoise(image, axes="YX"), model.denoise(dead, axes="YX", nan="mask")
    difference = (result - whole)[~gone]
    assert np.sqrt(np.mean(difference**2)) < 0.1 * SIGMA
    poor = image.copy()
    poor[gone] = 0.0 + 20 * image.std()  # what a filled value must not do
    assert np.abs(model.denoise(poor, axes="YX") - whole)[~gone].max() > 3 * np.abs(difference).max()


def test_gaps_are_filled_with_their_surroundings() -> None:
    y, x = torch.meshgrid(torch.arange(40.0), torch.arange(50.0), indexing="ij")
    slope = (2 * y + x).expand(2, 3, 40, 50).clone()
    gone = torch.rand(slope.shape, generator=torch.Generator().manual_seed(0)) < 0.1
    gone[0, 0, 10:30, 10:40] = gone[0, 1, :, 20:] = gone[1, 2] = True
    filled = masking.fill(slope.masked_fill(gone, torch.inf))
    assert torch.equal(filled[~gone], slope[~gone])
    scattered = torch.zeros_like(gone)
    scattered[1, :2] = gone[1, :2]
    assert float((filled - slope)[scattered].abs().max()) < 6  # within the 3 pixels around
    inside = filled[0, 0, 10:30, 10:40]  # a hole: between what surrounds it
    assert float(slope[0, 0, 9, 9]) - 3 <= float(inside.min()) <= float(inside.max()) <= float(slope[0, 0, 31, 41]) + 3
    assert bool((filled[1, 2] == 0).all())  # nothing at all is known
    assert masking.fill(torch.tensor([[1.0, torch.nan]])).tolist() == [[1.0, 0.0]]
    volume, line = torch.full((1, 1, 3, 5, 7), 4.0), torch.full((1, 1, 9), 4.0)
    volume[..., 1, 2:4, 1:5] = line[..., 2:8] = torch.nan
    assert bool((masking.fill(volume) == 4).all())
    assert bool((masking.fill(line) == 4).all())


def test_training_data_is_filled_with_noise() -> None:
    """A gap looks like a smooth place that the instrument has seen: as noisy as everywhere."""
    image, noise = torch.zeros(1, 64, 64), ivf.Gaussian(0.5)
    image[:, 10:50, 10:50] = torch.nan
    from inverseflow.samples import without_gaps

    (filled,) = without_gaps([image], noise, seed=0)
    assert float(filled[:, 10:50, 10:50].std()) == pytest.approx(0.5, rel=0.1)
    assert bool((filled[:, :10] == 0).all())
    per_sample = ivf.Gaussian(torch.tensor([[0.1], [2.0]]))
    second = without_gaps([image, image], per_sample, seed=0)[1]
    assert float(second[:, 10:50, 10:50].std()) == pytest.approx(2.0, rel=0.1)


def test_tables_with_gaps() -> None:
    rows = torch.randn(80, 3) * torch.tensor([1.0, 5.0, 0.2]) + torch.tensor([0.0, 3.0, 1.0])
    rows[3, 1] = torch.nan
    model = ivf.Denoiser.train(rows, "gaussian:sigma=0.1", settings=SHORT, nan="mask", std=False, progress=False)
    result = model.denoise(rows, nan="mask")
    assert torch.isnan(result).nonzero().tolist() == [[3, 1]]


def test_the_audit_ignores_gaps() -> None:
    """The same verdict, and nearly the same figures, with a tenth of the pixels dead."""
    image = scene(96, 96)
    model = train(image, settings=ivf.Settings(steps=30, batch_size=2))
    clean = model.denoise(image, axes="YX")
    before = ivf.audit(image, clean, model, axes="YX")
    dead = image.copy()
    dead[np.random.default_rng(0).random(image.shape) < 0.1] = np.nan
    again = ivf.audit(dead, model.denoise(dead, axes="YX", nan="mask"), model, axes="YX")
    assert again.verdict == before.verdict
    alone = ivf.audit(dead, np.where(np.isnan(dead), np.nan, clean), "gaussian:sigma=0.3", axes="YX")
    assert alone.verdict == ivf.audit(image, clean, "gaussian:sigma=0.3", axes="YX").verdict
    dead[:70] = np.nan
    with pytest.raises(ivf.InputError, match="More than 50 % of what the audit looks at is NaN"):
        ivf.audit(dead, dead, model, axes="YX")


def test_the_noise_is_estimated_beside_gaps() -> None:
    image = 5 + np.kron(np.arange(16).reshape(4, 4), np.ones((40, 40))) + scene(160, 160)
    dead = image.copy()
    dead[30:70, 30:70] = np.nan
    sds = [float(np.median(ivf.estimate_noise(x, axes="YX").std_curve[1])) for x in (image, dead)]
    assert sds[1] == pytest.approx(sds[0], rel=0.05)


def test_pages_and_infos_leave_gaps_out() -> None:
    plane = np.arange(16, dtype=np.float32).reshape(4, 4)
    plane[0, 0], plane[2:, 2:] = np.nan, np.nan
    means = planes.block_mean(plane, 2)
    assert means[0].tolist() == [pytest.approx(10 / 3), 4.5]
    assert means[1, 0] == 10.5
    assert np.isnan(means[1, 1])
    from inverseflow import describe

    told = describe.facts(ivf.Image(plane, "YX"))
    assert told["range"] == "1 to 13"
    assert told["missing"].startswith("5 of 16 values are NaN or infinite; --nan mask")


def command(*words: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_command_masks_on_request(tmp_path: Path) -> None:
    image, gone = with_gaps()
    path, out = tmp_path / "gaps.tif", tmp_path / "out.tif"
    tifffile.imwrite(path, image.astype(np.float32))
    options = ["--noise", f"gaussian:sigma={SIGMA}", "--steps", "2", "--axes", "YX", "--no-audit"]
    y, x = np.argwhere(gone)[0]
    refused = command("denoise", path, *options, "-o", out)
    assert refused.exit_code == 1
    assert f"The image has {gone.sum()} NaN or infinite values of 2688, the first at Y {y}, X {x};" in refused.stderr
    assert not out.exists()
    whole = command("denoise", path, *options, "--nan", "mask", "-o", tmp_path / "out.png")
    assert whole.exit_code == 2
    assert "out.png cannot hold the NaN of --nan mask" in whole.stderr
    done = command("denoise", path, *options, "--nan", "mask", "-o", out)
    assert done.exit_code == 0, done.stderr
    assert f"gaps.tif: {gone.sum()} of 2688 values are missing and masked." in done.stdout
    np.testing.assert_array_equal(np.isnan(tifffile.imread(out)), gone)
    assert (
        f"{gone.sum()} of 2688 values are missing; they are NaN in the result" in out.with_suffix(".html").read_text()
    )
    told = command("info", path, "--axes", "YX", "--json")
    assert json.loads(told.stdout)[0]["missing"].startswith(f"{gone.sum()} of 2688")


def test_blocks_of_zarr_are_masked_alike(tmp_path: Path) -> None:
    pytest.importorskip("ome_zarr_models", reason="OME-Zarr is not installed")
    from inverseflow.commands import denoise_files
    from inverseflow.options import Options

    image, gone = with_gaps()
    path, model = tmp_path / "gaps.ome.zarr", tmp_path / "model.safetensors"
    ivf.write(path, ivf.Image(image.astype(np.float32), "YX"))
    train(image, nan="mask").save(model)
    for number, nan in enumerate(("mask", "refuse")):
        out = tmp_path / f"out{number}.ome.zarr"
        options = Options([str(path)], output=out, model=model, nan=nan, audit=False, page=False, quiet=True)
        if nan == "mask":
            assert denoise_files(options) == 0
            np.testing.assert_array_equal(np.isnan(np.asarray(ivf.read(out))), gone)
        else:
            with pytest.raises(ivf.InputError, match=f"{gone.sum()} NaN or infinite"):
                denoise_files(options)


def test_samples_keep_what_single_precision_would_lose() -> None:
    from inverseflow.imaging import Samples

    values = np.array([[2**24 + 1, 2**24 + 2], [5, 6]], np.uint32)
    for data in (values, values.astype(np.float64)):
        read = Samples(ivf.Image(data, "YX"), "YX").read((), (slice(0, 2), slice(0, 2)))
        assert read.tolist() == [values.tolist()]
    assert Samples(ivf.Image(values.astype(np.uint16), "YX"), "YX").read((), (slice(0, 2),) * 2).dtype == torch.float32


def test_lists_of_images_are_not_arrays() -> None:
    one, both = read_samples([scene(), scene(30, 20)], "YX")[0], read_samples(scene().tolist(), "YX")[0]
    assert [tuple(sample.shape) for sample in one] == [(1, 48, 56), (1, 30, 20)]
    assert [tuple(sample.shape) for sample in both] == [(1, 48, 56)]


# --- training that diverges


class Exploding(torch.nn.Module):
    """At step 50 its gradient is not finite, though its output is: only the weights tell."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.calls = torch.nn.Parameter(torch.zeros(1)), 0

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.calls += self.training and torch.is_grad_enabled()
        bad = self.calls == 50 and torch.is_grad_enabled()
        return x * self.gain + (torch.zeros_like(x) * (self.gain - self.gain).abs().sqrt() if bad else 0.0)


def test_diverged_training_keeps_the_last_good_weights(tmp_path: Path) -> None:
    settings = ivf.Settings(steps=90, batch_size=2, lr=1e-2, checkpoint_steps=10)
    with pytest.raises(ivf.TrainingDiverged, match=r"not finite at step 5[01] of recovering") as caught:
        train(scene(), net=Exploding(), settings=settings)
    left = caught.value.denoiser
    assert "of step 40 of the map, are the denoiser of this exception" in str(caught.value)
    assert np.isfinite(left.denoise(scene(), axes="YX")).all()
    with pytest.raises(ivf.TrainingDiverged, match=r"of step 40 of the map, are in .*last_good"):
        train(scene(), net=Exploding(), settings=settings, folder=tmp_path)
    weights = read_tensors(tmp_path / "flow" / "checkpoint.safetensors", "checkpoint")[0]
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())
    loaded = ivf.Denoiser.load(tmp_path / "last_good.safetensors", net=Exploding())
    assert np.isfinite(loaded.denoise(scene(), axes="YX")).all()


def test_a_loss_without_a_gradient_that_is_finite_is_noticed_at_the_end() -> None:
    """A last step may spoil the weights when no loss will follow to show it."""
    with pytest.raises(ivf.TrainingDiverged, match="of step 40 of the map"):
        train(scene(), net=Exploding(), settings=ivf.Settings(steps=50, batch_size=2), estimate="flow")


def test_the_plus_of_an_exponent_is_no_next_stage() -> None:
    assert ivf.noise.parse("gaussian:sigma=3e+12+poisson:gain=2.E+3") == ivf.Gaussian(3e12).then(ivf.Poisson(2e3))


def test_data_that_a_noise_cannot_give_is_named_with_its_sample() -> None:
    noise = ivf.Poisson(torch.tensor([[1.0], [1.0]]), offset=torch.tensor([[0.0], [10.0]]))
    fine, low = torch.tensor([[[0.0, 3.0, torch.nan]]]), torch.tensor([[[10.0, 9.5, 9.0]]])
    check_against_noise([fine, fine + 10], noise)  # each by its own offset; what is missing is not looked at
    check_against_noise([fine - 5, low - 50], ivf.Gaussian(1.0))
    with pytest.raises(ivf.NoiseError, match=r"value 9 \(in sample 1\), which Poisson noise in .* set its offset"):
        check_against_noise([fine, low], noise)
    with pytest.raises(ivf.NoiseError, match=r"value 2 \(in sample 0\), which Jacobi noise in \[0, 1\] .* into it"):
        check_against_noise([torch.tensor([[0.0, 1.0, 2.0]])], ivf.Jacobi(0.2))


def test_the_statistics_of_data_are_taken_from_centres_all_over_it() -> None:
    images = [torch.full((2, 100, 80 + k), float(k)) for k in range(10)]
    for k, image in enumerate(images):
        image[:, 18:82, 8 + k // 2 : 72 + k // 2] += 100  # the middle 64 x 64
    some, numbers = representative(images, samples_at_most=4)
    assert numbers.tolist() == [0, 3, 6, 9]
    assert some.shape == (4, 2, 64, 64)
    assert some.flatten(1).unique(dim=1).flatten().tolist() == [100, 103, 106, 109]
    some, numbers = representative([torch.zeros(2, 20, 9), torch.ones(2, 7, 30)])
    assert some.shape == (2, 2, 7, 9)
    assert [float(x.unique()) for x in some] == [0, 1]
    rows, every = representative([torch.tensor([float(k)]) for k in range(300)])
    assert rows.flatten().tolist() == every.tolist() == list(range(300))
