"""Whole files of every kind that the command reads, and damage to them: by bytes, and by what the format means."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from imageio.v3 import imwrite

DATA = Path(__file__).parent.parent / "tests" / "data"
NUMBERS = [0, 1, 2, 3, 7, 255, 256, 65535, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 10**9, 10**15]
VALUES: list[Any] = [None, True, -1, 0, 1e308, 10**15, 2**70, "", "../../etc/passwd", "x" * 5000, [], {}, [[]], "NaN"]


def picture(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(100, 4000, shape).astype(np.uint16)


def make_wholes(folder: Path) -> dict[str, Path]:
    """One whole file of every kind, by name."""
    plane, stack = picture(40, 36), picture(2, 3, 40, 36)
    tiffs: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "plain.tif": (plane, {}),
        "big.tif": (plane, {"bigtiff": True}),
        "imagej.tif": (stack, {"imagej": True, "metadata": {"axes": "ZCYX", "unit": "um", "spacing": 2.0}}),
        "ome.ome.tif": (
            stack,
            {"ome": True, "photometric": "minisblack", "metadata": {"axes": "ZCYX", "PhysicalSizeX": 0.1}},
        ),
        "shaped.tif": (stack, {"metadata": {"axes": "TCYX"}, "photometric": "minisblack"}),
        "deflate.tif": (plane, {"compression": "zlib", "predictor": True}),
        "lzw.tif": (plane, {"compression": "lzw", "rowsperstrip": 8}),
        "zstd.tif": (plane, {"compression": "zstd", "tile": (16, 16)}),
        "tiled.tif": (plane, {"tile": (16, 16)}),
        "jpeg.tif": ((plane // 16).astype(np.uint8), {"compression": "jpeg"}),
        "motorola.tif": (plane, {"byteorder": ">"}),
    }
    for name, (data, how) in tiffs.items():
        tifffile.imwrite(folder / name, data, **how)
    imwrite(folder / "grey.png", plane)
    imwrite(folder / "colour.png", (picture(40, 36, 3) // 16).astype(np.uint8))
    imwrite(folder / "photo.jpg", (plane // 16).astype(np.uint8))
    np.save(folder / "a.npy", plane)
    np.savez(folder / "a.npz", data=plane)
    np.savez_compressed(folder / "small.npz", data=plane)
    make_zarrs(folder)
    make_cells(folder / "cells.h5ad")
    for name in ("model_1.safetensors", "generator_1.safetensors", "checkpoint_1.safetensors", "noise_1.yaml"):
        shutil.copy(DATA / name, folder / name)
    return {path.name: path for path in sorted(folder.iterdir())}


def make_zarrs(folder: Path) -> None:
    import zarr

    axes = [{"name": letter, "type": kind} for letter, kind in (("c", "channel"), ("y", "space"), ("x", "space"))]
    steps = [{"type": "scale", "scale": [1.0, 0.1, 0.1]}]
    datasets = [{"path": "0", "coordinateTransformations": steps}]
    for version in (2, 3):
        group = zarr.create_group(folder / f"v{version}.ome.zarr", zarr_format=version)
        array = group.create_array("0", shape=(2, 40, 36), chunks=(1, 20, 36), dtype="uint16")
        array[...] = picture(2, 40, 36)
        scales = {"axes": axes, "datasets": datasets, "name": "a"}
        if version == 2:
            group.attrs.update({"multiscales": [{**scales, "version": "0.4"}]})
        else:
            group.attrs.update({"ome": {"version": "0.5", "multiscales": [scales]}})


def make_cells(path: Path) -> None:
    import anndata
    from scipy.sparse import csr_matrix

    generator = np.random.default_rng(0)
    counts = generator.poisson(1.0, (60, 30)).astype(np.float32)
    adata = anndata.AnnData(csr_matrix(counts))
    adata.obsm["X_pca"] = generator.normal(size=(60, 8)).astype(np.float32)
    adata.write_h5ad(path)


# --- damage


def damaged(path: Path, target: Path, draw: random.Random) -> str:
    """A damaged copy; says what was done. Folders are damaged in one of their files."""
    if path.is_dir():
        shutil.copytree(path, target)
        inside = sorted(p for p in target.rglob("*") if p.is_file())
        metadata = [p for p in inside if p.name.startswith((".z", "zarr"))]
        chosen = draw.choice(metadata if draw.random() < 0.7 else inside)
        done = change(chosen.read_bytes(), chosen.suffix or ".json", draw, is_json=chosen in metadata)
        if done is None:
            chosen.unlink()
            return f"{chosen.relative_to(target)} is gone"
        chosen.write_bytes(done[0])
        return f"{chosen.relative_to(target)}: {done[1]}"
    done = change(path.read_bytes(), path.suffix, draw, is_json=False) or (b"", "empty")
    target.write_bytes(done[0])
    return done[1]


def change(raw: bytes, suffix: str, draw: random.Random, *, is_json: bool) -> tuple[bytes, str] | None:
    meant: dict[str, Callable[[bytes, random.Random], tuple[bytes, str]]] = {
        ".tif": change_tiff,
        ".safetensors": change_header,
        ".npy": change_npy,
        ".npz": change_npz,
        ".yaml": change_text,
        ".png": change_png,
    }
    by_meaning = change_json if is_json else meant.get(suffix)
    if by_meaning and draw.random() < 0.6:
        return by_meaning(raw, draw)
    if is_json and draw.random() < 0.1:
        return None
    return change_bytes(raw, draw)


def change_bytes(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    data = bytearray(raw)
    how = draw.choice(["flip", "flip head", "cut", "zero", "insert", "repeat", "swap", "number"])
    end = min(len(data), 400) if how in ("flip head", "number") else len(data)
    at = draw.randrange(max(1, end))
    if how.startswith("flip"):
        for _ in range(draw.choice([1, 2, 8])):
            data[draw.randrange(max(1, end))] ^= 1 << draw.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "zero":
        data[at : at + draw.choice([1, 4, 64])] = bytes(draw.choice([1, 4, 64]))
    elif how == "insert":
        data[at:at] = draw.randbytes(draw.choice([1, 8, 200]))
    elif how == "repeat":
        data[at:at] = data[at : at + 200] * draw.choice([1, 50])
    elif how == "swap":
        other = draw.randrange(len(data))
        data[at : at + 16], data[other : other + 16] = data[other : other + 16], data[at : at + 16]
    else:
        size, code = draw.choice([(2, "H"), (4, "I"), (8, "Q")])
        data[at : at + size] = struct.pack(draw.choice("<>") + code, draw.choice(NUMBERS) % 2 ** (8 * size))
    return bytes(data), f"{how} at {at}"


def change_tiff(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Another number in a tag: its code, type, count or value; or a next page that leads back."""
    data, order = bytearray(raw), "<" if raw[:2] == b"II" else ">"
    big = struct.unpack(order + "H", raw[2:4])[0] == 43
    entry, number, first = (20, "Q", 8) if big else (12, "I", 4)
    place = struct.unpack_from(order + number, raw, first)[0]
    count = struct.unpack_from(order + ("Q" if big else "H"), raw, place)[0]
    begin = place + (8 if big else 2)
    which = draw.randrange(count + 1)
    at = begin + which * entry
    if which == count:
        struct.pack_into(order + number, data, at, draw.choice([place, 8, len(data) - 2, 2**31]))
        return bytes(data), "the next page leads elsewhere"
    value = draw.choice(NUMBERS)
    part = draw.choice(["type", "count", "value", "value", "value"])
    if part == "type":
        struct.pack_into(order + "H", data, at + 2, draw.randrange(20))
    elif part == "count":
        struct.pack_into(order + number, data, at + 4, value % 2 ** (64 if big else 32))
    else:
        struct.pack_into(order + number, data, at + (12 if big else 8), value % 2 ** (64 if big else 32))
    tag = struct.unpack_from(order + "H", raw, at)[0]
    return bytes(data), f"tag {tag}: {part} {value}"


