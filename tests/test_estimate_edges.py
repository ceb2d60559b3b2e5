"""Images as they should not be: each gives a figure and a sentence, or one sentence; never a traceback or a NaN."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from typer.testing import CliRunner, Result

from inverseflow import Image, InputError, NoiseEstimate, estimate_noise
from inverseflow.cli import app
from inverseflow.estimate import clipping, families, levels
from inverseflow.noise import (
    CorrelatedGaussian,
    CorrelatedSignal,
    Gamma,
    Gaussian,
    Noise,
    Poisson,
    PoissonGaussian,
    Quantise,
    SignalDependent,
)
from test_estimate import noisy, scenes

rng = np.random.default_rng(0)
SIDE = 96
RAMP = np.add.outer(np.linspace(0, 1, SIDE), np.sin(np.linspace(0, 3, SIDE)))
HALF = np.zeros((SIDE, SIDE), bool)
HALF[:, : SIDE // 2] = True


def grain(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def with_values(image: np.ndarray, where: Any, value: float) -> np.ndarray:
    image = image.copy()
    image[where] = value
    return image


SOUND = RAMP + 0.1 * grain(SIDE, SIDE)
SLICES = np.stack([RAMP] * 12)
Case = tuple[np.ndarray, dict[str, Any]]
USABLE: dict[str, Case] = {
    "narrow": (grain(17, 300), {}),
    "checkerboard": (np.indices((64, 64)).sum(0) % 2 + 0.01 * grain(64, 64), {}),
    "single photons": (rng.poisson(0.5, (SIDE, SIDE)), {}),
    "many photons, few pixels": (rng.poisson(1e5 * (1 + 0.3 * np.abs(RAMP[:64, :64]))).astype(np.uint32), {}),
    "half precision": (SOUND.astype(np.float16), {}),
    "a region of NaN": (with_values(SOUND, ~HALF, np.nan), {}),
    "a corner that is not NaN": (with_values(SOUND, slice(12, None), np.nan), {}),
    "a mask": (SOUND, {"mask": HALF}),
    "an empty channel": (np.stack([SOUND, 0 * SOUND]), {"axes": "CYX"}),
    "a channel of NaN": (np.stack([SOUND, np.nan * SOUND]), {"axes": "CYX"}),
    "one slice": (SOUND[None], {"axes": "ZYX"}),
    "three slices": (SLICES[:3] + 0.1 * grain(3, SIDE, SIDE), {"axes": "ZYX"}),
    "tiny slices": (SLICES[:, :16, :16] + 0.1 * grain(12, 16, 16), {"axes": "ZYX"}),
    "small slices": (SLICES[:, :33, :33] + 0.1 * grain(12, 33, 33), {"axes": "ZYX"}),
    "empty slices": (np.concatenate([0 * SLICES[:6], SLICES[:6] + 0.1 * grain(6, SIDE, SIDE)]), {"axes": "ZYX"}),
    "masked slices": (SLICES + 0.1 * grain(12, SIDE, SIDE), {"axes": "ZYX", "mask": HALF}),
    "masked repeats": (np.stack([RAMP] * 3) + 0.1 * grain(3, SIDE, SIDE), {"axes": "TYX", "mask": HALF}),
    "masked repeats of slices": (
        np.stack([SLICES] * 2) + 0.1 * grain(2, 12, SIDE, SIDE),
        {"axes": "TZYX", "mask": HALF},
    ),
    "repeats, one of NaN": (np.stack([SOUND, SOUND * np.nan]), {"axes": "TYX"}),
    "one frame twice": (np.stack([SOUND, SOUND]), {"axes": "TYX"}),
    "correlated asked of too little": (grain(40, 40), {"family": "correlated"}),
    "dark frames that never change": (100 + grain(64, 64), {"dark": np.full((9, 64, 64), 100.0)}),
}
UNUSABLE: dict[str, tuple[np.ndarray, dict[str, Any], str]] = {
    "a line": (grain(1, 500), {}, "1 x 500 pixels is too small"),
    "a column": (grain(500, 1), {}, "500 x 1 pixels is too small"),
    "nothing": (np.zeros((0, 0)), {}, "too small"),
    "hardly a photon": (rng.poisson(0.003, (SIDE, SIDE)), {}, "any noise"),
    "one bright pixel": (with_values(np.zeros((64, 64)), (30, 30), 5.0), {}, "any noise"),
    "a mask that leaves nothing": (SOUND, {"mask": np.zeros((SIDE, SIDE), bool)}, "any noise"),
    "a mask that leaves a speck": (SOUND, {"mask": np.pad(np.ones((10, 10), bool), 43)}, "any noise"),
    "empty channels": (np.zeros((2, SIDE, SIDE)), {"axes": "CYX"}, "any noise"),
    "complex dark frames": (SOUND, {"dark": np.ones((3, 8, 8)) * 1j}, "must be real numbers"),
    "one dark frame": (SOUND, {"dark": np.ones((1, 8, 8))}, "at least two"),
}


@pytest.mark.parametrize("name", USABLE)
def test_a_figure_and_words(name: str) -> None:
    image, options = USABLE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate_noise(image, **options)
    assert all(np.isfinite(part).all() for part in (*found.std_curve, *found.interval))
    assert np.all(found.interval[0] <= found.interval[1])
    assert np.all(found.std_curve[1] > 0)
    assert all(sentence.endswith(".") for sentence in found.warnings)
    dims = 3 if "Z" in options.get("axes", "") else 2
    x = torch.full(
        (1, 2 if "C" in options.get("axes", "") else 1, *(8, 16, 16)[-dims:]), float(found.std_curve[0].max())
    )
    assert torch.isfinite(found.noise.sample(found.noise.project(x))).all()


@pytest.mark.parametrize("name", UNUSABLE)
def test_one_sentence(name: str) -> None:
    image, options, words = UNUSABLE[name]
    with pytest.raises(InputError, match=words) as raised:
        estimate_noise(image, **options)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize(
    "name", ["a mask", "an empty channel", "three slices", "empty slices", "masked repeats of slices"]
)
def test_what_is_left_is_measured_well(name: str) -> None:
    image, options = USABLE[name]
    at = torch.full((1, 1, 1, 1), 0.5)
    assert float(estimate_noise(image, **options).raw.std(at)) == pytest.approx(0.1, rel=0.07)


LAWS: dict[str, Noise] = {
    "gaussian": Gaussian(0.1),
    "poisson": Poisson(0.01),
    "poissongaussian": PoissonGaussian(0.01, 0.03),
    "gamma": Gamma(50.0),
    "signaldependent": SignalDependent(1.0, 0.1, 0.04),
    "correlated": CorrelatedGaussian.cosine(0.1),
    "correlated, with the signal": CorrelatedSignal(0.02, np.outer([1, 2, 1], [1, 2, 1]), gain=0.01),
}


@pytest.mark.parametrize("unit", [2.0**40, 2.0**-40, 2.0**83, 2.0**-83])
@pytest.mark.parametrize("name", LAWS)
def test_the_unit_of_the_data_does_not_matter(name: str, unit: float) -> None:
    """Powers of two, from 1e-25 to 1e25, which round nothing: no block is chosen that was not chosen before."""
    images = noisy(LAWS[name], scenes(2)).astype(np.float64)
    plain, scaled = estimate_noise(images, axes="SYX"), estimate_noise(unit * images, axes="SYX")
    assert scaled.family == plain.family
    assert type(scaled.raw) is type(plain.raw)
    np.testing.assert_allclose(scaled.std_curve[0] / unit, plain.std_curve[0], rtol=1e-9)
    np.testing.assert_allclose(scaled.std_curve[1] / unit, plain.std_curve[1], rtol=1e-9)
    np.testing.assert_allclose(scaled.interval[1] / unit, plain.interval[1], rtol=1e-9)
    assert len(scaled.warnings) == len(plain.warnings)


def test_counts_are_counts_and_anything_added_is_seen() -> None:
    """Only multiples of the gain can be photons alone; a trace of anything else is PoissonGaussian, the same law."""
    clean = 5 + 40 * scenes(2)
    for dtype in (np.float32, np.uint16):
        found = estimate_noise(noisy(Poisson(1.0), clean).astype(dtype), axes="SYX")
        assert found.family == "poisson"
        assert float(found.raw.gain) == pytest.approx(1.0, rel=0.03)
        assert found.levels[0].step == 1
    trace = estimate_noise(noisy(PoissonGaussian(1.0, 0.2), clean), axes="SYX")
    assert trace.family == "poissongaussian"
    assert "poisson" not in trace.scores
    at = trace.std_curve[0]
    np.testing.assert_allclose(trace.raw.std(torch.from_numpy(at)[:, None])[:, 0], np.sqrt(at), rtol=0.05)
    asked = estimate_noise(noisy(PoissonGaussian(1.0, 0.2), clean), axes="SYX", family="poisson")
    assert asked.family == "poisson"
    coarse = families.Law("poisson", {"a": 0.1}, 0.0, 1)
    assert not families.plausible(coarse, levels.Levels(step=1.0))
    assert families.plausible(coarse, levels.Levels(step=0.1))


def test_single_photons_are_no_clip_level() -> None:
    """Of Poisson's law with mean 0.5 61 % are zero, twice as many as one; clipped noise has more zeros than that."""
    assert levels.find_levels([rng.poisson(0.5, (128, 128)).astype(np.float32)]).low is None
    assert levels.find_levels([rng.poisson(0.05, (128, 128)).astype(np.float32)]).low is None
    dark = np.clip(np.round(rng.normal(1, 3, (128, 128))), 0, None)
    assert levels.find_levels([dark.astype(np.float32)]).low == 0
    bright = np.clip(np.round(rng.normal(252, 6, (128, 128))), None, 255)
    assert levels.find_levels([bright.astype(np.float32)]).high == 255
    found = estimate_noise(rng.poisson(0.5, (256, 256)))
    assert float(found.raw.std(torch.full((1, 1), 0.5))) == pytest.approx(np.sqrt(0.5), rel=0.04)


