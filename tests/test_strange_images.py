"""Image files from strangers: a lie about size, a bomb or a way out of the folder is refused with one sentence; what is
only large is not.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import re
import resource
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import tifffile
from soak.damage import damaged, make_wholes
from typer.testing import CliRunner

import inverseflow as ivf
from inverseflow.cli import app
from inverseflow.errors import FileError, InverseflowError
from inverseflow.imaging import select_channels
from test_strangers import refused

PLANE = np.random.default_rng(0).integers(100, 4000, (40, 36)).astype(np.uint16)


def tag(path: Path, code: int, value: int, count: int | None = None) -> None:
    """Another value of a tag of the first page of a little-endian TIFF file."""
    data = bytearray(path.read_bytes())
    place = struct.unpack_from("<I", data, 4)[0]
    for at in range(place + 2, place + 2 + 12 * struct.unpack_from("<H", data, place)[0], 12):
        if struct.unpack_from("<H", data, at)[0] == code:
            struct.pack_into("<HII", data, at + 2, 4, count or 1, value)
    path.write_bytes(data)


def huge_tiff(path: Path) -> None:
    tifffile.imwrite(path, PLANE)
    tag(path, 256, 10**9)
    tag(path, 257, 10**9)


def long_tiff(path: Path) -> None:
    tifffile.imwrite(path, PLANE)
    tag(path, 257, 10**6)
    tag(path, 278, 10**6)


def packed_tiff(path: Path) -> None:
    """60,000 x 60,000 in one packed strip of a few hundred bytes."""
    tifffile.imwrite(path, np.zeros((40, 36), np.uint16), compression="zlib")
    for code in (256, 257, 278):
        tag(path, code, 60_000)


def tiff_of_few_tiles(path: Path) -> None:
    tifffile.imwrite(path, PLANE, tile=(16, 16), compression="zlib")
    tag(path, 256, 60_000)


def tiff_with_long_tag(path: Path) -> None:
    tifffile.imwrite(path, PLANE, rowsperstrip=8)
    tag(path, 273, 8, 2**32 - 1)


def endless_tiff(path: Path) -> None:
    tifffile.imwrite(path, np.stack([PLANE] * 3), photometric="minisblack", metadata=None)
    data = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", data, 4)[0]
    second = first + 2 + 12 * struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<I", data, second, first)
    path.write_bytes(data)


def ome(change: Callable[[str], str]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tifffile.imwrite(path, np.stack([PLANE] * 2), ome=True, metadata={"axes": "ZYX"})
        xml = change(tifffile.tiffcomment(path))
        tifffile.tiffcomment(path, xml.encode())

    return write


LAUGHS = "".join(f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">' for i in range(9))
laughing = ome(
    lambda xml: xml.replace("?>", f'?><!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]>', 1).replace("</OME>", "&l9;</OME>")
)
many_planes = ome(lambda xml: xml.replace('SizeT="1"', f'SizeT="{10**12}"'))
elsewhere = ome(
    lambda xml: xml.replace("<TiffData", '<TiffData><UUID FileName="../../etc/passwd">x</UUID></TiffData><TiffData')
)


def npy(**header: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<u2", "fortran_order": False, "shape": (4, 4)} | header
            )
            file.write(bytes(32))

    return write


def pickled_npy(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def npz(shape: tuple[int, ...], values: bytes, method: int = zipfile.ZIP_DEFLATED) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<u2", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w", method) as archive, archive.open("data.npy", "w", force_zip64=True) as entry:
            entry.write(head.getvalue())
            for _ in range(300 if not values else 1):
                entry.write(values or bytes(2**20))

    return write


def pickled_npz(path: Path) -> None:
    np.savez(path, data=np.array([{"a": 1}], dtype=object))


def png(width: int, height: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        def chunk(name: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

        head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
        parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")]
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))

    return write


def jpeg(path: Path) -> None:
    from PIL import Image

    Image.fromarray((PLANE // 16).astype(np.uint8)).save(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, at + 5, 13_000, 13_000)
    path.write_bytes(data)


FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "TIFF of 10^9 x 10^9": ("a.tif", huge_tiff, "more than any instrument|damaged"),
    "TIFF with more rows than bytes": ("a.tif", long_tiff, "truncated|damaged"),
    "TIFF bomb": ("a.tif", packed_tiff, "which cannot be"),
    "TIFF with few tiles": ("a.tif", tiff_of_few_tiles, "says not where|damaged"),
    "TIFF with a long tag": ("a.tif", tiff_with_long_tag, "damaged|truncated|not where"),
    "OME-XML of a billion laughs": ("a.ome.tif", laughing, "would fill the memory"),
    "OME-XML of 10^12 planes": ("a.ome.tif", many_planes, "claims .* planes"),
    "OME-XML with a way out": ("a.ome.tif", elsewhere, "outside of its folder"),
    "NPY of 10^18 values": ("a.npy", npy(shape=(10**9, 10**9)), "more than any instrument"),
    "NPY that overflows": ("a.npy", npy(shape=(2**32, 2**32)), "more than any instrument"),
    "NPY of more than it has": ("a.npy", npy(shape=(1000, 1000)), "truncated"),
    "NPY of negative size": ("a.npy", npy(shape=(-1, 4)), "more than any instrument|damaged"),
    "NPY of objects": ("a.npy", pickled_npy, "not numbers"),
    "NPZ of objects": ("a.npz", pickled_npz, "not numbers|damaged"),
    "NPZ bomb": ("a.npz", npz((300 * 2**19,), b""), "which cannot be"),
    "NPZ that lies": ("a.npz", npz((10**5, 10**4), bytes(100)), "damaged"),
    "PNG bomb": ("a.png", png(100_000, 100_000), "which cannot be|too large"),
    "PNG of few bytes": ("a.png", png(13_000, 13_000), "which cannot be"),
    "JPEG of few bytes": ("a.jpg", jpeg, "which cannot be"),
}


@pytest.mark.parametrize("trick", FILES)
def test_an_image_that_lies_is_refused_before_it_takes_memory(trick: str, tmp_path: Path) -> None:
    name, write, words = FILES[trick]
    path = tmp_path / name
    write(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match=words) as caught:
        np.asarray(ivf.read(path))
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 * 1024  # kilobytes
    assert str(path) in refused("info", str(path))


OWN = '<UUID FileName="{}">urn:uuid:own</UUID>'
HARMLESS: dict[str, Callable[[str], str]] = {
    "an annotation that nobody opens": lambda xml: xml.replace(
        "</OME>",
        r'<StructuredAnnotations><XMLAnnotation ID="A:0"><Value><Original FileName="D:\data\cells.czi"/></Value>'
        "</XMLAnnotation></StructuredAnnotations></OME>",
    ),
    "the file itself by its UUID": lambda xml: with_uuid(xml, OWN.format(r"D:\data\a.ome.tif")),
    "a file beside it": lambda xml: with_uuid(xml, '<UUID FileName="b.ome.tif">urn:uuid:other</UUID>'),
}
WAYS_OUT: dict[str, Callable[[str], str]] = {
    "a UUID of none": lambda xml: with_uuid(xml, '<UUID FileName="../b.tif"/>').replace(' UUID="urn:uuid:own"', ""),
    "another UUID": lambda xml: with_uuid(xml, '<UUID FileName="/tmp/a.ome.tif">urn:uuid:other</UUID>'),
    "attributes in another order": lambda xml: with_uuid(xml, "<UUID x='1' FileName='../b.tif'>urn:uuid:other</UUID>"),
    "letters by number": lambda xml: with_uuid(xml, '<UUID FileName="&#46;&#46;/b.tif">urn:uuid:other</UUID>'),
    "a prefix": lambda xml: with_uuid(xml, '<ome:UUID FileName="../b.tif">urn:uuid:other</ome:UUID>').replace(
        "<OME ", '<OME xmlns:ome="http://www.openmicroscopy.org/Schemas/OME/2016-06" ', 1
    ),
    "after the file itself": lambda xml: with_uuid(
        xml, '<UUID FileName="a.ome.tif">urn:uuid:own</UUID></TiffData><TiffData IFD="1"><UUID FileName="../b.tif"/>'
    ).replace(' UUID="urn:uuid:own"', ""),
}


def with_uuid(xml: str, uuid: str) -> str:
    """The UUID of the file is urn:uuid:own."""
    xml = re.sub(r'UUID="[^"]*"', 'UUID="urn:uuid:own"', xml, count=1)
    return re.sub(
        r"<TiffData[^>]*?/?>(</TiffData>)?", lambda _: f'<TiffData IFD="0" PlaneCount="2">{uuid}</TiffData>', xml
    )


@pytest.mark.parametrize("case", HARMLESS)
def test_a_name_of_a_file_that_is_not_opened_is_no_reason_to_refuse(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    ome(HARMLESS[case])(tmp_path / "b.ome.tif")
    ome(HARMLESS[case])(path)
    np.testing.assert_array_equal(np.asarray(ivf.read(path)), np.stack([PLANE] * 2))


@pytest.mark.parametrize("trick", WAYS_OUT)
def test_a_way_out_of_the_folder_is_refused(trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ome.tif"
    ome(WAYS_OUT[trick])(path)
    opened = []
    monkeypatch.setattr(tifffile.TiffFile, "__init__", spy(tifffile.TiffFile.__init__, opened))
    with pytest.raises(FileError, match="outside of its folder"):
        ivf.read(path)
    assert opened == [path]


def spy(function: Callable[..., None], seen: list[Any]) -> Callable[..., None]:
    def call(self: Any, file: Any, *arguments: Any, **options: Any) -> None:
        seen.append(file)
        function(self, file, *arguments, **options)

    return call


def test_pages_that_lead_back_end(tmp_path: Path) -> None:
    endless_tiff(tmp_path / "a.tif")
    with pytest.raises(FileError, match="damaged"):
        ivf.read(tmp_path / "a.tif", axes="YX")


@pytest.mark.parametrize("name", ["a.ome.tif", "a.ome.zarr"])
def test_channels_are_chosen_though_the_file_has_not_a_name_for_each(name: str, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (20, 21, 3)).astype(np.uint8)
    if name.endswith("tif"):
        meta = {"axes": "YXS", "Channel": {"Name": "camera"}}
        tifffile.imwrite(tmp_path / name, data, photometric="rgb", metadata=meta)
    else:
        ivf.write(tmp_path / name, ivf.Image(data.transpose(2, 0, 1), "CYX", channel_names=("a", "b", "c")))
        edit(tmp_path / name / "zarr.json", lambda d: d["attributes"]["ome"]["omero"]["channels"].pop())
    image = ivf.read(tmp_path / name)
    assert 0 < len(image.channel_names) < 3
    chosen = select_channels(image, [1])
    assert chosen.channel_names == ()
    np.testing.assert_array_equal(np.squeeze(np.asarray(chosen)), data[..., 1])


def zarr_image(path: Path, shape: tuple[int, ...] = (40, 36), chunks: tuple[int, ...] = (20, 36)) -> Path:
    import zarr

    axes = [{"name": letter, "type": "space"} for letter in "zyx"[-len(shape) :]]
    steps = [{"type": "scale", "scale": [1.0] * len(shape)}]
    group = zarr.create_group(path, zarr_format=2)
    group.create_array("0", shape=shape, chunks=chunks, dtype="uint16", fill_value=7)
    scales = {"axes": axes, "version": "0.4", "datasets": [{"path": "0", "coordinateTransformations": steps}]}
    group.attrs.update({"multiscales": [scales]})
    return path


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("hacked"),))


def pickled_chunk(path: Path) -> None:
    edit(path / "0" / ".zarray", lambda d: d.update(compressor={"id": "pickle"}, filters=[{"id": "pickle"}]))
    (path / "0" / "0.0").write_bytes(pickle.dumps(Evil()))


ZARRS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "10^15 rows": (lambda p: edit(p / "0/.zarray", lambda d: d.update(shape=[10**15, 36])), "more than any instrument"),
    "10^12 in a chunk": (lambda p: edit(p / "0/.zarray", lambda d: d.update(chunks=[10**6, 10**6])), "chunks of"),
    "an unknown codec": (
        lambda p: edit(p / "0/.zarray", lambda d: d.update(compressor={"id": "rot13"})),
        "not known here",
    ),
    "pickles": (pickled_chunk, "pickle|not known here"),
    "a way out": (
        lambda p: edit(p / ".zattrs", lambda d: d["multiscales"][0]["datasets"][0].update(path="../../etc")),
        "outside of it",
    ),
    "an absolute way out": (
        lambda p: edit(p / ".zattrs", lambda d: d["multiscales"][0]["datasets"][0].update(path="/etc")),
        "outside of it|break the rules",
    ),
    "other axes": (
        lambda p: edit(p / "0/.zarray", lambda d: d.update(shape=[4, 4, 4], chunks=[4, 4, 4])),
        "dimensions",
    ),
    "large metadata": (lambda p: (p / ".zattrs").write_text(" " * 33 * 2**20 + "{}"), "larger than 32 MB"),
    "deep metadata": (lambda p: (p / ".zattrs").write_text("[" * 10**5), "damaged"),
    "a broken chunk": (lambda p: [q.write_bytes(b"broken" * 9) for q in (p / "0").rglob("0*") if q.is_file()], "chunk"),
}


@pytest.mark.parametrize("trick", ZARRS)
def test_a_zarr_image_that_lies_is_refused(trick: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change, words = ZARRS[trick]
    path = zarr_image(tmp_path / "a.ome.zarr")
    ivf.read(path).data[...]
    import zarr

    zarr.open_group(path, mode="r+")["0"][...] = PLANE
    change(path)
    with pytest.raises(FileError, match=words) as caught:
        np.asarray(ivf.read(path))
    assert "\n" not in str(caught.value)
    assert refused("info", str(path))
    assert not Path("hacked").exists()


def test_what_is_only_large_is_read(tmp_path: Path) -> None:
    """A terabyte of Zarr without chunks is its fill value; a TIFF of 16,000 x 16,000 black pixels is small."""
    path = zarr_image(tmp_path / "a.ome.zarr", (500, 32_000, 32_000), (1, 512, 512))
    image = ivf.read(path)
    assert image.nbytes > 10**12
    assert (image.data[499, :100, :100] == 7).all()
    assert "500 x 32000 x 32000" in CliRunner().invoke(app, ["info", str(path)]).output
    black = tmp_path / "black.tif"
    tiles = (np.zeros((512, 512), np.uint16) for _ in range(32 * 32))
    tifffile.imwrite(black, tiles, shape=(16_384, 16_384), dtype=np.uint16, tile=(512, 512), compression="zlib")
    assert black.stat().st_size < 2 * 2**20
    assert not ivf.read(black).data[8000:8100, :100].any()


def gzipped(raw: bytes) -> bytes:
    """Two members with zeros between them, as gzip allows."""
    return gzip.compress(raw[:100]) + bytes(3) + gzip.compress(raw[100:])


def zstandard(raw: bytes) -> bytes:
    return numcodecs.Zstd().encode(raw)


def zstandard_without_size(raw: bytes) -> bytes:
    """A frame (RFC 8878) of raw and repeated blocks whose header does not say how long it is."""
    size = 2**17
    blocks = [(len(raw[at : at + size]), raw[at]) for at in range(0, len(raw), size)]
    words = [(length << 3 | 1 << 1 | (n == len(blocks) - 1), value) for n, (length, value) in enumerate(blocks)]
    body = b"".join(word.to_bytes(3, "little") + bytes([value]) for word, value in words)
    return b"\x28\xb5\x2f\xfd" + bytes([0, 0x38]) + body


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "zlib": zlib.compress,
    "gzip": gzipped,
    "bz2": bz2.compress,
    "lzma": lzma.compress,
    "zstd": zstandard,
    "zstd without its size": zstandard_without_size,
    "blosc": lambda raw: numcodecs.Blosc().encode(raw),
    "lz4": lambda raw: numcodecs.LZ4().encode(raw),
}
BLANK = np.full((512, 512), 0x0303, np.uint16)


@pytest.mark.parametrize(
    ("how", "sharded"),
    [*((how, False) for how in PACKED), *((how, True) for how in ("gzip", "zstd", "zstd without its size", "blosc"))],
)
def test_a_chunk_that_unpacks_to_more_than_it_should_is_refused(how: str, sharded: bool, tmp_path: Path) -> None:
    """As much as a chunk holds is read; 400 MB in its place are refused before memory is taken for them."""
    import zarr

    codec, packed, path = how.partition(" ")[0], PACKED[how](BLANK.tobytes()), tmp_path / "a.ome.zarr"
    if sharded:
        codecs = {"gzip": zarr.codecs.GzipCodec, "zstd": zarr.codecs.ZstdCodec, "blosc": zarr.codecs.BloscCodec}
        sharded_image(path, codecs[codec]())
    else:
        edit(zarr_image(path, BLANK.shape, BLANK.shape) / "0/.zarray", lambda d: d.update(compressor={"id": codec}))

    def store(chunk: bytes) -> None:
        if not sharded:
            (path / "0" / "0.0").write_bytes(chunk)
            return
        places = struct.pack("<QQ", 0, len(chunk)) + b"\xff" * 48  # the other three are not there
        found = path / "0" / "c" / "0" / "0"
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_bytes(chunk + places + struct.pack("<I", crc32c(places)))

    store(packed)
    np.testing.assert_array_equal(ivf.read(path).data[:512, :512], BLANK)
    store(PACKED[how](b"\x03" * 400 * 10**6))
    image = ivf.read(path)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=r"holds more than the 524 kB of its chunk"):
            np.asarray(image)
        assert tracemalloc.get_traced_memory()[1] < 40 * 10**6
    finally:
        tracemalloc.stop()


def sharded_image(path: Path, codec: Any) -> None:
    """Four chunks in one shard."""
    import zarr

    ivf.write(path, ivf.Image(np.zeros((1024, 1024), np.uint16), "YX"), dtype="same")
    how = {"shape": (1024, 1024), "chunks": (512, 512), "shards": (1024, 1024), "dtype": "uint16"}
    zarr.open_group(path, mode="r+").create_array("0", **how, compressors=codec, overwrite=True)


def crc32c(data: bytes) -> int:
    """By its definition; the checksum of a shard's index."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_a_chunk_that_is_packed_twice_is_refused(tmp_path: Path) -> None:
    path = zarr_image(tmp_path / "a.ome.zarr")
    edit(path / "0/.zarray", lambda d: d.update(compressor={"id": "zlib"}, filters=[{"id": "zlib"}]))
    with pytest.raises(FileError, match="packed twice over"):
        ivf.read(path)


