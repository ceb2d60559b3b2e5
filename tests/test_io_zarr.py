"""OME-Zarr 0.4 and 0.5: plain zarr, the JSON on disk and the NGFF models see what we wrote; levels and chunks stay."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inverseflow.errors import FileError, InputError
from inverseflow.imaging import select_channels
from inverseflow.io import Image, beside, read, write
from inverseflow.io.zarrdata import Chunks

zarr = pytest.importorskip("zarr", reason="OME-Zarr needs the zarr extra")
pytest.importorskip("ome_zarr_models", reason="OME-Zarr needs the zarr extra")

VERSIONS = ["0.4", "0.5"]
DATA = np.random.default_rng(0).integers(0, 60000, (2, 3, 101, 130)).astype(np.uint16)
AXES = [
    {"name": "t", "type": "time", "unit": "second"},
    {"name": "c", "type": "channel"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]


def by_hand(path: Path, version: str, *, shards: tuple[int, ...] | None = None) -> None:
    """An OME-Zarr made with plain zarr and hand-written JSON, as another program would."""
    group = zarr.create_group(path, zarr_format=2 if version == "0.4" else 3)
    datasets = []
    for level in range(3):
        values = DATA[..., :: 2**level, :: 2**level]
        names = {"dimension_names": list("tcyx")} if version == "0.5" else {}
        group.create_array(str(level), data=values, chunks=(1, 1, 32, 40), shards=shards, **names)
        scale = [2.5, 1.0, 0.1 * 2**level, 0.2 * 2**level]
        steps = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": [0.0, 0.0, 5.0, 6.0]}]
        datasets.append({"path": str(level), "coordinateTransformations": steps})
    channels = [
        {"label": label, "color": "00FF00", "window": {"min": 0, "max": 60000, "start": 5, "end": 900}}
        for label in ("DAPI", "GFP", "actin β")
    ]
    attributes: dict[str, Any] = {
        "multiscales": [{"name": "cells", "axes": AXES, "datasets": datasets}],
        "omero": {"channels": channels, "rdefs": {"model": "color"}},
        "sample": {"mouse": 7},
    }
    if version == "0.4":
        attributes["multiscales"][0]["version"] = "0.4"
    group.attrs.update({"ome": {"version": "0.5", **attributes}} if version == "0.5" else attributes)


def on_disk(path: Path, version: str) -> dict[str, Any]:
    """The NGFF attributes as they stand in the file."""
    if version == "0.4":
        found: dict[str, Any] = json.loads((path / ".zattrs").read_text())
        return found
    found = json.loads((path / "zarr.json").read_text())["attributes"]["ome"]
    assert found["version"] == "0.5"
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_size_in_pixels_is_not_made_a_calibration(tmp_path: Path, version: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.modules[__name__], "AXES", [*AXES[:2], *({**axis, "unit": "pixel"} for axis in AXES[2:])])
    by_hand(tmp_path / "a.ome.zarr", version)
    image = read(tmp_path / "a.ome.zarr")
    assert image.pixel_size == {"T": 2.5}
    write(tmp_path / "b.ome.tif", image)
    assert read(tmp_path / "b.ome.tif").pixel_size == {"T": 2.5}


@pytest.mark.parametrize("version", VERSIONS)
def test_round_trip(tmp_path: Path, version: str) -> None:
    by_hand(tmp_path / "a.ome.zarr", version)
    image = read(tmp_path / "a.ome.zarr")
    assert (image.axes, image.kind, image.source_dtype) == ("TCYX", "ome-zarr", np.uint16)
    assert image.pixel_size == pytest.approx({"T": 2.5, "Y": 0.1, "X": 0.2})
    assert image.units == {"T": "s", "Y": "µm", "X": "µm"}
    assert image.channel_names == ("DAPI", "GFP", "actin β")
    assert isinstance(image.data, Chunks)  # nothing is read before it is asked for
    np.testing.assert_array_equal(image.data[1, :, 30:50, ::7], DATA[1, :, 30:50, ::7])

    clean = DATA + np.float64(0.25)
    write(tmp_path / "b.ome.zarr", image.replace(clean))
    group = zarr.open_group(tmp_path / "b.ome.zarr", mode="r")
    assert group.metadata.zarr_format == (2 if version == "0.4" else 3)
    assert (group["0"].chunks, group["0"].dtype) == ((1, 1, 32, 40), np.float32)
    np.testing.assert_array_equal(group["0"][...], clean.astype(np.float32))
    found = on_disk(tmp_path / "b.ome.zarr", version)
    (multiscale,) = found["multiscales"]
    assert multiscale["axes"] == AXES
    assert multiscale["name"] == "cells"
    assert [dataset["path"] for dataset in multiscale["datasets"]] == ["0", "1", "2"]
    assert found["sample"] == {"mouse": 7}
    assert found["omero"]["rdefs"] == {"model": "color"}
    assert [(c["label"], c["window"]["end"]) for c in found["omero"]["channels"]][2] == ("actin β", 900)

    write(tmp_path / "c.ome.zarr", image.replace(clean), dtype="same")
    np.testing.assert_array_equal(np.asarray(read(tmp_path / "c.ome.zarr")), DATA)


@pytest.mark.parametrize("version", VERSIONS)
def test_levels_are_means_and_their_coordinates_agree(tmp_path: Path, version: str) -> None:
    """A linear ramp is its own mean, so every level must show the coordinates that its metadata state."""
    y, x = np.mgrid[:96, :128]
    ramp = (3.0 + 0.1 * y + 10 * (7.0 + 0.2 * x)).astype(np.float32)
    image = Image(ramp, "YX", {"Y": 0.1, "X": 0.2}, {"Y": "µm", "X": "µm"})
    metadata = {"levels": 4, "version": version, "axes": "YX", "translation": [3.0, 7.0]}
    write(tmp_path / "a.zarr", image.replace(ramp, metadata=metadata))
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    for dataset in on_disk(tmp_path / "a.zarr", version)["multiscales"][0]["datasets"]:
        values = group[dataset["path"]][...]
        (sy, sx), (ty, tx) = (next(iter(list(step.values())[1:])) for step in dataset["coordinateTransformations"])
        y, x = np.mgrid[: values.shape[0], : values.shape[1]]
        np.testing.assert_allclose(values, ty + sy * y + 10 * (tx + sx * x), rtol=1e-5)
    assert group["3"].shape == (12, 16)


def test_odd_sizes_and_integers_in_levels(tmp_path: Path) -> None:
    data = np.array([[1, 2, 9], [3, 5, 11], [200, 100, 255]], np.uint8)
    write(tmp_path / "a.zarr", Image(data, "YX", metadata={"levels": 3}))
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    np.testing.assert_array_equal(group["1"][...], [[3, 10], [150, 255]])
    assert group["2"].shape == (1, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_models_of_the_format_accept_our_metadata(tmp_path: Path, version: str) -> None:
    write(tmp_path / "a.zarr", Image(DATA, "TCYX", channel_names=("a", "b", "c"), metadata={"version": version}))
    models = importlib.import_module(f"ome_zarr_models.v{version.replace('.', '')}.image")
    attributes = models.ImageAttrs.model_validate(on_disk(tmp_path / "a.zarr", version))
    assert [axis.name for axis in attributes.multiscales[0].axes] == ["t", "c", "y", "x"]
    omero = importlib.import_module("ome_zarr_models.common.omero").Omero
    channels = omero.model_validate(on_disk(tmp_path / "a.zarr", version)["omero"]).channels
    assert (channels[1].label, channels[1].window.max) == ("b", float(DATA.max()))
    if version == "0.5":  # the whole group; the 0.4 group model does not load with this pydantic
        group = models.Image.from_zarr(zarr.open_group(tmp_path / "a.zarr", mode="r"))
        assert group.ome_attributes.multiscales[0].datasets[0].path == "0"


def test_shards_stay(tmp_path: Path) -> None:
    by_hand(tmp_path / "a.zarr", "0.5", shards=(1, 3, 64, 80))
    image = read(tmp_path / "a.zarr")
    write(tmp_path / "b.zarr", image)
    array = zarr.open_group(tmp_path / "b.zarr", mode="r")["0"]
    assert (array.chunks, array.shards) == ((1, 1, 32, 40), (1, 3, 64, 80))
    np.testing.assert_array_equal(array[...], DATA)


def test_between_formats(tmp_path: Path) -> None:
    by_hand(tmp_path / "a.zarr", "0.4")
    image = read(tmp_path / "a.zarr")
    write(tmp_path / "b.ome.tif", image)
    tiff = read(tmp_path / "b.ome.tif")
    assert (tiff.axes, tiff.channel_names, tiff.units) == (image.axes, image.channel_names, image.units)
    assert tiff.pixel_size == pytest.approx(dict(image.pixel_size))
    np.testing.assert_array_equal(np.asarray(tiff), DATA)
    write(tmp_path / "c.ome.zarr", tiff.replace(DATA.transpose(1, 0, 2, 3), axes="CTYX"))
    again = read(tmp_path / "c.ome.zarr")
    assert (again.axes, again.channel_names, again.units) == (image.axes, image.channel_names, image.units)
    assert again.metadata["version"] == "0.5"
    np.testing.assert_array_equal(np.asarray(again), DATA)


def test_an_image_inside_a_bioformats2raw_folder(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "a.zarr", zarr_format=2, attributes={"bioformats2raw.layout": 3})
    by_hand(tmp_path / "a.zarr" / "0", "0.4")
    assert read(tmp_path / "a.zarr").shape == DATA.shape
    assert read(tmp_path / "a.zarr" / "0").shape == DATA.shape
    by_hand(tmp_path / "a.zarr" / "1", "0.4")
    with pytest.warns(UserWarning, match="only the first"):
        read(tmp_path / "a.zarr")


def test_an_image_of_a_plate_becomes_one_of_its_kind(tmp_path: Path) -> None:
    by_hand(tmp_path / "0", "0.4")
    assert beside(tmp_path / "0", "_denoised") == tmp_path / "0_denoised.ome.zarr"


def test_of_several_multiscales_the_first_is_read_and_it_is_said(tmp_path: Path) -> None:
    by_hand(tmp_path / "a.zarr", "0.5")
    text = (tmp_path / "a.zarr" / "zarr.json").read_text()
    found = json.loads(text)
    found["attributes"]["ome"]["multiscales"] *= 2
    (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(found))
    with pytest.warns(UserWarning, match=r"a\.zarr holds several images \(multiscales\); only the first is read"):
        assert read(tmp_path / "a.zarr").shape == DATA.shape


def test_values_are_in_the_order_of_this_machine(tmp_path: Path) -> None:
    """bioformats2raw writes the most significant byte first."""
    by_hand(tmp_path / "a.zarr", "0.4")
    group = zarr.open_group(tmp_path / "a.zarr", mode="r+")
    group.create_array("0", data=DATA.astype(">u2"), chunks=(1, 1, 32, 40), overwrite=True)
    assert json.loads((tmp_path / "a.zarr" / "0" / ".zarray").read_text())["dtype"] == ">u2"
    image = read(tmp_path / "a.zarr")
    values = np.asarray(image)
    assert (image.dtype.isnative, values.dtype.isnative) == (True, True)
    np.testing.assert_array_equal(values, DATA)


def test_a_depth_that_is_called_a_time_has_no_length(tmp_path: Path) -> None:
    image = Image(DATA[0], "ZYX", {"Z": 0.5, "Y": 0.1, "X": 0.1}, {"Z": "µm", "Y": "µm", "X": "µm"})
    write(tmp_path / "a.zarr", image)
    for axes in ("TYX", "CYX", "SYX"):
        found = read(tmp_path / "a.zarr", axes=axes)
        assert (found.pixel_size, found.units) == ({"Y": 0.1, "X": 0.1}, {"Y": "µm", "X": "µm"})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chosen", [[1], [2, 0], [2, 1, 0]])
def test_chosen_channels_keep_their_display_settings(tmp_path: Path, version: str, chosen: list[int]) -> None:
    by_hand(tmp_path / "a.zarr", version)
    image = read(tmp_path / "a.zarr")
    for number, channel in enumerate(image.metadata["attributes"]["omero"]["channels"]):
        channel["window"] = {**channel["window"], "end": 100 * number}
    write(tmp_path / "b.zarr", select_channels(image, chosen))
    channels = on_disk(tmp_path / "b.zarr", version)["omero"]["channels"]
    names = ["DAPI", "GFP", "actin β"]
    assert [(c["label"], c["window"]["end"]) for c in channels] == [(names[k], 100 * k) for k in chosen]


@pytest.mark.parametrize("unit", ["microsecond", "nanosecond", "day"])
def test_times_keep_the_words_of_the_format(tmp_path: Path, unit: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.modules[__name__], "AXES", [{**AXES[0], "unit": unit}, *AXES[1:]])
    by_hand(tmp_path / "a.zarr", "0.5")
    write(tmp_path / "b.ome.tif", read(tmp_path / "a.zarr"))  # OME-XML has signs: µs, ns, d
    write(tmp_path / "c.zarr", read(tmp_path / "b.ome.tif"))
    (multiscale,) = on_disk(tmp_path / "c.zarr", "0.5")["multiscales"]
    assert multiscale["axes"][0]["unit"] == unit
    assert multiscale["datasets"][0]["coordinateTransformations"][0]["scale"][0] == 2.5


def test_bad_folders_get_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_group(tmp_path / "empty.zarr")
    zarr.create_group(tmp_path / "plate.zarr", zarr_format=2, attributes={"plate": {}})
    (tmp_path / "text.zarr").mkdir()
    (tmp_path / "text.zarr" / "zarr.json").write_text("not json")
    zarr.save_array(tmp_path / "array.zarr", DATA)
    by_hand(tmp_path / "lost.zarr", "0.4")
    (tmp_path / "lost.zarr" / "0" / ".zarray").unlink()
    by_hand(tmp_path / "rules.zarr", "0.4")
    attributes = json.loads((tmp_path / "rules.zarr" / ".zattrs").read_text())
    attributes["multiscales"][0]["datasets"] = []
    (tmp_path / "rules.zarr" / ".zattrs").write_text(json.dumps(attributes))
    sentences = {
        "empty": "no OME-Zarr metadata",
        "plate": "plate of many images",
        "text": "damaged",
        "array": "one array of a Zarr, which does not say what its axes are",
        "lost": "lacks a level",
        "rules": "break the rules",
    }
    for name, sentence in sentences.items():
        with pytest.raises(FileError, match=sentence) as caught:
            read(tmp_path / f"{name}.zarr")
        assert "\n" not in str(caught.value)
    by_hand(tmp_path / "a.zarr", "0.5")
    with pytest.raises(InputError, match="names 2 axes, but the array has 4"):
        read(tmp_path / "a.zarr", axes="YX")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(FileError, match=r"pip install 'inverseflow\[zarr\]'"):
        read(tmp_path / "a.zarr")
