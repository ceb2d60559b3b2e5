"""Stacks: denoised as volumes or as planes by the stated rule, better than before, and in tiles as in one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from typer.testing import CliRunner, Result

import inverseflow as ivf
from inverseflow import imaging, tiling
from inverseflow.cli import app
from inverseflow.errors import InputError
from inverseflow.imaging import choose_dimensions, denoise_image
from inverseflow.io import Image

SIGMA = 20.0
DONE = (0, 3)  # written; 3 says that the result is not to be trusted, as after so short a training it is not
SIZES = {
    **{"PhysicalSizeX": 0.1, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.1, "PhysicalSizeYUnit": "µm"},
    **{"PhysicalSizeZ": 300.0, "PhysicalSizeZUnit": "nm"},
}


def inverseflow(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def waves(*shape: int) -> np.ndarray:
    """A clean volume that is smooth along all three axes, in grey levels about 300."""
    z, y, x = np.mgrid[tuple(slice(0, n) for n in shape)]
    return 300 + 60 * np.sin(x / 4 + z / 5) * np.cos(y / 5)


def write_stack(path: str, clean: np.ndarray) -> np.ndarray:
    noisy = clean + SIGMA * np.random.default_rng(0).standard_normal(clean.shape)
    data = noisy.round().astype(np.uint16)
    tifffile.imwrite(path, data, ome=True, metadata={"axes": "ZYX", **SIZES, "Channel": {"Name": ["GFP"]}})
    return data


def rmse(result: np.ndarray, clean: np.ndarray) -> float:
    return float(np.sqrt(((result - clean) ** 2).mean()))


@pytest.mark.parametrize(
    ("slices", "sizes", "units", "expected"),
    [
        (7, {}, {}, ("YX", "only 7 slices")),
        (8, {}, {}, ("ZYX", "8 slices")),
        (7, {"Z": 0.1, "X": 0.1}, {"Z": "µm", "X": "µm"}, ("YX", "only 7 slices")),
        (8, {"Z": 0.5, "X": 0.1}, {"Z": "µm", "X": "µm"}, ("ZYX", "8 slices, 5.0 pixels apart")),
        (8, {"Z": 0.51, "X": 0.1}, {"Z": "µm", "X": "µm"}, ("YX", "slices are 5.1 pixels apart")),
        (8, {"Z": 400.0, "X": 0.1}, {"Z": "nm", "X": "µm"}, ("ZYX", "8 slices, 4.0 pixels apart")),
        (8, {"Z": 0.001, "X": 100.0}, {"Z": "mm", "X": "nm"}, ("YX", "slices are 10.0 pixels apart")),
        (8, {"Z": 3.0, "X": 0.1}, {"Z": "steps", "X": "µm"}, ("ZYX", "8 slices")),
        (8, {"X": 0.1}, {"X": "µm"}, ("ZYX", "8 slices")),
    ],
)
def test_planes_or_volumes_follow_from_count_and_spacing(
    slices: int, sizes: dict[str, float], units: dict[str, str], expected: tuple[str, str]
) -> None:
    image = Image(np.zeros((2, slices, 9, 9)), "TZYX", sizes, units)
    assert choose_dimensions(image) == expected
    assert choose_dimensions(image, 2) == ("YX", "as asked for")
    assert choose_dimensions(image, 3) == ("ZYX", "as asked for")


def test_what_has_no_depth_is_a_plane() -> None:
    image = Image(np.zeros((2, 9, 9)), "TYX")
    assert choose_dimensions(image) == ("YX", "no Z axis")
    with pytest.raises(InputError, match="have no Z"):
        choose_dimensions(image, 3)
    with pytest.raises(InputError, match="has the axes TYX without Z"):
        imaging.Samples(image, "ZYX")


def test_a_stack_from_file_to_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One short training in 3D beats doing nothing, keeps the stack's metadata, and gives the same in tiles."""
    monkeypatch.chdir(tmp_path)
    clean = waves(8, 16, 16)
    noisy = write_stack("stack.ome.tif", clean)
    short = ["--noise", f"gaussian:sigma={SIGMA}", "--estimate", "flow", "--device", "cpu", "--steps", "120"]
    trained = inverseflow("train", "stack.ome.tif", "-o", "model.safetensors", *short)
    assert trained.exit_code == 0, trained.output
    assert "Learning from 1 sample of ZYX (8 slices, 3.0 pixels apart)." in trained.output
    applied = inverseflow("denoise", "stack.ome.tif", "--model", "model.safetensors", "--device", "cpu")
    assert applied.exit_code in DONE, applied.output

    with tifffile.TiffFile("stack_denoised.ome.tif") as tif:
        assert tif.series[0].axes == "ZYX"
        result = tif.asarray()
        assert 'PhysicalSizeZ="300.0" PhysicalSizeZUnit="nm"' in str(tif.ome_metadata)
        assert 'Name="GFP"' in str(tif.ome_metadata)
    assert rmse(noisy, clean) == pytest.approx(SIGMA, rel=0.03)
    assert rmse(result, clean) < 0.8 * rmse(noisy, clean)

    model = ivf.Denoiser.load("model.safetensors", device="cpu")
    larger = waves(8, 344, 344) + SIGMA * np.random.default_rng(1).standard_normal((8, 344, 344))
    whole = model.function()(torch.from_numpy(larger).float()[None, None])[0, 0].numpy()
    # As if a larger volume met a memory that holds a cube of 96: the usual overlap does not fit into it, but a flat
    # stack can be cut into wide tiles.
    monkeypatch.setattr(tiling, "pixels_at_once", lambda *_: 97**3)
    assert model.tile((200, 1024, 1024)) == ((96, 96, 96), 1, 32)
    assert model.tile((8, 1024, 1024)) == ((8, 336, 336), 1, 64)
    assert model.tile((8, 1024, 1024), 200) == ((8, 200, 200), 2, 64)
    assert model.tile(larger.shape)[0] != larger.shape
    target = np.zeros(larger.shape, np.float32)
    (tiled,) = denoise_image(model, Image(larger, "ZYX"), [target])
    assert tiled.axes == "ZYX"
    assert np.abs(target - whole).max() < 1e-3 * np.ptp(whole)


def test_the_same_stack_in_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The axes of the file may come in any order; what is not denoised together is denoised one by one."""
    monkeypatch.chdir(tmp_path)
    write_stack("stack.ome.tif", waves(8, 16, 16))
    quick = ["--noise", f"gaussian:sigma={SIGMA}", "--device", "cpu", "--steps", "2", "--no-page"]
    result = inverseflow("denoise", "stack.ome.tif", "--dim", "2", "--axes", "YZX", *quick)
    assert result.exit_code in DONE, result.output
    assert "Learning from 16 samples of YX (as asked for)." in result.output
    assert tifffile.imread("stack_denoised.ome.tif").shape == (16, 8, 16)
