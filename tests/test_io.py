"""Files: what a format says survives, other readers agree, large files stay on disk, failures leave nothing behind."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import PIL.Image
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inverseflow.errors import FileError, InputError
from inverseflow.imaging import select_channels
from inverseflow.io import Image, beside, expand_paths, read, refuse_unwritable, suffix_of, tiff, write
from inverseflow.io.lazy import LazyArray, MappedArray, cast
from inverseflow.io.tiffdata import Pages

RANDOM = np.random.default_rng(0)
OME = {
    "axes": "TCZYX",
    "PhysicalSizeX": 0.11,
    "PhysicalSizeXUnit": "µm",
    "PhysicalSizeY": 0.12,
    "PhysicalSizeYUnit": "µm",
    "PhysicalSizeZ": 450.0,
    "PhysicalSizeZUnit": "nm",
    "TimeIncrement": 2.5,
    "TimeIncrementUnit": "s",
    "Channel": {"Name": ["DAPI", "GFP β"], "EmissionWavelength": [450, 510]},
}


def counts(*shape: int, dtype: Any = np.uint16) -> np.ndarray[Any, Any]:
    return RANDOM.integers(0, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)


@pytest.fixture
def ome_file(tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    data = counts(3, 2, 4, 21, 34)
    path = tmp_path / "cells.ome.tif"
    tifffile.imwrite(path, data, ome=True, photometric="minisblack", metadata=OME)
    return path, data


# OME-TIFF


def test_ome_tiff_is_read_with_everything(ome_file: tuple[Path, np.ndarray[Any, Any]]) -> None:
    path, data = ome_file
    image = read(path)
    assert (image.axes, image.kind, image.source_dtype) == ("TCZYX", "ome-tiff", np.uint16)
    assert image.pixel_size == {"X": 0.11, "Y": 0.12, "Z": 450.0, "T": 2.5}
    assert image.units == {"X": "µm", "Y": "µm", "Z": "nm", "T": "s"}
    assert image.channel_names == ("DAPI", "GFP β")
    np.testing.assert_array_equal(np.asarray(image), data)


@pytest.mark.parametrize("dtype", [None, "same"])
def test_ome_tiff_round_trip_keeps_the_microscopes_document(
    ome_file: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path, dtype: str | None
) -> None:
    path, data = ome_file
    image = read(path)
    write(tmp_path / "out.ome.tif", image.replace(data + np.float32(0.25)), dtype=dtype)
    with tifffile.TiffFile(tmp_path / "out.ome.tif") as tif:
        expected = data if dtype else data + np.float32(0.25)
        np.testing.assert_array_equal(tif.asarray(), expected)
        assert tif.series[0].axes == "TCZYX"
        assert tif.asarray().dtype == expected.dtype
        pixels = tifffile.xml2dict(str(tif.ome_metadata))["OME"]["Image"]["Pixels"]
    for name in ("PhysicalSizeX", "PhysicalSizeYUnit", "PhysicalSizeZ", "PhysicalSizeZUnit", "TimeIncrement"):
        assert pixels[name] == OME[name]
    assert pixels["Type"] == ("uint16" if dtype else "float")
    assert [channel["Name"] for channel in pixels["Channel"]] == ["DAPI", "GFP β"]
    assert [channel["EmissionWavelength"] for channel in pixels["Channel"]] == [450, 510]
    again = read(tmp_path / "out.ome.tif")
    assert (again.pixel_size, again.units, again.channel_names) == (image.pixel_size, image.units, image.channel_names)


def test_what_only_the_document_knows_survives_and_other_images_are_forgotten(tmp_path: Path) -> None:
    data = counts(3, 16, 16)
    xml = """<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:x">
      <Dataset ID="Dataset:0"><ImageRef ID="Image:0"/><ImageRef ID="Image:1"/></Dataset>
      <Instrument ID="Instrument:0"><Objective ID="Objective:0" NominalMagnification="63.0"/></Instrument>
      <Image ID="Image:0" Name="first"><AcquisitionDate>2026-01-02T03:04:05</AcquisitionDate>
        <Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint16" SizeX="16" SizeY="16" SizeZ="3" SizeC="1" SizeT="1"
          SignificantBits="12" BigEndian="false">
          <Channel ID="Channel:0:0" Color="16711935" SamplesPerPixel="1"/>
          <TiffData FirstZ="0" IFD="0"/><TiffData FirstZ="1" IFD="1"/><TiffData FirstZ="2" IFD="2"/>
          <Plane TheZ="0" TheC="0" TheT="0" PositionX="7.5"/></Pixels></Image>
      <Image ID="Image:1"><Pixels ID="Pixels:1" DimensionOrder="XYZCT" Type="uint16" SizeX="16" SizeY="16" SizeZ="1"
          SizeC="1" SizeT="1"><Channel ID="Channel:1:0"/><TiffData IFD="3"/></Pixels></Image></OME>"""
    path = tmp_path / "a.tif"  # OME-TIFF whatever the name is
    tifffile.imwrite(
        path, np.concatenate([data, data[:1]]), description=xml.encode(), metadata=None, photometric="minisblack"
    )
    with pytest.warns(UserWarning, match="2 images: .*; the first is read"):
        image = read(path)
    assert (image.kind, image.axes) == ("ome-tiff", "ZYX")
    write(tmp_path / "b.tif", image.replace(np.asarray(image).astype(float)))
    with tifffile.TiffFile(tmp_path / "b.tif") as tif:
        root = ElementTree.fromstring(str(tif.ome_metadata))
        np.testing.assert_array_equal(tif.asarray(), data)
    space = "{http://www.openmicroscopy.org/Schemas/OME/2016-06}"
    assert [e.get("ID") for e in root.iter(f"{space}Image")] == ["Image:0"]
    assert [e.get("ID") for e in root.iter(f"{space}ImageRef")] == ["Image:0"]
    assert next(root.iter(f"{space}Objective")).get("NominalMagnification") == "63.0"
    assert next(root.iter(f"{space}Plane")).get("PositionX") == "7.5"
    assert next(root.iter(f"{space}Channel")).get("Color") == "16711935"
    pixels = next(root.iter(f"{space}Pixels"))
    assert "SignificantBits" not in pixels.attrib
    assert [child.tag.removeprefix(space) for child in pixels] == ["Channel", "TiffData", "Plane"]


@pytest.mark.parametrize(
    ("said", "unit", "found"),
    [
        ("1.0", "pixel", {}),
        ("0,108", "µm", {}),
        ("", "µm", {}),
        ("None", "µm", {}),
        ("0.5", "", {}),
        ("0.5", "nm", {"X": 0.5, "Y": 0.5}),
        ("0.5", None, {"X": 0.5, "Y": 0.5}),
    ],
)
@pytest.mark.parametrize("result", ["out.ome.tif", "out.tif", "out.ome.zarr"])
def test_a_size_in_pixels_or_that_is_no_number_is_not_made_a_calibration(
    tmp_path: Path, said: str, unit: str | None, found: dict[str, float], result: str
) -> None:
    data = counts(3, 12, 13)
    tifffile.imwrite(tmp_path / "a.ome.tif", data, metadata={"axes": "ZYX", "PhysicalSizeX": 2, "PhysicalSizeY": 2})
    attributes = f'PhysicalSize{{0}}="{said}"' + ("" if unit is None else f' PhysicalSize{{0}}Unit="{unit}"')
    xml = tifffile.tiffcomment(tmp_path / "a.ome.tif")
    for letter in "XY":
        xml = xml.replace(f'PhysicalSize{letter}="2"', attributes.format(letter))
    tifffile.tiffcomment(tmp_path / "a.ome.tif", xml.encode())
    image = read(tmp_path / "a.ome.tif")
    assert image.pixel_size == found
    np.testing.assert_array_equal(np.asarray(image), data)
    write(tmp_path / result, image)
    assert read(tmp_path / result).pixel_size == found
    if result == "out.ome.tif":
        with tifffile.TiffFile(tmp_path / result) as tif:
            pixels = ElementTree.fromstring(str(tif.ome_metadata)).find(".//{*}Pixels")
            assert tif.pages.first.tags["ResolutionUnit"].value == (3 if found else 1)
        assert pixels is not None
        assert pixels.get("PhysicalSizeX") == said  # the microscope's own words stay
        assert pixels.get("PhysicalSizeXUnit") == (unit if unit is not None else "µm")


SPACE = "{http://www.openmicroscopy.org/Schemas/OME/2016-06}"
THREE_DYES = """<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">
  <Instrument ID="Instrument:0"/><Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint16"
    SizeX="9" SizeY="8" SizeZ="1" SizeC="3" SizeT="2">
  <Channel ID="Channel:0:0" Name="DAPI" EmissionWavelength="450"/>
  <Channel ID="Channel:0:1" Name="GFP" EmissionWavelength="510"/>
  <Channel ID="Channel:0:2" Name="Cy5" EmissionWavelength="670"/><TiffData/>
  <Plane TheZ="0" TheT="1" TheC="0" DeltaT="10"/><Plane TheZ="0" TheT="1" TheC="1" DeltaT="11"/>
  <Plane TheZ="0" TheT="1" TheC="2" DeltaT="12"/></Pixels></Image></OME>"""


@pytest.mark.parametrize("chosen", [[1], [2, 0], [2, 1, 0]])
def test_chosen_channels_keep_what_the_microscope_says_of_them(tmp_path: Path, chosen: list[int]) -> None:
    data = counts(2, 3, 8, 9)
    tifffile.imwrite(
        tmp_path / "a.ome.tif",
        data.reshape(6, 8, 9),
        description=THREE_DYES.encode(),
        metadata=None,
        photometric="minisblack",
    )
    write(tmp_path / "b.ome.tif", select_channels(read(tmp_path / "a.ome.tif"), chosen))
    with tifffile.TiffFile(tmp_path / "b.ome.tif") as tif:
        np.testing.assert_array_equal(tif.asarray().reshape(2, -1, 8, 9), data[:, chosen])
        root = ElementTree.fromstring(str(tif.ome_metadata))
    found = [(c.get("Name"), c.get("EmissionWavelength")) for c in root.iter(f"{SPACE}Channel")]
    assert found == [[("DAPI", "450"), ("GFP", "510"), ("Cy5", "670")][place] for place in chosen]
    planes = {plane.get("TheC"): plane.get("DeltaT") for plane in root.iter(f"{SPACE}Plane")}
    assert planes == {str(number): str(10 + place) for number, place in enumerate(chosen)}
    assert root.find(f"{SPACE}Instrument") is not None


def test_a_document_that_names_no_channels_is_kept(tmp_path: Path) -> None:
    xml = "".join(line for line in THREE_DYES.splitlines(keepends=True) if "<Channel" not in line)
    xml = xml.replace("</Pixels>", "<TiffData/></Pixels>")
    tifffile.imwrite(
        tmp_path / "a.ome.tif", counts(6, 8, 9), description=xml.encode(), metadata=None, photometric="minisblack"
    )
    write(tmp_path / "b.ome.tif", read(tmp_path / "a.ome.tif"))
    assert "Instrument:0" in tifffile.tiffcomment(tmp_path / "b.ome.tif")
    assert read(tmp_path / "b.ome.tif").axes == "TCYX"


@pytest.mark.parametrize(
    ("unit", "written"), [("inch", "in"), ("in", "in"), ("picometer", "pm"), ("furlong", None), ("sec", None)]
)
def test_a_unit_that_ome_xml_does_not_know_is_not_written(tmp_path: Path, unit: str, written: str | None) -> None:
    """ImageJ takes any word for one; Bio-Formats refuses the whole document for a word that is not on OME's list."""
    tifffile.imwrite(tmp_path / "a.tif", counts(8, 9), imagej=True, resolution=(2, 2), metadata={"unit": unit})
    write(tmp_path / "b.ome.tif", read(tmp_path / "a.tif"))
    pixels = next(ElementTree.fromstring(tifffile.tiffcomment(tmp_path / "b.ome.tif")).iter(f"{SPACE}Pixels"))
    assert pixels.get("PhysicalSizeXUnit") == written
    assert pixels.get("PhysicalSizeX") == ("0.5" if written else None)


