"""The object a user keeps: denoises what it should, saves and loads without pickle, keeps order and kind, refuses in
one sentence.
"""

from __future__ import annotations

import json
import pickletools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import inverseflow as ivf
from inverseflow.errors import InputError, ModelFileError, NoiseError
from inverseflow.metrics import psnr
from inverseflow.samples import Scaling
from inverseflow.tensors import expand

QUICK = ivf.Settings(steps=3, batch_size=2)
TINY = ivf.NetSpec("UNet", widths=(4, 8), blocks=1, embedding=8)


def quick(x1, noise="gaussian:sigma=0.1", **arguments) -> ivf.Denoiser:
    arguments = {
        "settings": QUICK,
        "mean_settings": QUICK,
        "patch_size": 16,
        "progress": False,
        "device": "cpu",
        **arguments,
    }
    return ivf.Denoiser.train(x1, noise, **arguments)


def disks(generator: torch.Generator) -> Tensor:
    """Bright smooth disks, as a 2D microscopist would see them: (4, 1, 64, 64), values 0 to 1."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    images = torch.zeros(4, 1, 64, 64)
    for image in images:
        for cy, cx, r in torch.rand(6, 3, generator=generator).tolist():
            image[0] += torch.sigmoid((4 + 8 * r - torch.hypot(y - 64 * cy, x - 64 * cx)) * 1.5) * 0.7
    return images.clamp(0, 1)


@pytest.fixture(scope="module")
def trained() -> tuple[ivf.Denoiser, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    clean = disks(generator)
    noisy = ivf.Gaussian(0.2).sample(clean, generator=generator)
    settings = ivf.Settings(steps=120, batch_size=8, lr=2e-3)
    return quick(noisy, ivf.Gaussian(0.2), settings=settings, mean_settings=settings, patch_size=32), noisy, clean


def test_it_denoises_and_the_mean_has_less_error_than_the_map(trained) -> None:
    model, noisy, clean = trained
    before, flow, mean = (
        psnr(noisy, clean),
        psnr(model.denoise(noisy, estimate="flow"), clean),
        psnr(model.denoise(noisy), clean),
    )
    assert flow > before + 5
    assert mean > before + 6
    assert mean > flow


def test_save_and_load_give_the_same_result_without_pickle(trained, tmp_path: Path) -> None:
    model, noisy, _ = trained
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = ivf.Denoiser.load(path, device="cpu")
    for estimate in ("mean", "flow"):
        assert torch.equal(again.denoise(noisy, estimate=estimate), model.denoise(noisy, estimate=estimate))
    assert again.noise == model.noise
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["inverseflow"])
    assert {"format", "version", "noise", "method", "net", "shift", "scale", "axes"} <= set(header)
    assert header["noise"] == {"kind": "Gaussian", "sigma": 0.2, "channel_correlation": None}
    with pytest.raises(ValueError, match=r".*"):
        pickletools.dis(path.read_bytes()[:64])
    with pytest.raises(ModelFileError, match="exists"):
        model.save(path)
    model.save(path, overwrite=True)


@pytest.mark.parametrize("method", ["icm", "ifm"])
def test_tables_and_both_methods(method: str, tmp_path: Path) -> None:
    x1 = np.random.default_rng(0).normal(size=(200, 3)) * [1, 5, 0.1] + [0, 100, 3]
    model = quick(x1, "gaussian:sigma=0.05", method=method)
    y = model.denoise(x1)
    assert isinstance(y, np.ndarray)
    assert y.shape == x1.shape
    assert np.allclose(
        y.mean(0), x1.mean(0), rtol=0.05, atol=0.1
    )  # an almost untrained model is near the identity, in data units
    model.save(tmp_path / "m.safetensors")
    assert np.array_equal(ivf.Denoiser.load(tmp_path / "m.safetensors", device="cpu").denoise(x1), y)


def test_ifm_mean_is_one_minus_velocity() -> None:
    x1 = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    model = quick(x1, method="ifm")
    y1 = (x1 - model.scaling.shift) / model.scaling.scale
    with torch.no_grad():
        expected = (y1 - model.flow(y1, torch.ones(100))) * model.scaling.scale + model.scaling.shift
    assert torch.allclose(model.denoise(x1, estimate="mean"), expected, atol=1e-6)
    assert model.mean is None


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((20, 24), "YX"),
        ((3, 20, 24), "CYX"),
        ((20, 24, 3), "YXC"),
        ((2, 20, 24), "SYX"),
        ((2, 2, 20, 24), "TCYX"),
        ((9, 20, 24), "ZYX"),
        ((2, 1, 20, 24), None),
    ],
)
def test_order_and_kind_are_kept(shape: tuple[int, ...], axes: str | None) -> None:
    x1 = np.random.default_rng(1).integers(0, 200, size=shape).astype(np.uint16)
    before = x1.copy()
    net = (
        None
        if axes == "ZYX"
        else ivf.NetSpec(
            "UNet", channels=dict(zip(axes or "SCYX", shape, strict=True)).get("C", 1), widths=(4, 8), blocks=1
        )
    )
    model = quick(
        x1, "gaussian:sigma=20", axes=axes, net=net, settings=ivf.Settings(steps=1, batch_size=1), estimate="flow"
    )
    y = model.denoise(x1, axes=axes)
    assert y.shape == shape
    assert y.dtype == np.float32
    assert np.array_equal(x1, before)
    assert np.allclose(y, x1, atol=60)  # one step from the identity: an axis in the wrong place would show


def test_images_of_several_sizes() -> None:
    images = [np.random.default_rng(i).random((20 + 7 * i, 33 - 3 * i), dtype=np.float32) for i in range(3)]
    model = quick(images, axes="YX", net=TINY)
    assert [y.shape for y in model.denoise(images, axes="YX")] == [x.shape for x in images]


def test_one_call() -> None:
    x1 = np.random.default_rng(0).random((2, 1, 20, 20), dtype=np.float32)
    y = ivf.denoise(x1, ivf.Poisson(0.01), settings=QUICK, mean_settings=QUICK, net=TINY, patch_size=16, progress=False)
    assert y.shape == x1.shape
    assert float(y.min()) >= -1e-5  # the domain of Poisson noise


def test_noise_that_varies_by_sample_reaches_training() -> None:
    """Half of the images have 100 times the gain of the others, all their own offset; a crop has its image's noise."""
    generator = torch.Generator().manual_seed(0)
    clean = 5 + disks(generator).repeat(100, 1, 1, 1)
    gain = torch.full((400, 1), 0.001)
    gain[200:] = 0.1
    offset = torch.linspace(-1, 1, 400)[:, None]
    noise = ivf.Poisson(gain, offset)
    x1 = noise.sample(clean, generator=generator)
    seen: list[tuple[Tensor, Tensor]] = []

    def spy(process) -> ivf.InverseConsistency:
        class Spy(ivf.InverseConsistency):
            def loss(self, model, batch, moment):
                seen.append((batch.origin, self.process.select(batch.origin).noise.noise.gain[:, 0]))
                return super().loss(model, batch, moment)

        return Spy(process)

    model = quick(x1, noise, net=TINY, method=spy, estimate="flow")
    assert all(torch.equal(used, gain[origin, 0].double()) for origin, used in seen)
    expected = float((noise.std(clean) / x1.std()).square().mean().sqrt())
    assert model.description["noise_rms"] == pytest.approx(expected, rel=0.05)
    assert model.denoise(x1[:3]).shape == (3, 1, 64, 64)  # new data has no offset of its own