def test_moments_of_clipped_noise() -> None:
    for d in (-0.5, 0.0, 0.7, 1.5, 4.0):
        moments = [quad(lambda z, n=n, d=d: (z + d) ** n * stats.norm.pdf(z), -d, 12)[0] for n in (1, 2)]
        mean, variance = clipping.clipped_moments(np.array(d))
        assert (mean, variance) == pytest.approx((moments[0], moments[1] - moments[0] ** 2), rel=1e-6)


@pytest.mark.parametrize("above", [1.0, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("frames", [1, 2])
def test_dark_noise_is_that_before_clipping(above: float, frames: int) -> None:
    """A detector that writes nothing below 0, the level of the dark so many sd above it. Of single frames, blocks
    without any clipped pixel alone would give 12 % too little at 1.5 sd and 5 % at 2.
    """
    values = np.random.default_rng(3).normal(25 * above, 25, (frames, 384, 384))
    dark = np.clip(np.round(values), 0, 255)
    upside_down = 255 - dark
    for images, end in ((dark, "low"), (upside_down, "high")):
        found = estimate_noise(images, axes="TYX", repeats="T" if frames > 1 else "")
        assert getattr(found.levels[0], end) is not None
        assert float(np.mean(found.std_curve[1])) == pytest.approx(25, rel=0.035 if above < 1.5 else 0.02)


def test_twelve_bits_above_a_black_level() -> None:
    """A camera of gain 2.3, read noise 3 and a black level of 100, in uint16."""
    camera = PoissonGaussian(2.3, 3.0, offset=100.0).then(Quantise(1.0))
    clean = 100 + 900 * np.clip(scenes(3) - 0.15, 0, None)
    found = estimate_noise(noisy(camera, clean).clip(0, 4095).astype(np.uint16), axes="SYX")
    assert found.family == "poissongaussian"
    at = np.linspace(105, 800, 30)
    true = np.sqrt(2.3 * (at - 100) + 9)
    ours = found.raw.std(torch.from_numpy(at)[:, None])[:, 0].numpy()
    assert np.sqrt(np.mean((ours / true - 1) ** 2)) < 0.05
    assert found.levels[0] == levels.Levels(step=1.0)


def test_equal_scores_leave_nothing_to_chance() -> None:
    laws = [families.Law(name, {}, 1.0, 1) for name in ("gamma", "poisson", "gaussian")]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        assert families.choose([{laws[k].family: laws[k] for k in order}]) == "gaussian"


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("name", ["narrow", "checkerboard", "three slices", "an empty channel", "single photons"])
def test_the_command_says_what_it_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image, options = USABLE[name]
    np.save("image.npy", image)
    result = command("noise", "image.npy", "--axes", options.get("axes", "YX"), "-o", "found.yaml", "--plot", "p.png")
    assert result.exit_code == 0, result.output
    assert "sd " in result.output
    assert "95 % interval" in result.output
    assert "misfit" in result.output
    assert "nan" not in result.output.lower()
    found = NoiseEstimate.from_yaml("found.yaml")
    assert np.isfinite(found.std_curve[1]).all()
    assert Path("p.png").stat().st_size > 5000


@pytest.mark.parametrize("name", ["a line", "one bright pixel", "empty channels"])
def test_the_command_says_what_is_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image, options, words = UNUSABLE[name]
    np.save("image.npy", image)
    axes = options.get("axes", "YX")
    found = command("noise", "image.npy", "--axes", axes)
    assert (found.exit_code, found.output.count("\n")) == (1, 1)
    assert words in found.output
    planned = command("denoise", "image.npy", "--axes", axes, "--dry-run")
    assert (planned.exit_code, planned.output.count("\n")) == (2, 1)
    assert "--noise gaussian:sigma=10" in planned.output


def test_too_little_is_told_of_the_channel_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("image.npy", (10 * RAMP + np.array([1.0, 1.0, 4.0])[:, None, None] * grain(3, SIDE, SIDE)))
    Path("three.yaml").write_text("noise: {kind: Gaussian, sigma: [1.0, 1.0, 4.0]}\n")
    Path("two.yaml").write_text("noise: {kind: Gaussian, sigma: [1.0, 1.0]}\n")
    plan = ("denoise", "image.npy", "--axes", "CYX", "--dry-run", "--noise")
    assert "less noise than the images show" in command(*plan, "gaussian:sigma=1").output
    assert "less noise than the images show" not in command(*plan, "three.yaml").output
    wrong = command(*plan, "two.yaml")
    assert (wrong.exit_code, wrong.output.count("\n")) == (2, 1)
    assert "sigma has 2 values, one per channel, but the data has 3 channels" in wrong.output


def test_a_signal_below_zero_stays_in_the_domain() -> None:
    """A background was subtracted: with an offset of 0 all that is dark would become 0, with too much noise."""
    light = np.linspace(100, 1100, 384) * np.ones((256, 1))
    image = 3 * np.random.default_rng(0).poisson(light / 3) - 500.0
    found = estimate_noise(image).raw
    dark = torch.full((1, 1, 1, 1), -350.0)
    assert found.project(dark) == dark
    assert float(found.std(dark)) == pytest.approx(np.sqrt(3 * 150), rel=0.05)
    assert float(estimate_noise(image + 600 + 9 * np.random.default_rng(1).normal(size=image.shape)).raw.offset) > 0


def test_noise_that_no_family_describes_is_told() -> None:
    own, light = np.random.default_rng(0), np.linspace(10, 1000, 384) * np.ones((256, 1))
    falls = 3000 - 3 * own.poisson(light / 3)
    assert any("does not follow gaussian noise: the sd is off by" in said for said in estimate_noise(falls).warnings)
    rises = estimate_noise(3000 - falls)
    assert rises.family == "poisson"
    assert not any("does not follow" in said for said in rises.warnings)
    dark = 100 + own.normal(size=(20, SIDE, SIDE))
    flat = 100 + 3.0 * own.poisson(300, (20, SIDE, SIDE))
    for gain, told in ((3, False), (20, True)):
        said = estimate_noise(100 + gain * own.poisson(light / gain), dark=dark, flat=flat).warnings
        assert any("other noise than the calibration frames say" in sentence for sentence in said) == told


def test_masked_arrays_and_images_are_read_as_such() -> None:
    hidden = with_values(SOUND, (slice(0, 40), slice(0, 96)), 0.0)
    hidden[:40] += 50 * grain(40, SIDE)
    masked = np.ma.masked_array(hidden, np.arange(SIDE)[:, None].repeat(SIDE, 1) < 40)
    found, expected = estimate_noise(masked), estimate_noise(SOUND[40:])
    assert found.std_curve[1] == pytest.approx(expected.std_curve[1], rel=0.1)
    dark = (100 + grain(9, SIDE, SIDE)).astype(np.float32)
    assert float(estimate_noise(SOUND, dark=Image(dark, "TYX")).raw.offset) == pytest.approx(100, abs=0.1)
    for name in ("cells.tif", Path("cells.tif")):
        with pytest.raises(InputError, match=r"'cells.tif' is the name of a file"):
            estimate_noise(name)


def test_calibration_frames_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    light = 50 + 100 * np.abs(RAMP[:64, :64])
    frames = {"dark.npy": 0 * light, "flat.npy": 0 * light + 200, "image.npy": light}
    for path, photons in frames.items():
        count = (1,) if path == "image.npy" else (60,)
        stack = 100 + 1.8 * rng.poisson(photons, (*count, 64, 64)) + 2 * grain(*count, 64, 64)
        np.save(path, stack.round().astype(np.uint16).squeeze())
    arguments = ["noise", "image.npy", "--axes", "YX", "--dark", "dark.npy", "--flat", "flat.npy", "-o", "camera.yaml"]
    assert command(*arguments).exit_code == 0
    found = NoiseEstimate.from_yaml("camera.yaml").raw
    assert (float(found.gain), float(found.sigma), float(found.offset)) == pytest.approx((1.8, 2, 100), rel=0.03)
    short = command(*arguments[:4], "--dark", "image.npy")
    assert short.exit_code != 0
    assert "Traceback" not in short.output
