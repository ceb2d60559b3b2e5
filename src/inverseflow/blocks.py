"""Denoising block by block, into OME-Zarr: what one process does alone, and a cluster together.

A block is some whole chunks of the output. Whoever does it reads it with a margin, writes its chunks, and then leaves a
note in the folder of the run. A run that was stopped, in whatever way, goes on with the blocks that have no note.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import tiling
from .denoiser import Denoiser
from .disk import writing
from .errors import FileError
from .imaging import Samples, samples_for, select_channels
from .io import Image, omezarr, read
from .whole import sync_file, write_whole

SIDE = 1024  # pixels along each axis of a block of planes, or more where chunks are larger
DEPTH = 64  # along each axis of a block of volumes, or more
NOTES, MODEL, JOB = "done", "model.safetensors", "job.json"
Block = tuple[int, tuple[tuple[int, int], ...]]
"""A level of the pyramid and the bounds along its axes."""


@dataclass(frozen=True)
class Job:
    """All that is needed to do any block, in plain values that are sent to every worker."""

    folder: str
    source: str
    axes: str
    channels: tuple[int, ...] | None
    stamp: int  # when the source was last changed
    model: str
    weights: str  # the digest of the model's file: a worker may know another one by the same name
    order: str
    outputs: tuple[str, ...]
    estimate: str | float | None
    std: bool
    quantiles: tuple[float, ...]
    tile_size: int | None
    overlap: int
    device: str
    nan: str = "refuse"

    def store(self, name: str) -> omezarr.Store:
        return omezarr.reopen(Path(self.folder) / name, self.order)


def begin(job: Job, image: Image, dtypes: dict[str, str | None], *, force: bool) -> None:
    """Make the folder of a run with its empty outputs, or find that of one that was stopped."""
    folder = Path(job.folder)
    shown = folder / JOB
    wanted = json.loads(json.dumps({**asdict(job), "shape": image.shape, "dtypes": dtypes}))
    if shown.exists():
        found = json.loads(shown.read_text())
        differing = sorted(key for key in wanted if found.get(key) != wanted[key])
        if not differing and all((folder / name).exists() for name in job.outputs):
            return
        if differing and not force:
            raise FileError(
                f"{folder} holds an interrupted run that differs in {', '.join(differing)}; go on with the command "
                "that began it, or start again with --force."
            )
    _empty(folder)  # a run may have been stopped in these lines
    with writing(folder):
        (folder / NOTES).mkdir(parents=True)
        for name, dtype in dtypes.items():
            omezarr.create(folder / name, empty_result(image), dtype, name)
        write_whole(shown, json.dumps(wanted).encode(), overwrite=True)


def empty_result(image: Image) -> Image:
    """The image with values that nobody has computed, for its shape and what it says of itself."""
    return image.replace(np.broadcast_to(np.float32(0), image.shape))


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def last_changed(source: Path) -> int:
    """Of a file, or of what an OME-Zarr folder says of itself."""
    files = [source, *source.iterdir()] if source.is_dir() else [source]
    return max(path.stat().st_mtime_ns for path in files)


def _empty(folder: Path) -> None:
    """All but the model that was made for the run."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name == JOB:
            path.unlink()


