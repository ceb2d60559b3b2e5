"""Training on more than fits into memory: random crops, read from the files by processes that read ahead.

A batch is made of windows, each read once and cut into a few crops: a file is compressed chunk by chunk, and a chunk
that was opened for one crop holds others. What a batch contains follows from one number, which the generator of the
training draws, so that neither the number of reading processes nor an interruption changes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from .errors import InverseflowError
from .imaging import Samples, select_channels
from .interrupt import apart
from .io import read
from .methods import Batch
from .patches import WHOLE, Operation, fitting
from .samples import Scaling

CROPS, WIDER = 4, 2  # crops of a window, which is so many times as wide as one of them
AHEAD = 4  # batches that each process has ready


@dataclass(frozen=True)
class Files:
    """Image files to learn from, in plain values: every process opens them itself."""

    paths: tuple[str, ...]
    axes: tuple[str, ...]
    spatial: str
    channels: tuple[int, ...] | None = None
    workers: int | None = None  # that read; by default one for every core but one, at most 8

    def patches(self, scaling: Scaling, size: int, operations: Sequence[Operation]) -> DiskPatches:
        shapes = [samples.shape for samples in open_samples(self)]
        wide = tuple(min(size, *lengths) for lengths in zip(*shapes, strict=True))
        return DiskPatches(self, scaling, wide, tuple(fitting(operations, wide)))


@lru_cache(maxsize=1)
def open_samples(files: Files) -> list[Samples]:
    """Once in every process."""
    images = [read(path, axes=axes) for path, axes in zip(files.paths, files.axes, strict=True)]
    if files.channels is not None:
        images = [select_channels(image, files.channels) for image in images]
    return [Samples(image, files.spatial) for image in images]


@dataclass(frozen=True)
class DiskPatches:
    """The `Data` of a training: crops (C, *size) of files, flipped and turned by one of the allowed operations."""

    files: Files
    scaling: Scaling
    size: tuple[int, ...]
    operations: tuple[Operation, ...]
    device: str | torch.device = "cpu"

    def __len__(self) -> int:
        return sum(len(samples) for samples in open_samples(self.files))

    @property
    def values_per_sample(self) -> int:
        return open_samples(self.files)[0].channels * math.prod(self.size)

    def to(self, device: torch.device) -> DiskPatches:
        return DiskPatches(self.files, self.scaling, self.size, self.operations, device)

    def draw(self, size: int, generator: torch.Generator, part: slice = WHOLE) -> Batch:
        """One batch, read here and now."""
        return self._placed(Reader(self, size, part)[_seed(generator)])

    def ahead(self, size: int, generator: torch.Generator, part: slice = WHOLE) -> Iterator[Batch]:
        """The batches that `draw` would give, read ahead by other processes."""
        workers = self.files.workers if self.files.workers is not None else min(8, max(1, (os.cpu_count() or 2) - 1))
        loader = DataLoader(
            ReaderApart(self, size, part),
            batch_size=None,
            sampler=Seeds(generator.get_state()),
            num_workers=workers,
            prefetch_factor=AHEAD if workers else None,
            multiprocessing_context="spawn" if workers else None,  # a forked process cannot use zarr's threads
            worker_init_fn=apart,
            pin_memory=torch.device(self.device).type == "cuda",
        )
        for read_ahead in loader:
            _seed(generator)  # counts the batches that are used, so that a resumed training goes on with the next one
            if isinstance(read_ahead, InverseflowError):
                raise read_ahead
            yield self._placed(read_ahead)

    def _placed(self, batch: Any) -> Batch:
        x, origin = batch
        return Batch(self.scaling.onto(x, self.device), origin.to(self.device, non_blocking=True))


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


class Seeds(Sampler[int]):
    """The numbers that a generator in this state will draw."""

    def __init__(self, state: Tensor) -> None:
        self.state = state

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.set_state(self.state)
        while True:
            yield _seed(generator)


class Reader(Dataset[tuple[Tensor, Tensor]]):
    """seed -> crops and the numbers of their samples; of a batch of `count`, a part."""

    def __init__(self, data: DiskPatches, count: int, part: slice) -> None:
        self.data, self.count, self.part = data, count, part

    def __getitem__(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        opened = open_samples(self.data.files)
        pixels = torch.tensor([float(len(samples) * math.prod(samples.shape)) for samples in opened])
        before = [sum(len(samples) for samples in opened[:k]) for k in range(len(opened))]
        mine = range(self.count)[self.part]
        crops, origins = [], []
        for first in range(0, self.count, CROPS):
            which = int(torch.multinomial(pixels, 1, generator=generator))
            chance = torch.rand(1 + len(self.data.size), generator=generator, dtype=torch.float64)
            places = torch.rand(CROPS, len(self.data.size), generator=generator, dtype=torch.float64)
            turns = torch.randint(len(self.data.operations), (CROPS,), generator=generator)
            wanted = [k for k in range(CROPS) if first + k in mine]
            if not wanted:
                continue
            samples = opened[which]
            number = int(chance[0] * len(samples))
            window = self._window(samples, chance[1:].tolist())
            block = samples.read(list(samples)[number], window)
            for k in wanted:
                crops.append(self._crop(block, places[k].tolist(), self.data.operations[int(turns[k])]))
                origins.append(before[which] + number)
        return torch.stack(crops), torch.tensor(origins)

    def _window(self, samples: Samples, chance: Sequence[float]) -> tuple[slice, ...]:
        """Somewhere in the sample; within one chunk, if the file has chunks that are wide enough."""
        chunks = dict(zip(samples.image.axes, samples.image.metadata.get("chunks") or (), strict=False))
        window = []
        for letter, n, size, u in zip(samples.spatial, samples.shape, self.data.size, chance, strict=True):
            wide, chunk = min(n, WIDER * size), chunks.get(letter, 0)
            low, high, inner = 0, n, u
            if chunk >= wide:  # the one that holds the pixel u n; a short last one together with its neighbour
                low = int(u * n) // chunk * chunk
                high = min(low + chunk, n)
                low, inner = min(low, high - wide), (u * n - low) / (high - low)
            start = low + int(inner * (high - low - wide + 1))
            window.append(slice(start, start + wide))
        return tuple(window)

    def _crop(self, block: Tensor, places: Sequence[float], operation: Operation) -> Tensor:
        corner = [int(u * (n - size + 1)) for u, n, size in zip(places, block.shape[1:], self.data.size, strict=True)]
        inner = (slice(a, a + size) for a, size in zip(corner, self.data.size, strict=True))
        permutation, flips = operation
        crop = block[(slice(None), *inner)].permute(0, *(1 + axis for axis in permutation))
        return crop.flip([1 + axis for axis, flipped in enumerate(flips) if flipped])


class ReaderApart(Reader):
    """In a process of its own, where torch would put a traceback into the sentence of an error that is raised."""

    def __getitem__(self, seed: int) -> Any:
        try:
            return super().__getitem__(seed)
        except InverseflowError as error:
            return error
