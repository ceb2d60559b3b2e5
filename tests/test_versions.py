"""Files of every format that was ever written still load, and give what they gave. See tests/store_formats.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow.checkpoint import read_tensors
from inverseflow.cli import app
from inverseflow.errors import deprecated
from inverseflow.header import FORMATS
from inverseflow.noise import Clip, Quantise
from inverseflow.noise.file import read_noise
from inverseflow.samples import Scaling
from store_formats import NOISE, STEPS, TINY

DATA = Path(__file__).parent / "data"


def stored(kind: str) -> list[int]:
    return sorted(int(path.stem.rpartition("_")[2]) for path in DATA.glob(f"{kind}_*.*"))


def test_every_format_has_a_file() -> None:
    for kind, newest in FORMATS.items():
        assert stored(kind) == list(range(1, newest + 1))


@pytest.mark.parametrize("version", stored("model"))
def test_a_model_gives_what_it_gave(version: int) -> None:
    expected = np.load(DATA / f"expected_{version}.npz", allow_pickle=False)
    model = ivf.Denoiser.load(DATA / f"model_{version}.safetensors", device="cpu")
    assert model.noise == NOISE
    x1 = torch.from_numpy(expected["x1"][:1].astype(np.float32))
    mean, std = model.denoise(x1, return_std=True)
    found = {"mean": mean, "std": std, "flow": model.denoise(x1, estimate="flow")}
    found |= {"low": model.interval(x1, 0.9)[0], "sample": model.sample(x1, 1, seed=3)}
    for name, values in found.items():
        np.testing.assert_allclose(values.numpy(), expected[name], rtol=1e-4, atol=1e-2, err_msg=name)
    assert float((mean - x1).std()) > 5  # it did something


@pytest.mark.parametrize("version", stored("generator"))
def test_a_generator_draws_what_it_drew(version: int) -> None:
    expected = np.load(DATA / f"expected_{version}.npz", allow_pickle=False)
    drawn = ivf.Generator.load(DATA / f"generator_{version}.safetensors", device="cpu").sample(2, seed=3)
    np.testing.assert_allclose(drawn.numpy(), expected["generated"], rtol=1e-3, atol=0.1)


@pytest.mark.parametrize("version", stored("checkpoint"))
def test_a_training_goes_on_from_its_checkpoint(version: int, tmp_path: Path) -> None:
    path = DATA / f"checkpoint_{version}.safetensors"
    tensors, header = read_tensors(path, "checkpoint")
    assert header["step"] == STEPS.steps
    (tmp_path / "flow").mkdir()
    shutil.copy(path, tmp_path / "flow" / "checkpoint.safetensors")
    x1 = np.load(DATA / "expected_1.npz", allow_pickle=False)["x1"].astype(np.float32)
    shift, scale = (torch.tensor([number]) for number in header["settings"]["data"])
    model = ivf.Denoiser.train(
        torch.from_numpy(x1), NOISE, net=ivf.NetSpec("UNet", channels=1, **TINY), settings=STEPS, estimate="flow",
        scaling=Scaling(shift, scale), preset="fast", patch_size=16, device="cpu", folder=tmp_path, resume=True,
        progress=False,
    )  # fmt: skip
    name = "net.leave.weight"  # it had all its steps, so the result is what the checkpoint holds
    assert torch.equal(model.flow.state_dict()[name], tensors[f"average.{name}"])


def test_a_noise_file_is_read_as_it_was_meant() -> None:
    assert read_noise(DATA / "noise_1.yaml") == NOISE.then(Clip(0, 4095)).then(Quantise(1.0))


def test_info_says_what_a_model_is() -> None:
    result = CliRunner().invoke(app, ["info", str(DATA / "model_1.safetensors")])
    assert result.exit_code == 0, result.output
    told = {line[2:18].strip(): line[19:] for line in result.output.splitlines()[1:]}
    assert (told["kind"], told["format"], told["axes"], told["channels"]) == ("model", "1", "SCYX", "1")
    assert "gain=2" in told["noise"]
    assert "flow 150" in told["steps"]
    model = ivf.Denoiser.load(DATA / "model_1.safetensors", device="cpu")
    weights = sum(values.numel() for values in model.flow.state_dict().values())
    assert f"flow {weights:,}" in told["weights"]
    assert "0.9 " in told["coverage"]


def test_info_says_it_in_json_and_of_generators_and_checkpoints_too() -> None:
    names = ("model_1", "generator_1", "checkpoint_1")
    result = CliRunner().invoke(app, ["info", "--json", *(str(DATA / f"{name}.safetensors") for name in names)])
    assert result.exit_code == 0, result.output
    model, generator, checkpoint = json.loads(result.output)
    assert [found["kind"] for found in (model, generator, checkpoint)] == ["model", "generator", "checkpoint"]
    assert set(model["coverage"]) == {"0.5", "0.8", "0.9", "0.95"}
    assert generator["shape"] == "1 x 16 x 16"
    assert checkpoint["step"] == 150


def test_what_is_deprecated_says_so_where_it_is_called() -> None:
    def old() -> int:
        deprecated("old()", "new()", since="0.2")
        return 1

    with pytest.warns(FutureWarning, match=r"old\(\) is deprecated since 0\.2.*use new\(\)") as caught:
        assert old() == 1
    assert caught[0].filename == __file__