def test_a_recording_that_was_stopped_says_how_many_planes_it_lacks(tmp_path: Path) -> None:
    xml = THREE_DYES.replace('SizeT="2"', 'SizeT="4"')
    tifffile.imwrite(
        tmp_path / "a.ome.tif", counts(7, 8, 9), description=xml.encode(), metadata=None, photometric="minisblack"
    )
    with pytest.raises(FileError, match=r"lacks 5 of the 12 planes that it names; .* if the recording was stopped"):
        read(tmp_path / "a.ome.tif")


@pytest.mark.filterwarnings("ignore:As of version:DeprecationWarning")  # bioio-ome-tiff's use of ome-types
def test_bioio_reads_what_we_write_and_we_read_through_bioio(
    ome_file: tuple[Path, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    bioio = pytest.importorskip("bioio", reason="bioio is an extra of about 40 packages that dev does not install")
    reader = pytest.importorskip("bioio_ome_tiff", reason="needs bioio-ome-tiff")
    path, data = ome_file
    write(tmp_path / "out.ome.tif", read(path).replace(data.astype(np.float32)))
    other = bioio.BioImage(tmp_path / "out.ome.tif", reader=reader.Reader)
    np.testing.assert_array_equal(other.data, data)
    assert (other.dims.order, other.channel_names) == ("TCZYX", ["DAPI", "GFP β"])
    assert other.physical_pixel_sizes.X == 0.11

    from inverseflow.io.other import read as read_other

    image = read_other(path, None)
    assert (image.axes, image.channel_names, image.pixel_size["Y"]) == ("TCZYX", ("DAPI", "GFP β"), 0.12)
    np.testing.assert_array_equal(image.data[1, :, 2, 3:9], data[1, :, 2, 3:9])


def test_without_bioio_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.czi").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "bioio", None)
    with pytest.raises(FileError, match=r"pip install 'inverseflow\[bioio\]' bioio-czi"):
        read(tmp_path / "a.czi")


# ImageJ


def imagej_file(path: Path) -> np.ndarray[Any, Any]:
    data = counts(3, 4, 2, 21, 34)
    ramp, dark = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
    metadata = {
        "axes": "TZCYX",
        "spacing": 0.5,
        "unit": "um",
        "finterval": 1.5,
        "min": 10.0,
        "max": 3000.0,
        "mode": "composite",
        "LUTs": [np.stack([ramp, dark, dark]), np.stack([dark, ramp, dark])],
        "Labels": ["nuclei", "actin"] * 12,
        "Info": "stage = 3",
    }
    tifffile.imwrite(path, data, imagej=True, resolution=(1 / 0.1, 1 / 0.2), metadata=metadata)
    return data


def test_imagej_hyperstack_round_trip(tmp_path: Path) -> None:
    data = imagej_file(tmp_path / "a.tif")
    image = read(tmp_path / "a.tif")
    assert (image.kind, image.axes, image.channel_names) == ("imagej", "TZCYX", ("nuclei", "actin"))
    assert image.pixel_size == pytest.approx({"X": 0.1, "Y": 0.2, "Z": 0.5, "T": 1.5})
    assert image.units == {"X": "µm", "Y": "µm", "Z": "µm", "T": "s"}
    write(tmp_path / "b.tif", image.replace(data.astype(np.float64)))
    with tifffile.TiffFile(tmp_path / "b.tif") as tif:
        page, meta = tif.pages.first, tif.imagej_metadata
        assert meta is not None
        np.testing.assert_array_equal(tif.asarray(), data)
        lines = page.description.rstrip("\0").splitlines()
        offset, resolution = page.dataoffsets[0], page.tags["XResolution"].value
    assert lines[0].startswith("ImageJ=")
    expected = ["images=24", "channels=2", "slices=4", "frames=3", "hyperstack=true", "mode=composite"]
    assert set(expected) | {"spacing=0.5", "unit=\\u00B5m", "finterval=1.5", "min=10.0", "max=3000.0"} <= set(lines)
    assert resolution[0] / resolution[1] == pytest.approx(10)
    assert (meta["Labels"], meta["Info"]) == (["nuclei", "actin"] * 12, "stage = 3")
    assert [lut.shape for lut in meta["LUTs"]] == [(3, 256)] * 2
    # ImageJ reads the planes one after another: channels fastest, then slices, then frames
    raw = np.fromfile(tmp_path / "b.tif", np.float32, offset=offset, count=data.size)
    np.testing.assert_array_equal(raw.reshape(24, 21, 34)[(1 * 4 + 2) * 2 + 1], data[1, 2, 1])
    again = read(tmp_path / "b.tif")
    assert (again.units, again.channel_names, again.dtype) == (image.units, image.channel_names, np.float32)


def three_dyes_of_imagej(path: Path) -> np.ndarray[Any, Any]:
    data, ramp = counts(2, 3, 8, 9), np.arange(256, dtype=np.uint8)
    tables = [np.stack([ramp * (row == place) for row in range(3)]) for place in range(3)]
    metadata = {"axes": "TCYX", "mode": "composite", "LUTs": tables, "Ranges": (0.0, 10.0, 0.0, 20.0, 0.0, 30.0)}
    tifffile.imwrite(path, data, imagej=True, metadata=metadata | {"Labels": ["DAPI", "GFP", "Cy5"] * 2})
    return data


@pytest.mark.parametrize("chosen", [[1], [2, 0], [2, 1, 0]])
def test_chosen_channels_keep_their_names_and_colours(tmp_path: Path, chosen: list[int]) -> None:
    data = three_dyes_of_imagej(tmp_path / "a.tif")
    write(tmp_path / "b.tif", select_channels(read(tmp_path / "a.tif"), chosen))
    with tifffile.TiffFile(tmp_path / "b.tif") as tif:
        np.testing.assert_array_equal(tif.asarray().reshape(2, -1, 8, 9), data[:, chosen])
        meta = tif.imagej_metadata
    assert meta is not None
    assert meta["Labels"] == [("DAPI", "GFP", "Cy5")[place] for place in chosen] * 2
    if len(chosen) > 1:  # of one channel the names are labels, which do not say that they are names
        assert [int(table[:, 255].argmax()) for table in meta["LUTs"]] == chosen
        assert meta["Ranges"][1::2] == tuple(10.0 * (place + 1) for place in chosen)


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_the_lookup_table_of_a_single_channel_stays(tmp_path: Path, byteorder: Any, dtype: str) -> None:
    """ImageJ keeps it where a palette is, for 16 and 32 bits too; 8 bits become 32 in a result."""
    data, table = counts(3, 8, 9, dtype=np.dtype(dtype)), np.zeros((3, 256), np.uint16)
    table[1] = 257 * np.arange(256)
    tag = [(320, 3, 768, tuple(table.ravel().tolist()), True)]
    kind: dict[str, Any] = {"photometric": "palette", "colormap": table} if dtype == "uint8" else {"extratags": tag}
    tifffile.imwrite(tmp_path / "a.tif", data, imagej=True, byteorder=byteorder, metadata={"axes": "ZYX"}, **kind)
    image = read(tmp_path / "a.tif")
    for stored in (None, "same"):
        write(tmp_path / "b.tif", image.replace(data.astype(np.float32)), dtype=stored, overwrite=True)
        with tifffile.TiffFile(tmp_path / "b.tif") as tif:
            np.testing.assert_array_equal(tif.asarray(), data)
            np.testing.assert_array_equal(tif.pages.first.colormap, table)
            assert tif.pages.first.photometric == (3 if stored and dtype == "uint8" else 1)


def test_imagej_gets_its_own_axis_order_and_types(tmp_path: Path) -> None:
    data = counts(2, 3, 4, 8, 9, dtype=np.int32)
    image = Image(data, "CTZYX", {"X": 2.0, "Y": 2.0}, {"X": "nm", "Y": "nm"}, ("a", "b"), kind="imagej")
    write(tmp_path / "a.tif", image)
    again = read(tmp_path / "a.tif")
    assert (again.axes, again.dtype, again.channel_names, again.units["X"]) == ("TZCYX", np.float32, ("a", "b"), "nm")
    np.testing.assert_array_equal(np.asarray(again), data.transpose(1, 2, 0, 3, 4).astype(np.float32))


def test_imagej_keys_beyond_ascii_are_escaped_as_values_are(tmp_path: Path) -> None:
    metadata = {"imagej": {"Gerät": "µ-Slide", "Info": "37 °C"}}
    write(tmp_path / "a.tif", Image(counts(3, 8, 9), "ZYX", kind="imagej", metadata=metadata))
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        assert "ger\\u00e4t=\\u00B5-Slide" in tif.pages.first.description.splitlines()  # tifffile lowers keys
        assert tif.imagej_metadata is not None
        assert tif.imagej_metadata["Info"] == "37 °C"


def test_imagej_colour(tmp_path: Path) -> None:
    data = counts(12, 13, 3, dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", data, imagej=True)
    image = read(tmp_path / "a.tif")
    assert (image.axes, image.kind) == ("YXC", "imagej")
    write(tmp_path / "b.tif", image.replace(data + np.float32(0.2)), dtype="same")
    assert read(tmp_path / "b.tif").axes == "YXC"
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), data)
    write(tmp_path / "c.tif", image.replace(data + np.float32(0.2)))  # ImageJ has no colour in floating point
    assert read(tmp_path / "c.tif").axes == "CYX"
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "c.tif"), (data + np.float32(0.2)).transpose(2, 0, 1))