# --- cells


def test_cells_that_lie_are_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", shape=(10**6, 10**6), dtype="f4", chunks=(1000, 1000))
    assert "which cannot be" in refused("cells", str(path))
    with h5py.File(path, "w") as file:
        file["X"] = h5py.ExternalLink("/etc/passwd", "/X")
    assert "in another file" in refused("cells", str(path))
    with h5py.File(path, "w") as file:
        file.create_dataset("X", shape=(100,), dtype="u1", external=[("/etc/passwd", 0, 100)])
    assert "in another file" in refused("cells", str(path))
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(3000))
    assert "cannot be read" in refused("cells", str(path))
    (tmp_path / "mtx").mkdir()
    (tmp_path / "mtx" / "matrix.mtx").write_text("%%MatrixMarket matrix coordinate integer general\n9 9 999999999999\n")
    assert "which cannot be" in refused("cells", str(tmp_path / "mtx"))


# --- the short form of soak/fuzz.py


def test_damaged_files_end_in_a_sentence(tmp_path: Path) -> None:
    """120 files damaged in every way of soak/damage.py, read to the last pixel."""
    make_wholes(tmp_path)
    wholes = [p for p in sorted(tmp_path.iterdir()) if p.suffix not in (".h5ad", ".safetensors", ".yaml")]
    (tmp_path / "damaged").mkdir()
    refusals = []
    for number in range(120):
        whole = wholes[number % len(wholes)]
        target = tmp_path / "damaged" / f"{number}_{whole.name}"
        done = damaged(whole, target, random.Random(f"short {number}"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                np.asarray(ivf.read(target))
        except InverseflowError as error:
            refusals.append((str(error), done))
    assert len(refusals) > 40
    for sentence, done in refusals:
        assert "\n" not in sentence, done
        assert len(sentence) < 500, done