def test_any_module_and_any_method_work(tmp_path: Path) -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Linear(1, 1)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return expand(self.gain(t[:, None])[:, 0], x) * x

    def curved(process) -> ivf.InverseConsistency:
        bridge = ivf.Bridge(process.noise, path=lambda x0, x1, t: x0 + torch.sin(torch.pi / 2 * t) * (x1 - x0))
        return ivf.InverseConsistency(bridge)

    x1 = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    model = quick(x1, net=Mine(), method=curved)
    path = tmp_path / "m.safetensors"
    model.save(path)
    with pytest.raises(ModelFileError, match="net="):
        ivf.Denoiser.load(path, method=curved)
    with pytest.raises(ModelFileError, match="method="):
        ivf.Denoiser.load(path, net=Mine())
    assert torch.equal(ivf.Denoiser.load(path, net=Mine(), method=curved, device="cpu").denoise(x1), model.denoise(x1))


def test_scaling_is_learned_from_the_data() -> None:
    x = (
        torch.randn(1000, 2, 3, 3, generator=torch.Generator().manual_seed(0))
        * torch.tensor([3.0, 0.01])[:, None, None]
        + 7
    )
    scaling = Scaling.of(list(x))
    assert scaling.shift.tolist() == pytest.approx([7, 7], abs=0.1)
    assert scaling.scale.tolist() == pytest.approx([3, 0.01], rel=0.03)


