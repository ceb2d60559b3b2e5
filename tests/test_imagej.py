"""What we write as ImageJ TIFF, opened by ImageJ itself: Debian's packages imagej and xvfb, which .ci/run installs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from inverseflow.io import Image, read, write

JAR = Path("/usr/share/java/ij.jar")
LIMIT = 300  # seconds
MACRO = """
open(getArgument());
getDimensions(width, height, channels, slices, frames);
getVoxelSize(x, y, z, unit);
interval = Stack.getFrameInterval();
print("size", width, height, channels, slices, frames, bitDepth());
print("voxel", x, y, z, unit);
print("interval", interval);
getLut(red, green, blue);
print("table", red[200], green[200], blue[200]);
for (frame = 1; frame <= frames; frame++) for (slice = 1; slice <= slices; slice++) for (c = 1; c <= channels; c++) {
  if (nSlices > 1) Stack.setPosition(c, slice, frame);
  print("plane", getPixel(7, 5), getPixel(width - 1, height - 1), getInfo("slice.label"));
}
"""


@pytest.fixture
def seen(tmp_path: Path) -> Any:
    """What ImageJ says of a file: the words of the lines that the macro prints, by their first word."""
    missing = [name for name in ("java", "xvfb-run") if shutil.which(name) is None] + [str(JAR)] * (not JAR.exists())
    if missing:
        reason = f"no {missing[0]} on this machine: ImageJ itself was not asked what it reads"
        print(reason)
        pytest.skip(reason)
    (tmp_path / "look.ijm").write_text(MACRO)

    def look(path: Path) -> dict[str, list[list[str]]]:
        command = ["xvfb-run", "-a", "java", f"-Duser.home={tmp_path}", "-cp", JAR, "ij.ImageJ", "-batch"]
        done = subprocess.run(
            [*command, tmp_path / "look.ijm", path], capture_output=True, text=True, timeout=LIMIT, check=True
        )
        lines: dict[str, list[list[str]]] = {}
        for line in done.stdout.splitlines():
            first, *others = line.split()
            lines.setdefault(first, []).append(others)
        assert "size" in lines, done.stdout + done.stderr
        return lines

    return look


def source(path: Path) -> np.ndarray[Any, Any]:
    data = np.random.default_rng(0).integers(0, 60000, (3, 4, 2, 40, 50)).astype(np.uint16)
    metadata = {"axes": "TZCYX", "unit": "um", "spacing": 0.7, "finterval": 2.5, "Labels": [f"s{i}" for i in range(24)]}
    tifffile.imwrite(path, data, imagej=True, resolution=(5.0, 4.0), metadata=metadata)
    return data


@pytest.mark.parametrize(("dtype", "bits"), [("uint16", "16"), ("float32", "32")])
def test_imagej_reads_the_hyperstack_that_we_write(seen: Any, tmp_path: Path, dtype: str, bits: str) -> None:
    data = source(tmp_path / "a.tif")
    write(tmp_path / "b.tif", read(tmp_path / "a.tif"), dtype=dtype)
    found = seen(tmp_path / "b.tif")
    assert found["size"] == [["50", "40", "2", "4", "3", bits]]
    assert found["voxel"] == [["0.2", "0.25", "0.7", "µm"]]
    assert found["interval"] == [["2.5"]]
    planes = data.reshape(24, 40, 50)
    assert found["plane"] == [[str(p[5, 7]), str(p[39, 49]), f"s{number}"] for number, p in enumerate(planes)]


def test_imagej_reads_a_result_that_comes_from_elsewhere(seen: Any, tmp_path: Path) -> None:
    """float32 with its channels first, as a model leaves it; ImageJ's own order and unit are asked of the writer."""
    data = np.random.default_rng(1).normal(500, 80, (2, 5, 20, 30)).astype(np.float32)
    size, units = {"X": 0.1, "Y": 0.1, "Z": 0.3}, {"X": "µm", "Y": "µm", "Z": "µm"}
    write(tmp_path / "b.tif", Image(data, "CZYX", size, units, ("nuclei", "actin"), kind="imagej"))
    found = seen(tmp_path / "b.tif")
    assert found["size"] == [["30", "20", "2", "5", "1", "32"]]
    assert found["voxel"] == [["0.1", "0.1", "0.3", "µm"]]
    values = np.array([[float(word) for word in words[:2]] for words in found["plane"]])
    expected = data.transpose(1, 0, 2, 3).reshape(10, 20, 30)
    np.testing.assert_allclose(values, np.stack([expected[:, 5, 7], expected[:, 19, 29]], axis=1), atol=1e-4)
    assert [words[2:] for words in found["plane"]] == [["nuclei"], ["actin"]] * 5


@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_imagej_shows_a_result_in_its_source_s_colour(seen: Any, tmp_path: Path, byteorder: Any) -> None:
    table = np.zeros((3, 256), np.uint16)
    table[1] = 257 * np.arange(256)
    data = np.arange(400, dtype=np.uint16).reshape(20, 20)
    tag = (320, 3, 768, tuple(table.ravel().tolist()), True)
    tifffile.imwrite(tmp_path / "a.tif", data, imagej=True, byteorder=byteorder, extratags=[tag])
    write(tmp_path / "b.tif", read(tmp_path / "a.tif").replace(data.astype(np.float32)))
    for name, bits in (("a.tif", "16"), ("b.tif", "32")):
        found = seen(tmp_path / name)
        assert (found["size"][0][-1], found["table"]) == (bits, [["0", "200", "0"]])