# Plain TIFF


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("compression", ["lzw", "zlib", "zstd", "packbits", None])
@pytest.mark.parametrize("tile", [None, (64, 48)])
@pytest.mark.parametrize(("shape", "axes"), [((100, 130), "YX"), ((3, 100, 130), "ZYX"), ((100, 130, 3), "YXC")])
def test_plain_tiff(
    tmp_path: Path, byteorder: Any, compression: Any, tile: Any, shape: tuple[int, ...], axes: str
) -> None:
    data = counts(*shape)
    path = tmp_path / "a.tif"
    options: dict[str, Any] = {"compression": compression, "tile": tile, "byteorder": byteorder}
    options |= {"predictor": compression in ("lzw", "zlib"), "bigtiff": byteorder == ">", "software": "scope 1.2"}
    meta = {"axes": "ZYX"} if axes == "ZYX" else None
    kind = "rgb" if axes == "YXC" else "minisblack"
    tifffile.imwrite(
        path, data, photometric=kind, metadata=meta, resolution=(5e4, 4e4), resolutionunit="CENTIMETER", **options
    )
    image = read(path)
    assert (image.axes, image.kind, image.dtype.isnative) == (axes, "tiff", True)
    assert image.pixel_size == pytest.approx({"X": 0.2, "Y": 0.25})
    key = (..., slice(30, 70), slice(90, 20, -3)) if axes != "YXC" else (slice(30, 70, 7), slice(-30, None), 1)
    np.testing.assert_array_equal(image.data[key], data[key])
    for values in (data, data + np.float32(0.5)):
        write(tmp_path / "b.tif", image.replace(values), overwrite=True)
        with tifffile.TiffFile(tmp_path / "b.tif") as tif:
            page = tif.pages.first
            np.testing.assert_array_equal(tif.asarray(), values)
            assert tif.byteorder == byteorder
            assert tif.is_bigtiff == (byteorder == ">")
            assert page.tags["Software"].value == "scope 1.2"
        again = read(tmp_path / "b.tif")
        assert (again.axes, again.pixel_size) == (axes, pytest.approx(image.pixel_size))
        assert again.metadata["compression"] == image.metadata["compression"]
        assert again.metadata["tile"] == image.metadata["tile"]


