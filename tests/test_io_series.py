"""Files with more than one image in them: pyramids give their full resolution, series and scenes the first one."""

from __future__ import annotations

import pickle
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile

from inverseflow.errors import FileError
from inverseflow.io import beside, read, write

SIZES = {"PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.5, "PhysicalSizeYUnit": "µm"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "strips": {},
    "tiles": {"tile": (64, 64)},
    "compressed": {"tile": (64, 64), "compression": "zlib", "predictor": True},
}


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 60000, shape, dtype=np.uint16)


def write_pyramid(path: Path, data: np.ndarray, **layout: Any) -> None:
    """Full resolution and two halvings, as SubIFDs: what OME-TIFF 6 and QuPath write."""
    with tifffile.TiffWriter(path) as tif:
        meta = {"axes": "CYX", **SIZES, "Channel": {"Name": ["DAPI", "GFP"]}}
        tif.write(data, subifds=2, metadata=meta, **layout)
        for step in (2, 4):
            tif.write(data[:, ::step, ::step], subfiletype=1, **layout)


@pytest.fixture
def silent() -> Any:
    """Nothing is to be said about a file that holds one image."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("silent")
def test_a_pyramid_is_read_in_full_resolution(layout: str, tmp_path: Path) -> None:
    path, data = tmp_path / "cells.ome.tif", values(2, 256, 320)
    write_pyramid(path, data, **LAYOUTS[layout])
    with tifffile.TiffFile(path) as tif:
        assert [level.shape for level in tif.series[0].levels] == [(2, 256, 320), (2, 128, 160), (2, 64, 80)]
    image = read(path)
    assert (image.axes, image.shape, image.channel_names) == ("CYX", data.shape, ("DAPI", "GFP"))
    assert (image.pixel_size, image.units) == ({"X": 0.5, "Y": 0.5}, {"X": "µm", "Y": "µm"})
    assert np.array_equal(image.data[1, 100:201, 33:290], data[1, 100:201, 33:290])
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(image.data))[...]), data)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("silent")
def test_a_pyramid_s_result_is_one_image_with_its_sizes(layout: str, tmp_path: Path) -> None:
    source, target, data = tmp_path / "cells.ome.tif", tmp_path / "result.ome.tif", values(2, 256, 320)
    write_pyramid(source, data, **LAYOUTS[layout])
    image = read(source)
    write(target, image.replace(np.asarray(image) / np.float32(2)))
    with tifffile.TiffFile(target) as tif:
        assert [(series.axes, series.shape, len(series.levels)) for series in tif.series] == [("CYX", data.shape, 1)]
        assert np.array_equal(tif.asarray(), data / np.float32(2))
        pixels = tifffile.xml2dict(str(tif.ome_metadata))["OME"]["Image"]["Pixels"]
    assert (pixels["PhysicalSizeX"], pixels["SizeX"], pixels["SizeY"]) == (0.5, 320, 256)


@pytest.mark.usefixtures("silent")
def test_a_pyramid_of_pages_is_read_in_full_resolution(tmp_path: Path) -> None:
    """Without SubIFDs: every level a page of its own that says it is a smaller version."""
    path, data = tmp_path / "slide.tif", values(256, 320)
    with tifffile.TiffWriter(path) as tif:
        for step in (1, 2, 4):
            tif.write(data[::step, ::step], tile=(64, 64), subfiletype=int(step > 1))
    assert np.array_equal(np.asarray(read(path)), data)


def test_of_several_images_the_first_is_read_and_all_are_named(tmp_path: Path) -> None:
    path, data = tmp_path / "slide.ome.tif", values(2, 96, 80)
    with tifffile.TiffWriter(path) as tif:
        tif.write(data, metadata={"axes": "CYX", "Name": "cells", **SIZES})
        tif.write(data[0, :32, :48], metadata={"axes": "YX", "Name": "overview", "PhysicalSizeX": 9.0})
    sentence = r"slide.ome.tif holds 2 images: cells \(2 x 96 x 80\), overview \(32 x 48\); the first is read, so"
    with pytest.warns(UserWarning, match=sentence):
        image = read(path)
    assert np.array_equal(np.asarray(image), data)
    assert image.pixel_size == {"X": 0.5, "Y": 0.5}  # of the first, and not of the overview

    target = tmp_path / "result.ome.tif"
    write(target, image)
    with tifffile.TiffFile(target) as tif:
        assert [series.shape for series in tif.series] == [data.shape]
        assert "overview" not in str(tif.ome_metadata)


def write_set(folder: Path, data: np.ndarray, compression: str | None) -> list[Path]:
    """One file for each position; the OME-XML in each describes all of them."""
    paths = [folder / f"Pos{k}.ome.tif" for k in range(len(data))]
    images = "".join(
        f"""<Image ID="Image:{k}" Name="position {k}"><Pixels ID="Pixels:{k}" DimensionOrder="XYZCT" Type="uint16"
        SizeX="80" SizeY="96" SizeZ="3" SizeC="1" SizeT="1" PhysicalSizeX="{k + 0.5}" PhysicalSizeY="{k + 0.5}">
        <Channel ID="Channel:{k}:0" Name="dye {k}"/><TiffData IFD="0" PlaneCount="3"><UUID
        FileName="{path.name}">urn:uuid:{k}</UUID></TiffData></Pixels></Image>"""
        for k, path in enumerate(paths)
    )
    for k, path in enumerate(paths):
        xml = f'<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{k}">{images}</OME>'
        how: dict[str, Any] = {"metadata": None, "photometric": "minisblack", "compression": compression}
        tifffile.imwrite(path, data[k], description=xml.encode(), **how)
    return paths


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.filterwarnings("error")
def test_each_file_of_a_set_is_read_as_its_own_image(alone: bool, compression: str | None, tmp_path: Path) -> None:
    data = values(3, 3, 96, 80)
    for k, path in enumerate(write_set(tmp_path, data, compression)):
        for other in tmp_path.glob("Pos*") if alone else ():
            if other != path:
                other.unlink()
        assert np.array_equal(tifffile.imread(path, key=range(3)), data[k])  # the pages of the file, whatever it says
        image = read(path)
        assert np.array_equal(np.asarray(image), data[k])
        assert np.array_equal(pickle.loads(pickle.dumps(image.data))[...], data[k])  # as a worker process gets it
        assert (image.pixel_size, image.channel_names) == ({"X": k + 0.5, "Y": k + 0.5}, (f"dye {k}",))
        write(tmp_path / "result.ome.tif", image, overwrite=True)
        with tifffile.TiffFile(tmp_path / "result.ome.tif") as tif:
            assert np.array_equal(tif.asarray(), data[k])
            found = tifffile.xml2dict(str(tif.ome_metadata))["OME"]["Image"]
        assert (found["ID"], found["Pixels"]["PhysicalSizeX"]) == (f"Image:{k}", k + 0.5)
        write_set(tmp_path, data, compression)


def test_a_list_of_many_images_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "wells.tif"
    with tifffile.TiffWriter(path) as tif:
        for side in range(16, 40, 4):
            tif.write(values(side, side), metadata=None)
    with pytest.warns(UserWarning, match=r"6 images: 0 \(16 x 16\), 1 \(20 x 20\), .*, 3 \(28 x 28\), \.\.\.; the"):
        assert read(path).shape == (16, 16)


def stand_in_for_bioio(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """bioio and a reader are an extra of about 40 packages; this is what of them is used."""
    module = ModuleType("bioio")
    module.BioImage = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bioio", module)


def bio_image(data: np.ndarray, order: str, scenes: tuple[str, ...] = ("Image:0",), **more: Any) -> SimpleNamespace:
    sizes = SimpleNamespace(Z=0.5, Y=0.11, X=0.12)
    fields = {"channel_names": ["DAPI", "GFP"], "physical_pixel_sizes": sizes, "time_interval": None} | more
    return SimpleNamespace(dask_data=data, dims=SimpleNamespace(order=order), scenes=scenes, **fields)


@pytest.mark.usefixtures("silent")
def test_a_microscope_s_file_comes_with_its_sizes_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bioio gives five axes whatever the file has; those of length 1 go, and the time between frames is in seconds."""
    path, data = tmp_path / "cells.czi", values(4, 2, 1, 20, 30)
    path.write_bytes(b"")
    stand_in_for_bioio(monkeypatch, lambda _: bio_image(data, "TCZYX", time_interval=timedelta(milliseconds=250)))
    image = read(path)
    assert (image.axes, image.shape, image.kind) == ("TCYX", (4, 2, 20, 30), "czi")
    assert image.pixel_size == {"Z": 0.5, "Y": 0.11, "X": 0.12, "T": 0.25}
    assert (image.units["X"], image.units["T"], image.channel_names) == ("µm", "s", ("DAPI", "GFP"))
    assert np.array_equal(image.data[2, 1, 3:9], data[2, 1, 0, 3:9])

    write(beside(path, "_denoised"), image)  # we do not write CZI
    with tifffile.TiffFile(tmp_path / "cells_denoised.ome.tif") as tif:
        pixels = tifffile.xml2dict(str(tif.ome_metadata))["OME"]["Image"]["Pixels"]
        assert np.array_equal(tif.asarray(), data[:, :, 0])
    assert (pixels["PhysicalSizeX"], pixels["TimeIncrement"], pixels["TimeIncrementUnit"]) == (0.12, 0.25, "s")
    assert [channel["Name"] for channel in pixels["Channel"]] == ["DAPI", "GFP"]


def test_of_several_scenes_the_first_is_read_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = tmp_path / "slide.nd2", values(1, 1, 1, 20, 30, 3)
    path.write_bytes(b"")
    stand_in_for_bioio(monkeypatch, lambda _: bio_image(data, "TCZYXS", ("A1", "A2"), channel_names=None))
    with pytest.warns(UserWarning, match="slide.nd2 holds 2 scenes; only the first is read"):
        image = read(path)
    assert (image.axes, image.shape, image.channel_names) == ("YXC", (20, 30, 3), ())  # the samples of RGB are channels


def test_what_bioio_cannot_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cells.lif"
    path.write_bytes(b"")

    def fail(_: Path) -> None:
        raise RuntimeError("no reader plug-in")

    stand_in_for_bioio(monkeypatch, fail)
    with pytest.raises(FileError, match="could not be read by bioio: pip install bioio-lif if it is missing"):
        read(path)
