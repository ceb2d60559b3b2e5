"""The images of the benchmarks, as they are on disk, and a row's task made from them.

    python -m benchmarks.datasets --pack ../shared/data --data carry

puts the original files into one archive, carry/data.zip, for a machine that has no copy of the data. Everywhere else
--data is the folder of the data sets itself.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from imageio.v3 import imread
from torch import Tensor

import inverseflow as ivf
from inverseflow.noise import as_noise

Array = np.ndarray[Any, Any]
ARCHIVE = "data.zip"
USED = ("BSDS500", "Kodak24_center256", "Set12", "FMD", "OCT_SDOCT", "PtNP_TEM_sim")
PICTURES = (".jpg", ".png", ".tif")
PHOTOGRAPHS = {"bsds500": "BSDS500/test/*.jpg", "kodak": "Kodak24_center256/*.png", "set12": "Set12/*.png"}
SIZE = 256
SEEDS = {"train": 11, "bsds500": 12, "kodak": 13, "set12": 14, "ptnp": 15}
"""Of the noise of each set, so that every method sees the same noisy images, whatever its own seed."""


@dataclass(frozen=True)
class Task:
    """What a row trains on and is scored by. Everything is (B, C, Y, X) in the units of the data."""

    noisy: Tensor
    noise: ivf.Noise  # as the method is told
    tests: dict[str, tuple[Tensor, Tensor]]  # the noisy images and the truth of every set
    peak: float  # the range of the PSNR
    clean: Tensor | None = None  # for supervised rivals alone


def load(row: dict[str, Any], data: Path) -> Task:
    """The task of a row: `data` says which images, `noise` what they suffered, `assumed` what the method is told."""
    kind = row["data"]
    if kind == "photographs":
        return _photographs(row, data)
    if kind == "ptnp":
        return _simulated(row, {"ptnp": _platinum(data)}, _platinum(data))
    if kind == "fmd":
        return _microscopy(row["sample"], data)
    if kind == "oct":
        return _tomography(data)
    raise ValueError(f"There is no data {kind!r}; known are photographs, ptnp, fmd, oct.")


def _photographs(row: dict[str, Any], data: Path) -> Task:
    """Train on 200 whole images, test on the centres; Set12 has no colours."""
    colour = bool(row.get("colour"))
    tests = {name: _centres(data, name, colour) for name in PHOTOGRAPHS if not (colour and name == "set12")}
    return _simulated(row, tests, _training_photographs(data, colour))


def _simulated(row: dict[str, Any], tests: dict[str, Tensor], train: Tensor) -> Task:
    noise = as_noise(row["noise"])

    def noisy(name: str, clean: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(SEEDS[name])
        return torch.cat([noise.sample(image[None], generator=generator) for image in clean])  # one fits into the cache

    return Task(
        noisy=noisy("train", train),
        noise=as_noise(row.get("assumed", row["noise"])),
        tests={name: (noisy(name, clean), clean) for name, clean in tests.items()},
        peak=1.0,
        clean=train,
    )


def _microscopy(sample: str, data: Path) -> Task:
    """Four captures of one view; the noise is measured on what differs between them, never on the truth."""
    captures = np.stack(read(data, f"FMD/raw/{sample}_*.png"))
    truth = np.stack(read(data, f"FMD/gt/{sample}_1.png") * len(captures))
    noise = ivf.estimate_noise(captures.astype(np.float64), axes="TYX", repeats="T").noise
    noisy = _batch(captures, peak=1)
    return Task(noisy, noise, {"fmd": (noisy, _batch(truth, peak=1))}, peak=255.0)


def _tomography(data: Path) -> Task:
    """Three scans of three eyes; the noise is estimated on flat parts of them."""
    scans, truth = (_batch(np.stack(read(data, f"OCT_SDOCT/*/{name}.png")), peak=1) for name in ("test", "average"))
    noise = ivf.estimate_noise(scans[:, 0].double().numpy(), axes="SYX").noise
    return Task(scans, noise, {"oct": (scans, truth)}, peak=255.0)


@lru_cache
def _training_photographs(data: Path, colour: bool) -> Tensor:
    """Upright images lie down, so that all have one shape."""
    images = [_colours(image, colour) for image in read(data, "BSDS500/train/*.jpg")]
    lying = [image if image.shape[0] < image.shape[1] else np.swapaxes(image, 0, 1) for image in images]
    return _batch(np.stack(lying), peak=255)


@lru_cache
def _centres(data: Path, name: str, colour: bool) -> Tensor:
    return _batch(np.stack([_centre(_colours(image, colour)) for image in read(data, PHOTOGRAPHS[name])]), peak=255)


@lru_cache
def _platinum(data: Path) -> Tensor:
    return _batch(np.stack(read(data, "PtNP_TEM_sim/*.tif")), peak=1)


def _colours(image: Array, colour: bool) -> Array:
    """All three, or 8-bit luminance."""
    if colour or image.ndim == 2:
        return image
    return np.round(image.astype(np.float64) @ [0.299, 0.587, 0.114])


def _centre(image: Array) -> Array:
    top, left = (image.shape[0] - SIZE) // 2, (image.shape[1] - SIZE) // 2
    return image[top : top + SIZE, left : left + SIZE]


def _batch(images: Array, peak: float) -> Tensor:
    """(B, Y, X) or (B, Y, X, C) as float32 (B, C, Y, X)."""
    images = images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)) / peak


def read(data: Path, pattern: str) -> list[Array]:
    """The images whose names match, in order of their names, from the archive or from the folder."""
    archive = data if data.suffix == ".zip" else data / ARCHIVE
    if archive.exists():
        with zipfile.ZipFile(archive) as packed:
            names = sorted(name for name in packed.namelist() if fnmatch(name, pattern))
            images = [_decode(packed.read(name), Path(name).suffix) for name in names]
    else:
        images = [_decode(path.read_bytes(), path.suffix) for path in sorted(data.glob(pattern))]
    if not images:
        raise FileNotFoundError(f"{data} holds no {pattern}; give --data the folder of the benchmark data.")
    return images


def _decode(content: bytes, suffix: str) -> Array:
    if suffix == ".tif":  # imageio would need a plugin
        import tifffile

        return np.asarray(tifffile.imread(io.BytesIO(content)))
    return np.asarray(imread(content, extension=suffix))


def pack(source: Path, target: Path) -> Path:
    """The files of the benchmarks in one archive; they are compressed already."""
    target.mkdir(parents=True, exist_ok=True)
    archive = target / ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for folder in USED:
            for path in sorted((source / folder).rglob("*")):
                if path.suffix in PICTURES:
                    packed.write(path, path.relative_to(source))
    return archive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--data", type=Path, required=True, help="where the archive goes")
    arguments = parser.parse_args()
    archive = pack(arguments.pack, arguments.data)
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
