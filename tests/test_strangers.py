"""Files from strangers: what lies, bombs or hides code is refused with one sentence, before it takes memory."""

from __future__ import annotations

import ast
import json
import pickle
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow.checkpoint import read_tensors, write_tensors
from inverseflow.cli import app
from inverseflow.errors import ModelFileError, NoiseError
from inverseflow.header import MAX_BYTES
from inverseflow.nets import NetSpec
from inverseflow.noise.file import read_noise
from inverseflow.patches import Rows

DATA = Path(__file__).parent / "data"
SOURCE = Path(__file__).parent.parent / "src" / "inverseflow"
MODEL = DATA / "model_1.safetensors"


def refused(*arguments: str, code: int = 1) -> str:
    """The one sentence with which the command refuses."""
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu"] if arguments[0] != "info" else list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    told = result.stderr.strip().splitlines()
    assert told[-1].startswith("inverseflow: "), result.output
    assert told[-1].endswith((".", "?")), told
    assert len(told) == 1, told
    return told[-1]


# --- models, generators and checkpoints


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """(the table of tensors, what we say in it, the values) of a safetensors file."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    table = json.loads(raw[8 : 8 + length])
    about = json.loads(table.pop("__metadata__")["inverseflow"])
    return table, about, raw[8 + length :]


def craft(path: Path, table: dict[str, Any], about: Any, values: bytes) -> Path:
    text = about if isinstance(about, str) else json.dumps(about)
    header = json.dumps({"__metadata__": {"inverseflow": text}, **table}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + values)
    return path


def overlapping(table: dict[str, Any]) -> None:
    names = sorted(table, key=lambda name: table[name]["data_offsets"])
    first, second = next(
        (a, b) for a in names for b in names if a != b and table[a]["shape"] == table[b]["shape"] != []
    )
    table[second]["data_offsets"] = table[first]["data_offsets"]


def outside(table: dict[str, Any]) -> None:
    last = max(table, key=lambda name: table[name]["data_offsets"][1])
    table[last]["shape"] = [10**6, *table[last]["shape"]]
    a, b = table[last]["data_offsets"]
    table[last]["data_offsets"] = [a, a + (b - a) * 10**6]


def overflowing(table: dict[str, Any]) -> None:
    table["flow.t_min"] |= {"shape": [2**62, 2**62, 4]}


TABLES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "overlapping tensors": (overlapping, "overlap"),
    "offsets outside the file": (outside, "outside the file"),
    "a shape that overflows": (overflowing, "not the size of its shape"),
    "a negative shape": (lambda t: t["flow.t_min"].update(shape=[-1, -1]), "not the size of its shape"),
    "offsets that are no numbers": (lambda t: t["flow.t_min"].update(data_offsets="x"), "not described"),
    "an unknown type": (lambda t: t["flow.t_min"].update(dtype="PYOBJ"), "not described"),
    "a gap": (lambda t: t.pop("flow.t_min"), "gap|longer than its tensors"),
    "many tensors": (
        lambda t: t.update({f"x{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(100_001)}),
        "100000 are the most",
    ),
    "another type": (lambda t: t["flow.t_min"].update(dtype="I32"), "are I32"),
    "another shape": (lambda t: t["flow.t_min"].update(shape=[1]), "but its network takes"),
    "another name": (lambda t: t.update({"flow.evil": t.pop("flow.t_min")}), "flow.evil|flow.t_min"),
}


@pytest.mark.parametrize("trick", TABLES)
def test_a_table_of_tensors_that_lies_is_refused(trick: str, tmp_path: Path) -> None:
    change, words = TABLES[trick]
    table, about, values = parts(MODEL)
    change(table)
    with pytest.raises(ModelFileError, match=words) as caught:
        ivf.Denoiser.load(craft(tmp_path / "m.safetensors", table, about, values), device="cpu")
    assert "\n" not in str(caught.value)


HUGE = {"kind": "UNet", "channels": 1, "widths": [10_000, 10_000], "blocks": 1}
ABOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "a network of a billion weights": ({"net": HUGE}, "a network of .*e\\+09 weights"),
    "a network of a billion blocks": ({"net": {"kind": "UNet", "blocks": 10**9}}, "blocks=1000000000 is not possible"),
    "a network of many levels": ({"net": {"kind": "UNet", "widths": [1] * 1000}}, "is not possible"),
    "a network of code": ({"net": {"kind": "os.system"}}, "no network called"),
    "an argument of Python": ({"net": {"kind": "UNet", "__class__": 1}}, "is not possible"),
    "another network": ({"net": {"kind": "UNet", "channels": 1, "widths": [4, 8, 8], "blocks": 1}}, "weights"),
    "other axes": ({"axes": "SCZYX"}, "cannot be used as it is"),
    "axes that are none": ({"axes": "../../"}, "there are no axes"),
    "other channels": ({"channels": 3}, "channels"),
    "a noise for other channels": ({"noise": {"kind": "Poisson", "gain": 1, "offset": [1, 2, 3]}}, "cannot be used"),
    "a noise of code": ({"noise": {"kind": "FunctionNoise", "function": "os.system"}}, "no noise called"),
    "a noise nested in itself": ({"noise": {"kind": "Composition", "noises": []}}, "at least one noise"),
    "a method of code": ({"method": "os.system"}, "method="),
    "text for a number": ({"noise_rms": "1.0"}, "'noise_rms' in its header must be a number, not '1.0'"),
    "a number for text": ({"axes": 3}, "'axes' in its header must be text, not 3"),
    "a wrong history": ({"history": {"flow": [{"step": "x"}]}}, "'history' in its header must be"),
    "half a history": ({"history": {"flow": [{"step": 1}]}}, "lacks the step or the loss"),
    "a scale of zero": ({"scale": [0.0]}, "greater than 0"),
    "coverage of nothing": ({"coverage": {"<script>": 0.9}}, "levels of its intervals"),
    "a part that is not known": ({"nets": {"evil": HUGE}}, "no part of a model"),
    "a format of the future": ({"format": 99, "version": "9.1"}, r"written by inverseflow 9\.1.*update inverseflow"),
    "a format of no kind": ({"format": "x"}, "no format number"),
    "another kind": ({"kind": "generator"}, "not an inverseflow model but a generator"),
}


@pytest.mark.parametrize("trick", ABOUTS)
def test_a_header_that_lies_is_refused_before_it_costs_memory(trick: str, tmp_path: Path) -> None:
    change, words = ABOUTS[trick]
    table, about, values = parts(MODEL)
    path = craft(tmp_path / "m.safetensors", table, about | change, values)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=words) as caught:
        ivf.Denoiser.load(path, device="cpu")
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"kind": "model"}))


def write_torch_pickle(path: Path) -> None:
    torch.save({"kind": "model"}, path)


def write_length(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**63 - 1) + b"{}")


def write_large_header(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(90_000_100)


def write_large_tensors(path: Path) -> None:
    table, about, _ = parts(MODEL)
    with open(craft(path, table, about, b""), "r+b") as file:
        file.truncate(MAX_BYTES + 10**6)  # costs no disk


def write_deep(path: Path) -> None:
    table, _, values = parts(MODEL)
    craft(path, table, '{"kind": "model", "x": ' + "[" * 10**5 + "]" * 10**5 + "}", values)


def write_rather_deep(path: Path) -> None:
    table, _, values = parts(MODEL)
    craft(path, table, '{"kind": "model", "x": ' + "[" * 50 + "]" * 50 + "}", values)


def write_wide(path: Path) -> None:
    table, _, values = parts(MODEL)
    craft(path, table, '{"kind": "model", "x": [' + "[]," * 10**6 + "[]]}", values)


def write_twice(path: Path) -> None:
    table, about, values = parts(MODEL)
    craft(path, table, json.dumps(about)[:-1] + ', "axes": "SCYX"}', values)


def write_nan(path: Path) -> None:
    table, about, values = parts(MODEL)
    craft(path, table, about | {"noise_rms": float("nan")}, values)


def write_infinity(path: Path) -> None:
    table, about, values = parts(MODEL)
    craft(path, table, json.dumps(about)[:-1] + ', "more": 1e999}', values)


def write_nan_weights(path: Path) -> None:
    table, about, values = parts(MODEL)
    place = next(entry for name, entry in table.items() if name.endswith("enter.weight"))["data_offsets"][0]
    craft(path, table, about, values[:place] + struct.pack("<f", float("nan")) + values[place + 4 :])


def write_half(path: Path) -> None:
    path.write_bytes(MODEL.read_bytes()[:-1000])


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle renamed": (write_pickle, "Python pickle"),
    "a pickle of torch": (write_torch_pickle, "Python pickle"),
    "a header longer than the file": (write_length, "longer than the file"),
    "an oversized header": (write_large_header, "32 are the most"),
    "oversized tensors": (write_large_tensors, "8 are the most"),
    "deep JSON": (write_deep, "nested too deeply"),
    "rather deep JSON": (write_rather_deep, "nested too deeply"),
    "wide JSON": (write_wide, "too many parts"),
    "a key twice": (write_twice, "stands twice"),
    "NaN in JSON": (write_nan, "the number NaN"),
    "an infinity in JSON": (write_infinity, "number that is too large"),
    "weights that are NaN": (write_nan_weights, "NaN or infinite"),
    "half a file": (write_half, "outside the file"),
    "nothing": (lambda path: path.write_bytes(b""), "longer than the file"),
    "text": (lambda path: path.write_text("hello" * 100), "longer than the file"),
}


@pytest.mark.parametrize("trick", FILES)
def test_every_known_trick_is_one_sentence_of_the_command(trick: str, tmp_path: Path) -> None:
    write, words = FILES[trick]
    path = tmp_path / "m.safetensors"
    write(path)
    with pytest.raises(ModelFileError, match=words):
        ivf.Denoiser.load(path, device="cpu")
    np.save(tmp_path / "noisy.npy", np.ones((40, 36), np.float32))
    told = refused("denoise", str(tmp_path / "noisy.npy"), "--model", str(path))
    assert str(path) in told
    if trick != "weights that are NaN":  # what a file says of itself is all that info reads
        assert refused("info", str(path))
    assert refused("generate", str(path), "-o", str(tmp_path / "out"))
    assert {p.name for p in tmp_path.iterdir()} == {"m.safetensors", "noisy.npy"}


def test_more_in_a_header_is_ignored_with_a_warning(tmp_path: Path) -> None:
    table, about, values = parts(MODEL)
    path = craft(tmp_path / "m.safetensors", table, about | {"colour": "red"}, values)
    with pytest.warns(UserWarning, match=r"m\.safetensors says more than this version knows \('colour'\)"):
        ivf.Denoiser.load(path, device="cpu")


def test_a_header_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    """A noise with its own number for every value; a training with a folder is refused before its first step."""
    sigma = torch.rand(1_000_000, 2) + 1.0
    with pytest.raises(ivf.InputError, match=r"would say more of itself than 30 MB; .* so keep the results"):
        write_tensors(tmp_path / "a.safetensors", {}, {"kind": "model", "noise": ivf.Gaussian(sigma).to_dict()})
    settings = ivf.Settings(steps=1, batch_size=2)
    with pytest.raises(ivf.InputError, match="or train without a folder"):
        ivf.fit(
            nn.Linear(2, 2), lambda *_: pytest.fail("a step"), Rows(torch.zeros(4, 2)), settings, device="cpu",
            folder=tmp_path / "run", identity={"noise": sigma.tolist()}, progress=False,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


OPENED: list[str] = []
LISTENING: list[bool] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if LISTENING and event in ("open", "os.listdir", "subprocess.Popen", "os.system", "socket.connect"):
        OPENED.append(str(arguments[0]))


def test_no_path_in_a_header_is_opened_and_nothing_is_run(tmp_path: Path) -> None:
    table, about, values = parts(MODEL)
    secret = tmp_path / "secret"
    secret.write_text("x")
    paths = {"noise": about["noise"] | {"offset": [90.0]}, "file": str(secret), "history": {str(secret): []}}
    path = craft(tmp_path / "m.safetensors", table, about | paths, values)
    sys.addaudithook(listen)
    LISTENING.append(True)
    try:
        with pytest.warns(UserWarning, match="'file'"):
            ivf.Denoiser.load(path, device="cpu")
    finally:
        LISTENING.clear()
    assert {Path(name) for name in OPENED if name.startswith(str(tmp_path))} == {path}


GENERATOR = DATA / "generator_1.safetensors"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [1, 10**9, 10**9]}, "cannot draw samples"),
        ({"shape": []}, "cannot draw samples"),
        ({"shape": [1] * 9}, "cannot draw samples"),
        ({"shape": [1, 16]}, "cannot draw samples"),
        ({"shape": [1, 16, 16, 16], "axes": "SCZYX"}, "cannot be used as it is"),
        ({"shape": [2, 16, 16]}, "shift and scale"),
        ({"axes": "SCX"}, "cannot draw samples"),
        ({"method": "os.system"}, "neither flow nor consistency"),
        ({"net": HUGE}, "a network of .*e\\+09 weights"),
        ({"format": 2}, "update inverseflow"),
        ({"shape": "16"}, "'shape' in its header must be a list"),
    ],
)
def test_a_generator_that_lies_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    table, about, values = parts(GENERATOR)
    path = craft(tmp_path / "g.safetensors", table, about | change, values)
    with pytest.raises(ModelFileError, match=words):
        ivf.Generator.load(path, device="cpu")
    assert refused("generate", str(path), "-o", str(tmp_path / "out"))


def test_a_generator_is_no_model_and_a_model_no_generator(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not an inverseflow model but a generator"):
        ivf.Denoiser.load(GENERATOR)
    with pytest.raises(ModelFileError, match="not an inverseflow generator but a model"):
        ivf.Generator.load(MODEL)


def test_the_network_of_a_file_costs_no_memory_before_it_is_believed() -> None:
    outline = NetSpec.from_dict({"kind": "UNet", "widths": [512, 2048], "blocks": 2}).outline()
    assert all(values.is_meta for values in outline.state_dict().values())


# --- checkpoints


def resume(folder: Path) -> None:
    from store_formats import NOISE, STEPS, TINY, scene

    net = NetSpec("UNet", channels=1, **TINY)
    ivf.Denoiser.train(
        scene(), NOISE, net=net, settings=STEPS, estimate="flow", preset="fast", patch_size=16, device="cpu",
        folder=folder, resume=True, progress=False,
    )  # fmt: skip


CHECKPOINTS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "text for the step": (lambda t, a: a.update(step="1"), "'step' in its header must be a whole number"),
    "no settings": (lambda t, a: a.pop("settings"), "lacks 'settings'"),
    "a format of the future": (lambda t, a: a.update(format=2), "update inverseflow"),
    "other settings": (lambda t, a: a["settings"].update(lr=7), "other settings"),
    "a bad hurry": (lambda t, a: a.update(hurried=[1]), "does not fit"),
    "weights under another name": (lambda t, a: t.update({"model.x": t.pop("model.net.leave.bias")}), "does not fit"),
    "an optimiser under another name": (
        lambda t, a: t.update({"optimizer.0.evil": t.pop("optimizer.0.step")}),
        "does not fit",
    ),
    "an optimiser of another parameter": (
        lambda t, a: t.update({"optimizer.99.step": t.pop("optimizer.0.step")}),
        "does not fit",
    ),
}


@pytest.mark.parametrize("trick", CHECKPOINTS)
def test_a_checkpoint_that_lies_is_refused(trick: str, tmp_path: Path) -> None:
    change, words = CHECKPOINTS[trick]
    table, about, values = parts(DATA / "checkpoint_1.safetensors")
    change(table, about)
    (tmp_path / "flow").mkdir()
    craft(tmp_path / "flow" / "checkpoint.safetensors", table, about, values)
    with pytest.raises(ModelFileError, match=words):
        resume(tmp_path)


@pytest.mark.parametrize("trick", FILES)
def test_a_checkpoint_with_a_trick_is_refused(trick: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    FILES[trick][0](path)
    with pytest.raises(ModelFileError, match="checkpoint"):
        read_tensors(path, "checkpoint")


# --- nothing in the package opens a pickle


def test_nothing_ever_opens_a_pickle_or_runs_text() -> None:
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, path
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert called not in ("eval", "exec", "compile", "os.system", "yaml.unsafe_load", "yaml.full_load"), path
            assert called != "torch.load" or given.get("weights_only") == "True", path
            assert called not in ("np.load", "numpy.load") or given.get("allow_pickle") == "False", path
            assert "allow_pickle" not in given or given["allow_pickle"] == "False", path
            assert called != "yaml.load" or given.get("Loader") == "_Loader", path


# --- the YAML of a noise

LAUGHS = "\n".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9))
YAMLS = {
    "a billion laughs": ("a0: &a0 [x, x]\n" + LAUGHS + "\nnoise: *a9\n", "alias"),
    "a tag of Python": ("noise: !!python/object/apply:os.system ['touch hacked']\n", "tag"),
    "a tag": ("noise: !!binary aGk=\n", "tag"),
    "deep": ("noise: " + "[" * 10_000 + "]" * 10_000, "nested too deeply"),
    "long": ("noise: [" + "1," * 400_000 + "1]", "too long"),
    "large": ("noise: gaussian:sigma=1\n#" + "x" * 9 * 2**20, "larger than 8 MB"),
    "a key twice": ("noise: gaussian:sigma=1\nnoise: gaussian:sigma=2\n", "stands twice"),
    "an unknown key": ("noise: {kind: Gaussian, sigma: 3, sgima: 3}", "it was given sigma, sgima"),
    "a key that is no name": ("noise: {kind: Gaussian, 3: 3}", "Gaussian takes sigma"),
    "an unknown noise": ("noise: gausian:sigma=3", "did you mean gaussian"),
    "no noise": ("sigma: 3", "has no noise in it"),
    "ragged rows": ("noise: {kind: CorrelatedGaussian, sigma: 1, kernel: [[1, 2], [3]]}", "cannot be made of"),
    "a date": ("noise: 2020-01-99", "not YAML"),
    "a kernel as large as the sea": ("noise: cosine:sigma=1,a=1e9", "larger than any image"),
    "an infinite kernel": ("noise: cosine:sigma=1,a=1e308", "larger than any image"),
    "endless steps": ("noise: jacobi:time=0.2,steps=1e12", "1 to 100000 steps"),
    "an empty composition": ("noise: {kind: Composition, noises: []}", "at least one noise"),
    "bytes": (b"\xff\xfe\x00noise", "not YAML"),
}


@pytest.mark.parametrize("trick", YAMLS)
def test_a_noise_file_with_a_trick_is_refused(trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, words = YAMLS[trick]
    monkeypatch.chdir(tmp_path)
    path = Path("noise.yaml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NoiseError, match=words) as caught:
        read_noise(path)
    assert "\n" not in str(caught.value)
    np.save("noisy.npy", np.random.default_rng(0).normal(size=(40, 36)).astype(np.float32))
    assert refused("denoise", "noisy.npy", "--noise", "noise.yaml", code=2)
    assert not Path("hacked").exists()