def blocks(job: Job, spatial: str) -> list[list[Block]]:
    """All blocks, by level; those of a level need the level before."""
    store = job.store(job.outputs[0])
    found = []
    for level, array in enumerate(store.levels):
        size = []
        for letter, unit, n in zip(job.order, store.unit(level), array.shape, strict=True):
            least = n if letter == "C" else (DEPTH if len(spatial) == 3 else SIDE) if letter in spatial else 1
            size.append(unit * -(-min(least, n) // unit))
        boxes = omezarr.grid(array.shape, tuple(size))
        found.append([(level, tuple((s.start, s.stop) for s in box)) for box in boxes])
    return found


def missing(job: Job, wanted: Sequence[Block]) -> list[Block]:
    done = {path.name for path in (Path(job.folder) / NOTES).iterdir()}
    return [block for block in wanted if _name(block) not in done]


def do_block(job: Job, block: Block) -> None:
    """Compute and write a block, then say so."""
    level, bounds = block
    box = tuple(slice(*pair) for pair in bounds)
    found = [] if level else _denoised(job, box)
    with writing(Path(job.folder)):
        windows = [job.store(name).fill(values, box) for name, values in zip(job.outputs, found, strict=not level)]
        for name in job.outputs if level else ():
            job.store(name).halve(level, box)
        for name in job.outputs:
            _sync(job, name, level, box)
        note = Path(job.folder) / NOTES / _name(block)
        temporary = note.with_name(f".{note.name}.{os.getpid()}")
        temporary.write_text(json.dumps(windows))
        os.replace(temporary, note)


def _sync(job: Job, name: str, level: int, box: tuple[slice, ...]) -> None:
    """A note must not outlive what it is about, if the power fails."""
    store = job.store(name)
    array, units = store.group[str(level)], store.unit(level)
    numbers = (range(s.start // unit, -(-s.stop // unit)) for s, unit in zip(box, units, strict=True))
    for index in itertools.product(*numbers):
        file = Path(job.folder) / name / str(level) / array.metadata.encode_chunk_key(index)
        if file.exists():  # a chunk of nothing but zeros is none
            sync_file(file)


def _name(block: Block) -> str:
    level, bounds = block
    return f"{level}_" + "_".join(str(start) for start, _ in bounds)


def _denoised(job: Job, box: tuple[slice, ...]) -> list[np.ndarray]:
    """The values of a box in the order of the store, one array for each output."""
    model, samples = load(job.model, job.device, job.weights), _samples(job)
    where = dict(zip(job.order, box, strict=True))
    shape = tuple(s.stop - s.start for s in box)
    results = [np.empty(shape, np.float32) for _ in job.outputs]
    function = model.function(job.estimate, std=job.std, quantiles=job.quantiles)
    region = tuple(where[letter] for letter in samples.spatial)
    order = [("C", *samples.spatial).index(letter) for letter in job.order if letter not in samples.loops]
    if "C" not in job.order:
        order = [axis - 1 for axis in order]
    for index in _indices(samples, where):
        found = with_margin(model, function, samples, index, region, job.tile_size, job.overlap)
        place = dict(zip(samples.loops, index, strict=True))
        here = tuple(place[a] - where[a].start if a in place else slice(None) for a in job.order)
        for result, values in zip(results, torch.split(found, samples.channels), strict=True):
            result[here] = (values if "C" in job.order else values[0]).permute(order).numpy()
    return results


def _indices(samples: Samples, where: dict[str, slice]) -> Iterator[tuple[int, ...]]:
    sizes = [where[letter] for letter in samples.loops]
    for index in np.ndindex(*(s.stop - s.start for s in sizes)):
        yield tuple(s.start + i for s, i in zip(sizes, index, strict=True))


def with_margin(
    model: Denoiser,
    function: Callable[[Tensor], Tensor],
    samples: Samples,
    index: tuple[int, ...],
    region: tuple[slice, ...],
    tile_size: int | None,
    margin: int,
) -> Tensor:
    """(C, *region) of a sample, of which the network sees `margin` more on every side; from there on, its own grid."""
    grid = model.multiple
    seen = tuple(
        slice(max(0, (s.start - margin) // grid * grid), min(n, s.stop + margin))
        for s, n in zip(region, samples.shape, strict=True)
    )
    x = samples.read(index, seen)
    tile, batch, overlap = model.tile(x.shape[1:], tile_size, margin)
    if tile == tuple(x.shape[1:]):
        y = function(x[None])[0]
    else:
        y = tiling.apply(function, x, tile=tile, overlap=overlap, multiple=grid, batch=batch)
    inner = (slice(a.start - b.start, a.stop - b.start) for a, b in zip(region, seen, strict=True))
    return y[(slice(None), *inner)]


@lru_cache(maxsize=1)
def load(path: str, device: str, weights: str) -> Denoiser:
    """Once in every process, and again if the file is another one."""
    return Denoiser.load(path, device=device)


@lru_cache(maxsize=1)
def _samples(job: Job) -> Samples:
    image = read(job.source, axes=job.axes)
    if job.channels is not None:
        image = select_channels(image, job.channels)
    return samples_for(load(job.model, job.device, job.weights), image, job.nan)


def finish(job: Job, image: Image, dtypes: dict[str, str | None]) -> None:
    """Write what the outputs say of themselves, and clear away what killed workers had begun."""
    for part in Path(job.folder).rglob("*.partial"):
        part.unlink(missing_ok=True)
    notes = [json.loads(path.read_text()) for path in (Path(job.folder) / NOTES).iterdir() if path.name[0] == "0"]
    for number, name in enumerate(dtypes):
        window = (min(note[number][0] for note in notes), max(note[number][1] for note in notes))
        job.store(name).describe(empty_result(image), window)