def test_lossy_compression_is_not_repeated(tmp_path: Path) -> None:
    data = counts(64, 64, 3, dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", data, compression="jpeg", photometric="rgb", tile=(32, 32))
    image = read(tmp_path / "a.tif")
    np.testing.assert_array_equal(image.data[10:50, 20:40], tifffile.imread(tmp_path / "a.tif")[10:50, 20:40])
    write(tmp_path / "b.tif", image.replace(data))
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), data)


def test_tags_that_break_the_rules_do_not_end_the_run_whose_result_is_written(tmp_path: Path) -> None:
    data = counts(12, 13)
    options: dict[str, Any] = {"resolution": (72, 72), "resolutionunit": 2, "metadata": None}
    tifffile.imwrite(tmp_path / "a.tif", data, software="ZEN™ 3.1".encode(), **options)
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+") as tif:
        tif.pages.first.tags["ResolutionUnit"].overwrite(0)
    write(tmp_path / "b.tif", read(tmp_path / "a.tif"))
    with tifffile.TiffFile(tmp_path / "b.tif") as tif:
        tags = tif.pages.first.tags
        found = [tags[name].value for name in ("Software", "ResolutionUnit", "XResolution")]
    assert found == ["ZEN™ 3.1", 1, (72, 1)]


@pytest.mark.parametrize("size", [1e-7, 1e15])
@pytest.mark.parametrize(("name", "kind"), [("a.ome.tif", "ome-tiff"), ("a.tif", "imagej"), ("a.tif", "tiff")])
def test_a_pixel_size_that_no_tag_can_hold_is_not_made_another(
    tmp_path: Path, name: str, kind: str, size: float
) -> None:
    unit = {"imagej": "m"}.get(kind, "µm")
    size = size * 1e-5 if kind == "imagej" else size
    image = Image(counts(3, 12, 13), "ZYX", {"X": size, "Y": size}, {"X": unit, "Y": unit}, kind=kind)
    write(tmp_path / name, image)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / name), image.data)
    assert read(tmp_path / name).pixel_size == ({} if kind == "imagej" else {"X": size, "Y": size})