def change_header(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    length = struct.unpack("<Q", raw[:8])[0]
    header, values = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    if draw.random() < 0.6:
        about = json.loads(header["__metadata__"]["inverseflow"])
        done = change_value(about, draw)
        header["__metadata__"]["inverseflow"] = json.dumps(about)
    else:
        done = change_value(header, draw)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values, done


def change_json(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    try:
        found = json.loads(raw)
    except ValueError:
        return change_bytes(raw, draw)
    done = change_value(found, draw)
    return json.dumps(found).encode(), done


def change_value(found: Any, draw: random.Random) -> str:
    """Another value, no value, or another name somewhere in nested lists and names."""
    path = []
    while True:
        keys = list(found) if isinstance(found, dict) else list(range(len(found)))
        if not keys:
            return "nothing"
        key = draw.choice(keys)
        path.append(str(key))
        if isinstance(found[key], dict | list) and found[key] and draw.random() < 0.8:
            found = found[key]
            continue
        how = draw.choice(["value", "value", "value", "gone", "name", "deep"])
        if how == "gone":
            del found[key]
        elif how == "name" and isinstance(found, dict):
            found[draw.choice(["x", "kind", "../x"])] = found.pop(key)
        elif how == "deep":
            found[key] = [[[[[[found[key]]]]]]]
        else:
            found[key] = draw.choice([*VALUES, *NUMBERS])
        return f"{'/'.join(path)}: {how}"


def change_text(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    words = re.findall(r"[\w.]+|\W", raw.decode())
    for _ in range(draw.choice([1, 1, 3])):
        at = draw.randrange(len(words))
        extra = [
            "1e999",
            "-1",
            ".nan",
            "{",
            "}",
            "[",
            "&a",
            "*a",
            "!!python/name:os",
            ":",
            "\n",
            "\t",
            "gaussian",
            "1e9",
        ]
        words[at] = draw.choice([*extra, "", words[at] * 3, draw.choice(words)])
    return "".join(words).encode(), "other words"


def change_npy(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    length = struct.unpack("<H", raw[8:10])[0]
    text = raw[10 : 10 + length].decode("latin1").rstrip()
    changes = {
        "descr": ["'|O'", "'<f8'", "'>c16'", "'<U99999999'", "'|V9'", "[('a','<i4')]", "('<f8',(9,9))", "3", "'<M8'"],
        "shape": [
            "(10**9,)",
            "(1000000000, 1000000000)",
            "(-1, 5)",
            "()",
            "(4,)",
            "(36, 40)",
            "3",
            "('a',)",
            "(True, 9)",
        ],
        "fortran_order": ["True", "1", "'x'"],
    }
    name = draw.choice(list(changes))
    value = draw.choice(changes[name])
    text = re.sub(rf"('{name}': )(\([^)]*\)|'[^']*'|\w+)", lambda found: found[1] + value, text)
    header = text.ljust((len(text) // 64 + 1) * 64).encode("latin1")
    return raw[:8] + struct.pack("<H", len(header)) + header + raw[10 + length :], f"{name} {value}"


def change_npz(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        inner = archive.read("data.npy")
    changed, done = (change_npy if draw.random() < 0.6 else change_bytes)(inner, draw)
    out = io.BytesIO()
    how = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(out, "w", how) as archive:
        archive.writestr("data.npy", changed)
        if draw.random() < 0.3:
            about = io.BytesIO()
            np.save(about, np.array(draw.choice(["{}", "[", '{"axes": 3}', '{"pixel_size": "x"}', "3"])))
            archive.writestr("about.npy", about.getvalue())
    return out.getvalue(), done


def change_png(raw: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Another size or depth with the right checksum."""
    import zlib

    width, height = draw.choice(NUMBERS) % 2**32, draw.choice([40, 10**5, 2**31 - 1])
    head = (
        struct.pack(">II", width, height)
        + bytes([draw.choice([1, 8, 16, 99]), draw.choice([0, 2, 3, 6, 9])])
        + raw[26:29]
    )
    return raw[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + raw[33:], f"{width} x {height}"


if __name__ == "__main__":
    sys.exit("This is a part of soak.fuzz; run that.")