def test_interrupted_training_goes_on(tmp_path: Path) -> None:
    x1 = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    whole = quick(x1, folder=tmp_path / "a")
    again = quick(x1, folder=tmp_path / "a", resume=True)
    assert torch.equal(whole.denoise(x1), again.denoise(x1))
    assert (tmp_path / "a" / "flow" / "metrics.jsonl").exists()
    assert (tmp_path / "a" / "mean" / "checkpoint.safetensors").exists()


IMAGE = np.random.default_rng(0).random((1, 1, 20, 20), dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: quick(np.full((1, 1, 8, 8), np.nan, dtype=np.float32)), InputError, "64 NaN or infinite values of 64"),
        (lambda: quick(np.ones((1, 1, 8, 8), dtype=np.float32)), InputError, "constant"),
        (lambda: quick(IMAGE - 5, ivf.Poisson(0.1)), NoiseError, "cannot give; set its offset"),
        (lambda: quick(255 * IMAGE, ivf.Jacobi(0.2)), NoiseError, "cannot give; bring the data into it"),
        (lambda: quick(IMAGE, "gausian:sigma=1"), NoiseError, "did you mean gaussian"),
        (lambda: quick(IMAGE, "speckle"), NoiseError, "known are"),
        (lambda: quick(IMAGE[0]), InputError, "axes="),
        (lambda: quick(IMAGE, axes="YX"), InputError, "names 2 axes"),
        (lambda: quick(IMAGE, axes="SCYQ"), InputError, "letters STCZYX"),
        (lambda: quick(IMAGE, method="gan"), InputError, "auto, icm, ifm or"),
        (lambda: quick(IMAGE, estimate="best"), InputError, "mean or flow"),
        (lambda: quick([]), InputError, "empty"),
        (lambda: quick(IMAGE, net=TINY).denoise(np.zeros((1, 3, 20, 20))), InputError, "trained on 1 channels"),
        (lambda: quick(IMAGE, net=TINY).denoise(np.full((1, 1, 20, 20), np.inf)), InputError, "NaN or infinite"),
        (
            lambda: quick(IMAGE, net=TINY, estimate="flow").denoise(IMAGE, estimate="mean"),
            InputError,
            "no posterior mean",
        ),
    ],
)
def test_bad_input_gets_one_sentence(call, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_files_that_are_not_models(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.safetensors"
    with pytest.raises(ModelFileError, match="no file"):
        ivf.Denoiser.load(wrong)
    wrong.write_bytes(b"PK\x03\x04 nothing of ours")
    with pytest.raises(ModelFileError, match="not an inverseflow model"):
        ivf.Denoiser.load(wrong)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, wrong)
    with pytest.raises(ModelFileError, match="not an inverseflow model"):
        ivf.Denoiser.load(wrong)
    from inverseflow.checkpoint import write_tensors

    write_tensors(wrong, {"x": torch.zeros(1)}, {"kind": "model", "format": 99})
    with pytest.raises(ModelFileError, match="update inverseflow"):
        ivf.Denoiser.load(wrong)
    write_tensors(wrong, {"x": torch.zeros(1)}, {"kind": "model", "format": 1})
    with pytest.raises(ModelFileError, match="cannot be used as it is"):
        ivf.Denoiser.load(wrong)


def test_a_large_two_dimensional_array_is_asked_about() -> None:
    with pytest.warns(UserWarning, match="axes='YX'"):
        quick(np.random.default_rng(0).random((64, 64)), settings=ivf.Settings(steps=1, batch_size=2), estimate="flow")


@pytest.mark.parametrize("noise", [ivf.Gaussian(0.0), ivf.Quantise(1.0)])
def test_a_noise_that_changes_nothing_is_refused_before_the_training(noise: ivf.Noise) -> None:
    greys = np.random.default_rng(0).integers(50, 200, (64, 60)).astype(np.float32)
    with pytest.raises(NoiseError, match="changes nothing in these data"):
        ivf.Denoiser.train(greys, noise, axes="YX", progress=False, device="cpu")