def test_a_compressed_imagej_file_that_is_too_large_is_written_as_imagej_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 4 GB only the first plane has a place in the file and the others follow it; here beyond 10 kB."""
    data = counts(5, 40, 50)
    tifffile.imwrite(tmp_path / "a.tif", data, imagej=True, compression="zlib", metadata={"axes": "ZYX"})
    monkeypatch.setattr(tiff, "_CLASSIC", 10_000)
    image = read(tmp_path / "a.tif")
    write(tmp_path / "b.tif", image.replace(data + np.float32(0.5)))
    with tifffile.TiffFile(tmp_path / "b.tif") as tif:
        assert (len(tif.pages), tif.pages.first.compression, tif.is_imagej) == (1, 1, True)
        np.testing.assert_array_equal(tif.asarray(), data + np.float32(0.5))
    np.testing.assert_array_equal(np.asarray(read(tmp_path / "b.tif")), data + np.float32(0.5))


@pytest.mark.parametrize("error", [ValueError("what nobody thought of"), struct.error("'I' format requires 0 <= x")])
def test_whatever_the_writer_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(tifffile.TiffWriter, "write", refuse)
    with pytest.raises(FileError, match=r"a\.tif cannot be written as TIFF \(.*\); write a \.npy file instead\.$"):
        write(tmp_path / "a.tif", Image(counts(12, 13), "YX"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("axes", ["SYX", "STYX", "YXT"])
def test_axes_that_no_dialect_knows_are_remembered_in_plain_tiff(tmp_path: Path, axes: str) -> None:
    data = counts(*range(5, 5 + len(axes)))
    tifffile.imwrite(tmp_path / "a.tif", data.reshape(-1, *data.shape[-2:]), metadata=None, photometric="minisblack")
    image = Image(data, axes, {"Y": 0.5}, {"Y": "mm"}, kind="tiff", metadata={"description": "mouse µ"})
    write(tmp_path / "b.tif", image)
    again = read(tmp_path / "b.tif")
    expected = "".join(letter for letter in axes if letter not in "YX") + "YX"
    assert (again.axes, again.pixel_size, again.units) == (expected, {"Y": 0.5}, {"Y": "mm"})
    assert again.metadata["description"] == "mouse µ"
    np.testing.assert_array_equal(np.asarray(again), data.transpose([axes.index(letter) for letter in expected]))


def test_pages_that_are_not_neighbours_in_the_file(tmp_path: Path) -> None:
    data = counts(5, 40, 50)
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for plane in data:
            writer.write(plane, contiguous=False, metadata=None, rowsperstrip=7)
    image = read(tmp_path / "a.tif", axes="tyx")
    assert isinstance(image.data, Pages)
    assert image.axes == "TYX"
    np.testing.assert_array_equal(image.data[3:, 20:30, ::5], data[3:, 20:30, ::5])
    copy = pickle.loads(pickle.dumps(image))  # as a worker process gets it
    np.testing.assert_array_equal(np.asarray(copy), data)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_axes_and_type_come_back(tmp_path: Path, data: st.DataObject) -> None:
    extra = data.draw(st.sets(st.sampled_from("STCZ")))
    axes = "".join(data.draw(st.permutations(sorted(extra | set("YX")))))
    dtype = data.draw(st.sampled_from(["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32"]))
    shape = data.draw(st.tuples(*(st.integers(1, 4) for _ in axes)))
    suffix = data.draw(st.sampled_from([".tif", ".npz", ".ome.zarr" if "S" not in axes else ".tif"]))
    values = RANDOM.normal(0, 50, shape).astype(dtype)
    path = tmp_path / f"a{suffix}"
    write(path, Image(values, axes), overwrite=True)
    image = read(path)
    missing = tuple(i for i, letter in enumerate(axes) if letter not in image.axes)
    kept = "".join(letter for letter in axes if letter in image.axes)
    expected = values.squeeze(missing).transpose([kept.index(letter) for letter in image.axes])
    np.testing.assert_array_equal(np.asarray(image), expected)
    assert image.dtype == values.dtype


# PNG, JPEG, NumPy


@pytest.mark.parametrize(("dtype", "shape"), [(np.uint8, (9, 8)), (np.uint16, (9, 8)), (np.uint8, (9, 8, 3))])
def test_png_is_what_pillow_sees(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    data = counts(*shape, dtype=dtype)
    PIL.Image.fromarray(data).save(tmp_path / "a.png", dpi=(300, 300))
    image = read(tmp_path / "a.png")
    assert (image.axes, image.dtype) == ("YX" if len(shape) == 2 else "YXC", dtype)
    np.testing.assert_array_equal(np.asarray(image), data)
    noisy = data.astype(np.float32) + 0.4
    write(tmp_path / "b.png", image.replace(noisy))  # dtype="same" is implied
    with PIL.Image.open(tmp_path / "b.png") as other:
        np.testing.assert_array_equal(np.asarray(other).astype(dtype), data)
        assert other.info["dpi"] == pytest.approx((300, 300), abs=0.01)


def test_16_bit_colour_png_keeps_16_bits(tmp_path: Path) -> None:
    data = counts(9, 8, 3)
    write(tmp_path / "a.png", Image(data.transpose(2, 0, 1), "CYX"))
    image = read(tmp_path / "a.png")
    assert (image.axes, image.dtype) == ("YXC", np.uint16)
    np.testing.assert_array_equal(np.asarray(image), data)


def test_jpeg(tmp_path: Path) -> None:
    y, x = np.mgrid[:32, :48]
    data = np.stack([4 * y, 4 * x, y + x], -1).astype(np.uint8)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # lay the picture on its side when it is shown
    PIL.Image.fromarray(data).save(tmp_path / "a.jpg", quality=95, exif=exif)
    image = read(tmp_path / "a.jpg")
    assert (image.axes, image.kind) == ("YXC", "jpeg")
    write(tmp_path / "b.jpeg", image.replace(data.astype(np.float32)))
    with PIL.Image.open(tmp_path / "b.jpeg") as other:
        assert np.abs(np.asarray(other).astype(int) - data).mean() < 2
        assert other.getexif()[0x0112] == 6


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_mapped(tmp_path: Path, order: Any) -> None:
    data = np.asarray(RANDOM.normal(size=(30, 40)), dtype=">f8", order=order)
    np.save(tmp_path / "a.npy", data)
    image = read(tmp_path / "a.npy")
    assert isinstance(image.data, MappedArray)
    np.testing.assert_array_equal(image.data[3:9, ::-2], data[3:9, ::-2])
    write(tmp_path / "b.npy", image)
    again = np.load(tmp_path / "b.npy")
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, data.astype(np.float32))


def test_npz_carries_its_axes(tmp_path: Path) -> None:
    data = counts(4, 5, 6)
    write(tmp_path / "a.npz", Image(data, "ZYX", {"Z": 0.5}, {"Z": "µm"}, ("a",)))
    with np.load(tmp_path / "a.npz") as other:
        np.testing.assert_array_equal(other["data"], data)
    again = read(tmp_path / "a.npz")
    assert (again.axes, again.pixel_size, again.units, again.channel_names) == ("ZYX", {"Z": 0.5}, {"Z": "µm"}, ("a",))


def test_rounding_is_half_to_even_and_clips() -> None:
    values = np.array([-3.0, 0.5, 1.5, 2.5, 254.5, 255.4, 300.0, np.inf])
    np.testing.assert_array_equal(cast(values, np.dtype(np.uint8)), [0, 0, 2, 2, 254, 255, 255, 255])
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        low, high = cast(np.float32([-1e30, 1e30]), np.dtype(dtype))
        assert low == np.iinfo(dtype).min
        assert high > 0.999 * np.iinfo(dtype).max
    np.testing.assert_array_equal(cast(np.array([-5, 70000]), np.dtype(np.uint16)), [0, 65535])
    with pytest.raises(FileError, match="NaN"):
        cast(np.array([np.nan]), np.dtype(np.uint8))


# Questions and bad files


def test_axes_are_asked_for_once(tmp_path: Path) -> None:
    np.save(tmp_path / "stack.npy", counts(5, 6, 7))
    tifffile.imwrite(tmp_path / "stack.tif", counts(5, 6, 7), photometric="minisblack")
    for name in ("stack.npy", "stack.tif"):
        with pytest.raises(InputError) as caught:
            read(tmp_path / name)
        assert str(caught.value) == (
            f"What are the axes of {name}, shape (5, 6, 7)? "
            "Say for example --axes TYX, ZYX or CYX (axes=... in Python)."
        )
        assert read(tmp_path / name, axes="CYX").axes == "CYX"
        with pytest.raises(InputError, match=r"YX names 2 axes, but the array has 3 \(shape \(5, 6, 7\)\)"):
            read(tmp_path / name, axes="YX")
        with pytest.raises(InputError, match="letters STCZYX once"):
            read(tmp_path / name, axes="YYX")


def truncated_tiff(path: Path) -> None:
    tifffile.imwrite(path, counts(100, 100))
    path.write_bytes(path.read_bytes()[:9000])


def truncated_imagej(path: Path) -> None:
    tifffile.imwrite(path, counts(10, 50, 50), imagej=True)
    path.write_bytes(path.read_bytes()[:20000])


def truncated_compressed(path: Path) -> None:
    tifffile.imwrite(path, counts(200, 200), compression="zlib")
    path.write_bytes(path.read_bytes()[:30000])


def animation(path: Path) -> None:
    frames = [PIL.Image.fromarray(counts(8, 8, dtype=np.uint8)) for _ in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


BAD: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "missing": ("a.tif", lambda p: None, "There is no file"),
    "truncated": ("a.tif", truncated_tiff, "truncated|damaged"),
    "truncated imagej": ("a.tif", truncated_imagej, "truncated|damaged"),
    "truncated compressed": ("a.tif", truncated_compressed, "truncated|damaged"),
    "text": ("a.tif", lambda p: p.write_text("this is no image\n" * 9), "not a TIFF file"),
    "empty": ("a.tif", lambda p: p.write_bytes(b""), "not a TIFF file|damaged"),
    "header only": ("a.tif", lambda p: p.write_bytes(b"II*\0\x08\0\0\0"), "without any image"),
    "complex": ("a.npy", lambda p: np.save(p, np.ones((4, 4), complex)), "complex"),
    "complex tiff": ("a.tif", lambda p: tifffile.imwrite(p, np.ones((4, 4), np.complex64)), "complex"),
    "zero": ("a.npy", lambda p: np.save(p, np.ones((4, 0))), "length 0"),
    "objects": ("a.npy", lambda p: np.save(p, np.array([[{}]]), allow_pickle=True), "object"),
    "text npy": ("a.npy", lambda p: p.write_text("hello"), "not a NumPy file"),
    "short npy": ("a.npy", lambda p: (np.save(p, np.ones((50, 50))), p.write_bytes(p.read_bytes()[:999])), "truncated"),
    "text npz": ("a.npz", lambda p: p.write_text("hello"), "not a NumPy archive"),
    "two arrays": ("a.npz", lambda p: np.savez(p, a=np.ones(3), b=np.ones(3)), "holds a, b"),
    "text png": ("a.png", lambda p: p.write_text("hello"), "not a PNG"),
    "animation": ("a.png", animation, "3 frames"),
    "cmyk": ("a.jpg", lambda p: PIL.Image.new("CMYK", (8, 8)).save(p), "CMYK"),
    "unknown": ("a.xyz", lambda p: p.write_text("hello"), r"no suffix that is known.*OME-TIFF.*inverseflow\[bioio\]"),
    "folder": ("a.tif", lambda p: p.mkdir(), "is a folder"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_files_get_one_sentence(
    tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    name, make, sentence = BAD[case]
    make(tmp_path / name)
    with pytest.raises(FileError, match=sentence) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


DISK: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "tiff": ("a.tif", lambda p: tifffile.imwrite(p, counts(9, 8)), "a.tif"),
    "png": ("a.png", lambda p: PIL.Image.fromarray(counts(9, 8, dtype=np.uint8)).save(p), "a.png"),
    "npz": ("a.npz", lambda p: np.savez(p, data=counts(9, 8)), "a.npz"),
    "zarr": ("a.ome.zarr", lambda p: write(p, Image(counts(9, 8), "YX")), "a.ome.zarr/zarr.json"),
    "zarr level": ("a.ome.zarr", lambda p: write(p, Image(counts(9, 8), "YX")), "a.ome.zarr/0/zarr.json"),
}


@pytest.mark.parametrize("case", DISK)
@pytest.mark.parametrize(("number", "sentence"), [(errno.EACCES, "You may not read "), (errno.EIO, "Input/output err")])
def test_a_disk_or_a_missing_right_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, number: int, sentence: str
) -> None:
    """By the system's own word when the file is opened: root, who runs the tests in a container, may read all."""
    name, make, refused = DISK[case]
    make(tmp_path / name)
    np.asarray(read(tmp_path / name))
    system = io.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file) == str(tmp_path / refused):
            raise OSError(number, os.strerror(number), str(file))
        return system(file, *arguments, **options)

    for module in (io, builtins):
        monkeypatch.setattr(module, "open", refuse)
    with pytest.raises(FileError, match=sentence) as caught:
        read(tmp_path / name)
    assert "not a" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.tif", "a.ome.zarr"])
