"""The audit against a case that is known exactly: Gaussian fields, whose best denoiser is a filter.

x0 has the power P, white noise the power s^2. Then the posterior mean multiplies each frequency by w = P / (P + s^2)
and the inverse flow by sqrt(w).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow.audit import figures, judge, measures
from inverseflow.audit.figures import _worst
from inverseflow.audit.limits import ALONE, MEANING, WITH_DENOISER
from inverseflow.cli import app

SIZE, SIGMA = 256, 0.5
FREQUENCY = np.hypot(np.fft.fftfreq(SIZE)[:, None], np.fft.rfftfreq(SIZE))
POWER = torch.from_numpy(40 * np.exp(-((FREQUENCY / 0.05) ** 2))).float()


def filtered(x: Tensor, factor: Tensor) -> Tensor:
    return torch.fft.irfft2(torch.fft.rfft2(x) * factor, s=x.shape[-2:])


def field(seed: int) -> Tensor:
    white = torch.randn(1, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(1000 + seed))
    return 2.0 + filtered(white, POWER.sqrt())


class Exact:
    """The exact denoiser of the field for a declared sigma, as the audit sees a model."""

    def __init__(self, sigma: float, after: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        self.noise, self.after = ivf.Gaussian(sigma), after
        self.gain = POWER / (POWER + sigma**2)
        self.description, self.axes = {"estimate": "mean"}, "SCYX"

    def function(self, estimate: str | None = None) -> Callable[[Tensor], Tensor]:
        gain = self.gain.sqrt() if estimate == "flow" else self.gain
        return lambda x: self.after(2.0 + filtered(x - 2.0, gain))


def blurred(x: Tensor) -> Tensor:
    return torch.from_numpy(gaussian_filter(x.numpy(), (0, 0, 6, 6)))


def test_the_exact_denoiser_passes() -> None:
    """But for a chance that the limits leave: about one in twenty is doubtful."""
    verdicts = []
    for seed in range(8):
        noisy = ivf.Gaussian(SIGMA).sample(field(seed), generator=torch.Generator().manual_seed(seed))
        exact = Exact(SIGMA)
        verdicts.append(ivf.audit(noisy, exact.function()(noisy), exact).verdict)
    assert verdicts.count("pass") >= 7
    assert "fail" not in verdicts


def test_the_exact_map_is_not_asked_to_be_a_mean() -> None:
    """It keeps the spread of clean data, so x0 goes with it with a slope below 1, and that is right."""
    noisy = ivf.Gaussian(SIGMA).sample(field(0), generator=torch.Generator().manual_seed(0))
    exact = Exact(SIGMA)
    found = ivf.audit(noisy, exact.function("flow")(noisy), exact, estimate="flow")
    assert found.verdict == "pass", found.reasons
    assert "noise gets through" not in [check.name for check in found.checks]


def test_an_empty_channel_is_no_obstacle() -> None:
    noisy = ivf.Gaussian(SIGMA).sample(field(0), generator=torch.Generator().manual_seed(0))
    exact = Exact(SIGMA)
    both = [torch.cat([x, torch.zeros_like(x)], 1) for x in (noisy, exact.function()(noisy))]
    assert ivf.audit(*both, ivf.Gaussian([SIGMA, 1e-3])).verdict in ("pass", "doubtful", "fail")
    first = ivf.audit(*(x.flip(1) for x in both), ivf.Gaussian([1e-3, SIGMA]))
    curve = next(check for check in first.checks if check.name == "other curve declared")
    assert curve.verdict == "pass"  # of the channel that has one


@pytest.mark.parametrize(
    ("model", "figure"),
    [
        (Exact(0.8 * SIGMA), "other curve declared"),
        (Exact(1.4 * SIGMA), "residual by intensity"),
        (Exact(SIGMA, blurred), "residual spectrum"),
        (Exact(SIGMA, lambda x: x + 0.3), "re-noised values"),
    ],
    ids=["too little noise", "too much noise", "over-smoothed", "brightness changed"],
)
def test_what_is_wrong_is_named(model: Exact, figure: str) -> None:
    noisy = ivf.Gaussian(SIGMA).sample(field(0), generator=torch.Generator().manual_seed(0))
    found = ivf.audit(noisy, model.function()(noisy), model)
    assert found.verdict == "fail"
    assert {check.name: check.verdict for check in found.checks}[figure] != "pass"


def test_white_noise_declared_on_correlated_noise_fails() -> None:
    noisy = ivf.CorrelatedGaussian.cosine(SIGMA, 2.0).sample(field(0), generator=torch.Generator().manual_seed(0))
    exact = Exact(SIGMA)
    found = ivf.audit(noisy, exact.function()(noisy), exact)
    assert found.verdict == "fail"
    assert any("Neighbouring pixels" in reason for reason in found.reasons)


def test_residual_of_the_posterior_mean_has_the_variance_of_theory() -> None:
    """E (x1 - E[x0 | x1])^2 = s^2 (1 - mean w): smaller than the noise."""
    noisy = ivf.Gaussian(SIGMA).sample(field(1), generator=torch.Generator().manual_seed(1))
    exact = Exact(SIGMA)
    (residual,) = measures.residuals(noisy, exact.function()(noisy), exact.noise)
    whole = torch.fft.irfft2(exact.gain + 0j, s=(SIZE, SIZE))[0, 0]  # the mean of w over all frequencies
    assert residual.variance.mean() == pytest.approx(1 - float(whole), abs=0.02)
    assert residual.mean == pytest.approx(np.zeros(measures.LEVELS), abs=0.06)


def test_band_power_of_white_noise_is_its_variance() -> None:
    noise = 3.0 * np.random.default_rng(0).normal(size=(4, 128, 160))
    assert measures.band_power(noise) == pytest.approx(np.full(measures.BANDS, 9.0), rel=0.15)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5])
@pytest.mark.parametrize(
    "declared", [ivf.Gaussian(0.2), ivf.CorrelatedGaussian.cosine(0.2, 2.0)], ids=["white", "correlated"]
)
def test_quiet_blocks_measure_the_noise(declared: ivf.Noise, factor: float) -> None:
    flat = torch.full((1, 1, 256, 256), 5.0)
    noisy = flat + factor * (declared.draw(flat, torch.Generator().manual_seed(0)) - flat)
    (found,) = measures.quiet_noise(noisy, declared, flat, torch.Generator().manual_seed(1))
    assert found == pytest.approx(np.log(factor), abs=0.06)


def test_correlation_of_neighbours() -> None:
    noise = ivf.CorrelatedGaussian(1.0, torch.tensor([[1.0, 1.0]]))  # lag 1 along x: 1 / 2, along y: 0
    z = noise.draw(torch.zeros(4, 1, 256, 256), torch.Generator().manual_seed(0))
    assert measures.neighbours(z, -1) == pytest.approx(0.5, abs=0.01)
    assert measures.neighbours(z, -2) == pytest.approx(0.0, abs=0.01)


def test_verdict_of_figures() -> None:
    limits = {"residual mean": 0.1, "signal is lost": 1.0}
    assert judge({"residual mean": 0.09, "signal is lost": -3.0}, limits).verdict == "pass"
    assert judge({"residual mean": 0.11, "signal is lost": -3.0}, limits).verdict == "doubtful"
    assert judge({"residual mean": 0.15, "signal is lost": -3.0}, limits).verdict == "fail"
    both = judge({"residual mean": 0.11, "signal is lost": 1.3}, limits)
    assert both.verdict == "fail"
    assert both.reasons == [MEANING["signal is lost"], MEANING["residual mean"]]
    assert json.loads(json.dumps(both.to_dict()))["checks"][0]["verdict"] == "doubtful"


def test_every_figure_has_a_limit_and_a_meaning() -> None:
    noisy = ivf.CorrelatedGaussian.cosine(SIGMA, 2.0).sample(field(0), generator=torch.Generator().manual_seed(0))
    exact = Exact(SIGMA)
    arguments = (noisy, exact.function()(noisy), exact.noise)
    names = set(figures(*arguments, denoise=exact.function())) | set(figures(noisy, noisy, ivf.Poisson(0.1)))
    names |= set(figures(*arguments[:2], ivf.CorrelatedGaussian.cosine(SIGMA, 2.0)))
    assert names <= set(WITH_DENOISER) | set(ALONE)
    assert set(WITH_DENOISER) | set(ALONE) == set(MEANING)


def test_limits_are_those_that_were_measured() -> None:
    stored = json.loads((Path(__file__).parent.parent / "benchmarks" / "results" / "audit_rates.json").read_text())
    assert stored["with"]["limits"] == WITH_DENOISER
    assert stored["alone"]["limits"] == ALONE
    assert stored["with"]["false_alarms"] <= 0.05
    assert stored["with"]["misses"] <= 0.10
    assert stored["with"]["cases"] >= 200


def test_volumes_and_channels() -> None:
    clean = torch.cat([field(seed)[:, :, :64, :64] for seed in range(6)])[None, :, 0].repeat(1, 2, 1, 1, 1)
    noise = ivf.Gaussian([SIGMA, 2 * SIGMA])
    noisy = noise.sample(clean, generator=torch.Generator().manual_seed(0))
    assert ivf.audit(noisy, clean, noise).verdict == "pass"
    assert ivf.audit(noisy, clean, ivf.Gaussian([SIGMA, 4 * SIGMA])).verdict == "fail"


def test_too_little_to_judge_is_said() -> None:
    with pytest.raises(ivf.InputError, match="32 x 32"):
        ivf.audit(torch.zeros(1, 1, 20, 90), torch.zeros(1, 1, 20, 90), "gaussian:sigma=1")
    with pytest.raises(ivf.InputError, match="one shape"):
        ivf.audit(torch.zeros(1, 1, 64, 64), torch.zeros(1, 1, 64, 65), "gaussian:sigma=1")


@pytest.mark.parametrize(("count", "side"), [(1, 96), (4, 64), (1, 128)])
def test_the_truth_passes_in_small_images(count: int, side: int) -> None:
    """Of few pixels the power at low frequencies is mostly chance."""
    verdicts = []
    for seed in range(12):
        clean = torch.cat([field(4 * seed + k)[:, :, :side, :side] for k in range(count)])
        noisy = ivf.Gaussian(SIGMA).sample(clean, generator=torch.Generator().manual_seed(seed))
        verdicts.append(ivf.audit(noisy, clean, ivf.Gaussian(SIGMA), seed=seed).verdict)
    assert verdicts.count("pass") >= 11
    assert ivf.audit(noisy, blurred(noisy), ivf.Gaussian(SIGMA)).verdict == "fail"
    with pytest.raises(ivf.InputError, match="needs 96 x 96 pixels, or as many in several images"):
        ivf.audit(noisy[:1, :, :64, :64], clean[:1, :, :64, :64], ivf.Gaussian(SIGMA))


def test_a_noise_may_vary_by_sample_and_be_a_function() -> None:
    clean = torch.cat([field(seed)[:, :, :128, :128] for seed in range(6)])
    sizes = torch.tensor([[1.0], [4.0], [1.0], [4.0], [1.0], [4.0]]) * SIGMA
    noise = ivf.Gaussian(sizes)
    noisy = noise.sample(clean, generator=torch.Generator().manual_seed(0))
    assert ivf.audit(noisy, clean, noise).verdict == "pass"
    noisy[0, 0, 5, 7] = torch.nan
    assert ivf.audit(noisy, clean, noise).verdict == "pass"
    wrong = ivf.audit(noisy, clean, ivf.Gaussian(sizes.flip(0)))
    assert wrong.verdict == "fail"
    with pytest.raises(ivf.InputError, match="that of 6 samples, but there are 2"):
        ivf.audit(noisy[:2], clean[:2], noise)
    with pytest.raises(ivf.NoiseError, match="has 2 values, one per channel, but the data has 1 channel"):
        ivf.audit(noisy, clean, ivf.Gaussian([SIGMA, SIGMA]))
    noisy = ivf.Gaussian(SIGMA).sample(clean, generator=torch.Generator().manual_seed(0))
    assert ivf.audit(noisy, clean, ivf.Gaussian(SIGMA).draw).verdict == "pass"
    with pytest.raises(ivf.NoiseError, match="noise must be a noise model"):
        ivf.audit(noisy, clean, SIGMA)


def test_an_array_beside_an_image_has_its_axes() -> None:
    clean = field(0)[0].repeat(2, 1, 1)
    noisy = ivf.Gaussian(SIGMA).sample(clean[:, None], generator=torch.Generator().manual_seed(0))[:, 0]
    found = ivf.audit(ivf.Image(noisy.numpy(), "TYX"), clean.numpy(), ivf.Gaussian(SIGMA))
    assert found == ivf.audit(noisy, clean, ivf.Gaussian(SIGMA), axes="TYX")


def test_axes_are_those_of_the_model_or_of_a_plane() -> None:
    noisy = ivf.Gaussian(SIGMA).sample(field(0), generator=torch.Generator().manual_seed(0))
    exact = Exact(SIGMA)
    result = exact.function()(noisy)
    expected = ivf.audit(noisy, result, exact)
    plane, clear = noisy[0, 0].numpy(), result[0, 0].numpy()
    exact.axes = "YX"
    assert ivf.audit(plane, clear, exact) == expected
    assert ivf.audit(ivf.Image(plane, "YX"), clear, exact) == expected
    found = ivf.estimate_noise(plane)
    assert ivf.audit(plane, clear, found) == ivf.audit(noisy, result, found.noise)
    assert ivf.audit(plane, clear, found, axes="YX").verdict == "pass"
    with pytest.raises(ivf.InputError, match=r"read as SC; if it is an image, pass axes"):
        ivf.audit(plane[:40, :40], clear[:40, :40], Exact(SIGMA))
    with pytest.raises(ivf.InputError, match=r"one shape, not \(1, 1, 256, 256\) and \(1, 1, 256, 255\)"):
        ivf.audit(plane, clear[:, 1:], exact)


def test_a_result_in_other_units_is_refused(tmp_path: Path) -> None:
    """Where no photons arrive the declared noise is nothing, and nothing can be measured in units of it."""
    rng = np.random.default_rng(0)
    light = 50 + 40 * np.sin(np.linspace(0, 9, SIZE)) * np.ones((SIZE, 1))
    files = {"noisy": 100 + 2.0 * rng.poisson(light), "less": light * 2, "share": light / 90, "good": 100 + light * 2}
    for name, image in files.items():
        tifffile.imwrite(tmp_path / f"{name}.tif", image.astype(np.float32), metadata={"axes": "YX"})

    def run(name: str, offset: float) -> tuple[int, str]:
        noise = ["--noise", f"poisson:gain=2,offset={offset}"]
        result = CliRunner().invoke(app, ["audit", *(str(tmp_path / f"{n}.tif") for n in ("noisy", name)), *noise])
        return result.exit_code, result.output

    assert run("good", 100)[0] == 0
    for name, offset in (("share", 100), ("less", 200)):
        code, text = run(name, offset)
        assert code == 1
        assert "the declared noise is 0 everywhere; give the result in the units of the noisy image" in text


def test_a_figure_that_is_no_number_fails() -> None:
    limits = {"residual mean": 0.1, "signal is lost": 1.0}
    found = judge({"residual mean": 0.11, "signal is lost": float("nan")}, limits)
    assert [check.verdict for check in found.checks] == ["doubtful", "fail"]
    assert found.reasons[0] == MEANING["signal is lost"]
    assert np.isnan(_worst([{"residual mean": 1.0}, {"residual mean": float("nan")}])["residual mean"])


def test_the_command_judges_results_of_other_tools(tmp_path: Path) -> None:
    clean = field(0)
    noisy = ivf.Gaussian(SIGMA).sample(clean, generator=torch.Generator().manual_seed(0))
    files = {name: tmp_path / f"{name}.tif" for name in ("noisy", "good", "blurred")}
    results = {"noisy": noisy, "good": Exact(SIGMA).function()(noisy), "blurred": blurred(noisy)}
    for name, image in results.items():
        tifffile.imwrite(files[name], image[0, 0].numpy(), metadata={"axes": "YX"})

    def run(name: str, *options: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["audit", str(files["noisy"]), str(files[name]), *options])
        return result.exit_code, result.stdout

    declared = ("--noise", f"gaussian:sigma={SIGMA}")
    assert run("good", *declared)[0] == 0
    code, text = run("good", *declared, "--json")
    assert json.loads(text)["verdict"] != "fail"
    code, text = run("blurred", *declared)
    assert code == 3
    assert "More was removed than the declared noise holds" in text
    code, text = run("noisy", *declared)
    assert code == 3
    assert "Hardly anything was removed" in text
    assert run("good")[0] == 0  # the noise is found
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blurred.tif", "good.tif", "noisy.tif"]


def test_denoise_says_when_its_result_should_not_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of training leave the noise where it is: everything is written, and the exit code is 3."""
    monkeypatch.chdir(tmp_path)
    noisy = ivf.Gaussian(SIGMA).sample(field(0), generator=torch.Generator().manual_seed(0))
    tifffile.imwrite("a.tif", noisy[0, 0, :96, :96].numpy(), metadata={"axes": "YX"})
    command = ["denoise", "a.tif", "--noise", f"gaussian:sigma={SIGMA}", "--steps", "2", "--device", "cpu"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 3
    assert "Audit: fail" in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tif", "a_denoised.html", "a_denoised.tif"]
    assert '<p class="verdict bad"><span>Audit</span> fail</p>' in Path("a_denoised.html").read_text()
    told = json.loads(CliRunner().invoke(app, [*command, "--force", "--json"]).stdout)
    assert [found["verdict"] for found in told["audits"]] == ["fail"]
    assert CliRunner().invoke(app, [*command, "--force", "--no-audit"]).exit_code == 0
    tifffile.imwrite("tiny.tif", noisy[0, 0, :20, :24].numpy(), metadata={"axes": "YX"})
    tiny = CliRunner().invoke(app, ["denoise", "tiny.tif", *command[2:]])
    assert tiny.exit_code == 0
    assert "No audit: The audit needs images of at least 32 x 32 pixels." in tiny.output


def test_a_constant_image_is_not_judged() -> None:
    blank = np.full((128, 128), 7.0, np.float32)
    with pytest.raises(ivf.InputError, match="constant"):
        ivf.audit(blank, blank, "gaussian:sigma=1", axes="YX")