def test_a_disk_that_fails_under_a_packed_image_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write(tmp_path / name, Image(counts(9, 8), "YX", metadata={"compression": "zstd"}))
    image, system = read(tmp_path / name), io.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith((".tif", "/c/0/0")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return system(file, *arguments, **options)

    for module in (io, builtins):
        monkeypatch.setattr(module, "open", refuse)
    with pytest.raises(OSError, match="Input/output error") as caught:
        np.asarray(image)
    assert "damaged" not in str(caught.value)


def test_damage_inside_a_segment_shows_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, counts(64, 64), compression="zlib")
    with tifffile.TiffFile(path) as tif:
        offset = tif.pages.first.dataoffsets[0]
    raw = bytearray(path.read_bytes())
    raw[offset : offset + 40] = bytes(40)
    path.write_bytes(raw)
    with pytest.raises(FileError, match="could not be decoded"):
        np.asarray(read(path))


@pytest.mark.parametrize(
    ("name", "image", "sentence"),
    [
        ("a.ome.tif", Image(np.ones((2, 4, 4)), "SYX"), "sample axis"),
        ("a.tif", Image(np.ones((4, 4)), "SC"), "has Y and X"),
        ("a.ome.zarr", Image(np.ones((2, 4, 4)), "SYX"), "T, C, Z, Y and X"),
        ("a.png", Image(np.ones((4, 4)), "YX"), "cannot hold float64; ask for uint8 or uint16"),
        ("a.png", Image(np.ones((2, 4, 4), np.uint8), "TYX"), "cannot hold axes TYX"),
        ("a.jpg", Image(np.ones((4, 4, 4), np.uint8), "YXC"), "4 channels"),
        ("a.czi", Image(np.ones((4, 4)), "YX"), r"only read; write a\.ome\.tif"),
        ("a.xyz", Image(np.ones((4, 4)), "YX"), "no suffix that is known"),
        ("a.tif", Image(np.ones((4, 4), complex), "YX"), "real numbers"),
        ("a/b.tif/c.tif", Image(np.ones((4, 4)), "YX"), "a file and not a folder"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, name: str, image: Image, sentence: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.tif").write_text("in the way")
    with pytest.raises(FileError, match=sentence) as caught:
        write(tmp_path / name, image)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.rglob("*")] == ["a", "b.tif"]
    if "folder" not in sentence:
        with pytest.raises(FileError, match=sentence):  # before anything is computed, too
            refuse_unwritable(tmp_path / name, image)


def test_what_can_be_written_is_not_refused(tmp_path: Path) -> None:
    image = Image(Failing(RuntimeError("it was read")), "ZYX")
    for name in ("a.tif", "a.ome.tif", "a.npy", "a.npz", "a.ome.zarr"):
        refuse_unwritable(tmp_path / name, image, "same")
    assert list(tmp_path.iterdir()) == []


# Whole or absent

SUFFIXES = [".ome.tif", ".tif", ".npy", ".npz", ".png", ".ome.zarr"]


class Failing(LazyArray):
    """Rows of zeros, and an error in the last one."""

    def __init__(self, error: BaseException) -> None:
        self.shape, self.dtype, self._error = (40, 500, 500), np.dtype(np.uint8), error

    def read_box(self, start: tuple[int, ...], stop: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if stop[0] > 30 or self.shape[0] == 1:
            raise self._error
        return np.zeros([b - a for a, b in zip(start, stop, strict=True)], self.dtype)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("compression", ["", "zstd"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left"), RuntimeError("own")])
def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, suffix: str, compression: str, error: BaseException
) -> None:
    data = Failing(error)
    if suffix == ".png":
        data.shape = (1, *data.shape[1:])
    image = Image(data, "ZYX", metadata={"compression": compression})
    path = tmp_path / f"a{suffix}"
    expected = FileError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match="disk is full" if isinstance(error, OSError) else None):
        write(path, image)
    assert list(tmp_path.iterdir()) == []
    write(path, Image(np.full((3, 3), 7, np.uint8), "YX"))
    with pytest.raises(FileError, match=r"exists; choose another name, or allow it to be replaced \(--force"):
        write(path, image)
    with pytest.raises(expected):
        write(path, image, overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert (np.asarray(read(path)) == 7).all()
    write(path, Image(np.full((3, 3), 8, np.uint8), "YX"), overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert (np.asarray(read(path)) == 8).all()


@pytest.mark.parametrize("name", ["results.tif", "results.zarr"])
def test_a_folder_of_something_else_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match="not overwritten"):
        write(tmp_path / name, Image(np.ones((3, 3)), "YX"), overwrite=True)
    assert (tmp_path / name / "thesis.txt").exists()


@pytest.mark.parametrize("suffix", [".ome.tif", ".npy", ".npz", ".png", ".ome.zarr"])
def test_a_full_disk(small_disk: Callable[[str], Path], suffix: str) -> None:
    disk = small_disk("1m")
    (disk / "mine.txt").write_text("stays")
    with pytest.raises(FileError, match=r"the disk is full: it needs .* are free; free some space"):
        write(disk / f"a{suffix}", Image(counts(1500, 1500), "YX"))
    assert [p.name for p in disk.iterdir()] == ["mine.txt"]


# Memory

PEAK = """
import sys, numpy as np
from pathlib import Path
from inverseflow.io import Image, read, write
from inverseflow.io.lazy import LazyArray

def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) / 1024

class Made(LazyArray):
    def __init__(self, n):
        self.shape, self.dtype = (n, n), np.dtype(np.float32)
    def read_box(self, start, stop):
        y, x = np.ogrid[start[0]:stop[0], start[1]:stop[1]]
        return (y % 251 + x % 241).astype(np.float32)

folder, n = Path(sys.argv[1]), int(sys.argv[2])
write(folder / "warm.tif", Image(Made(64), "YX", metadata={"compression": "zstd"}), overwrite=True)
read(folder / "warm.tif").data[:9, :9]
before = peak()
"""


def memory_of(folder: Path, code: str, n: int) -> float:
    """Megabytes that the peak of a fresh process grows by."""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc, which this system does not have")
    command = [sys.executable, "-c", PEAK + code + "\nprint(peak() - before)", str(folder), str(n)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


@pytest.mark.parametrize("compression", ["", "zstd"])
def test_writing_and_reading_large_tiff_takes_little_memory(tmp_path: Path, compression: str) -> None:
    """A lazy image of 256 MB as float32, written and read by regions, each in a process of its own."""
    n = 8000
    code = f"write(folder / 'a.tif', Image(Made(n), 'YX', metadata={{'compression': {compression!r}}}))"
    assert memory_of(tmp_path, code, n) < 110
    code = """
data = read(folder / 'a.tif').data
for y in range(0, n, 1000):
    for x in range(0, n, 1000):
        assert np.array_equal(data[y:y+1000, x:x+1000], Made(n)[y:y+1000, x:x+1000])
"""
    assert memory_of(tmp_path, code, n) < 110


def test_a_region_decodes_only_its_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = counts(1500, 1500)
    tifffile.imwrite(tmp_path / "a.tif", data, compression="zlib", tile=(128, 128))
    image = read(tmp_path / "a.tif")
    assert isinstance(image.data, Pages)
    decoded: list[int] = []
    segment = Pages._segment

    def counting(self: Pages, number: int, index: int) -> np.ndarray[Any, Any]:
        decoded.append(index)
        return segment(self, number, index)

    monkeypatch.setattr(Pages, "_segment", counting)
    np.testing.assert_array_equal(image.data[1000:1100, 130:250], data[1000:1100, 130:250])
    assert decoded == [7 * 12 + 1, 8 * 12 + 1]


# Names


def test_suffix_and_beside() -> None:
    assert suffix_of("a/cells.OME.Tiff") == ".ome.tiff"
    assert suffix_of("cells.v2.tif") == ".tif"
    assert suffix_of("cells.txt") == suffix_of(".tif") == ""
    assert beside("a/cells.ome.tif", "_denoised") == Path("a/cells_denoised.ome.tif")
    assert beside("cells.OME.TIF", "_denoised") == Path("cells_denoised.OME.TIF")
    assert beside("a.b.png", "_x") == Path("a.b_x.png")
    assert beside("a.ome.zarr", "_x") == Path("a_x.ome.zarr")
    assert beside("a.czi", "_x") == Path("a_x.ome.tif")


def test_expand_paths(tmp_path: Path) -> None:
    image = Image(np.ones((3, 3), np.uint8), "YX")
    for name in ("b.tif", "a.png", "c.ome.zarr"):
        write(tmp_path / name, image)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden.tif").write_text("")
    (tmp_path / "deeper").mkdir()
    write(tmp_path / "deeper" / "d.tif", image)
    names = ["a.png", "b.tif", "c.ome.zarr"]
    assert [p.name for p in expand_paths(tmp_path)] == names
    assert [p.name for p in expand_paths(str(tmp_path / "*"))] == names
    assert [p.name for p in expand_paths([tmp_path / "b.tif", str(tmp_path / "*.tif")])] == ["b.tif"]
    assert expand_paths([tmp_path / "c.ome.zarr"]) == [tmp_path / "c.ome.zarr"]
    (tmp_path / "deeper" / "plain.tif").mkdir()  # a folder, whatever its name
    assert [p.name for p in expand_paths(tmp_path / "deeper")] == ["d.tif"]
    assert [p.name for p in expand_paths(str(tmp_path / "deeper" / "*"))] == ["d.tif"]
    for nothing in ([], [tmp_path / "*.czi"], ["nowhere.tif"]):
        with pytest.raises(FileError, match="No image"):
            expand_paths(nothing)


@pytest.mark.parametrize("pattern", ["*.tif", "**/*.tif", "cells [[]1].tif"])
def test_brackets_of_a_folder_that_is_there_are_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    (tmp_path / "day [1] µ").mkdir()
    write(tmp_path / "day [1] µ" / "cells [1].tif", Image(np.ones((3, 3), np.uint8), "YX"))
    monkeypatch.chdir(tmp_path)
    assert expand_paths(f"day [1] µ/{pattern}") == [Path("day [1] µ/cells [1].tif")]
    assert expand_paths(f"{tmp_path}/day [1] µ/{pattern}") == [tmp_path / "day [1] µ" / "cells [1].tif"]


def test_image_checks_its_axes_and_keeps_what_it_knows() -> None:
    image = Image(counts(3, 4), "YX", {"X": 0.5}, {"X": "µm"}, kind="tiff")
    other = image.replace(np.ones((3, 4)))
    assert (other.dtype, other.source_dtype, other.pixel_size) == (np.float64, np.uint16, {"X": 0.5})
    assert repr(other) == "Image(YX (3, 4), float64, X 0.5 µm, tiff)"
    with pytest.raises(InputError, match="names 3 axes"):
        image.replace(np.ones((3, 4)), axes="ZYX")
    assert np.array(image, dtype=float).dtype == float
    assert json.dumps(dict(image.pixel_size)) == '{"X": 0.5}'


def test_io_needs_no_torch() -> None:
    code = "import sys, inverseflow.io; assert not {'torch', 'zarr', 'bioio', 'lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
