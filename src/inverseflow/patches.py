"""Random batches from data that lives on the device.

Which sample, which crop and which flip are drawn on the host, so that drawing never waits for the device.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from collections.abc import Generator as Stream
from typing import Any, Protocol

import torch
from torch import Tensor

from .methods import Batch
from .noise import Noise

Operation = tuple[tuple[int, ...], tuple[bool, ...]]
"""A permutation of the spatial axes, then which of them are flipped."""


WHOLE = slice(None)


class Data(Protocol):
    """draw(size, generator, part) draws a batch of this size and returns a part of it."""

    @property
    def values_per_sample(self) -> int: ...
    def to(self, device: torch.device) -> Data: ...
    def draw(self, size: int, generator: torch.Generator, part: slice = WHOLE) -> Batch: ...
    def __len__(self) -> int: ...


class Source(Protocol):
    """What is on disk, and the `Data` that it gives for a training."""

    def patches(self, scaling: Any, size: int, operations: Sequence[Operation]) -> Data: ...


class Rows:
    """Batches of whole samples, for tables (B, D) and small images (B, C, *S)."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    @property
    def values_per_sample(self) -> int:
        return self.x[0].numel()

    def to(self, device: torch.device) -> Rows:
        return Rows(self.x.to(device))

    def draw(self, size: int, generator: torch.Generator, part: slice = WHOLE) -> Batch:
        index = torch.randint(len(self.x), (size,), generator=generator)[part].to(self.x.device, non_blocking=True)
        return Batch(self.x[index], index)


class Patches:
    """Random crops of images (C, *S) of any sizes, each flipped and turned by one of the allowed operations.

    The images lie one after the other in memory. A crop, turned or not, is then a first pixel and a stride along each
    axis, and a whole batch is read at once.
    """

    def __init__(self, images: Sequence[Tensor], patch_size: int, operations: Sequence[Operation] = ()) -> None:
        dims, channels = images[0].ndim - 1, images[0].shape[0]
        sizes = torch.tensor([image.shape[1:] for image in images])
        self.size = tuple(min(patch_size, n) for n in sizes.amin(0).tolist())
        possible = fitting(operations, self.size)
        self.permutations = torch.tensor([permutation for permutation, _ in possible])
        self.flips = torch.tensor([flips for _, flips in possible])

        self.values = torch.cat([image.flatten() for image in images])
        self.channels = channels
        pixels = sizes.prod(1)
        self.share = pixels / pixels.sum()  # every pixel of the data set is as likely as any other
        self.first = (channels * pixels).cumsum(0) - channels * pixels
        self.freedom = sizes - torch.tensor(self.size) + 1  # how many places a crop can have along each axis
        # Strides along (C, *S): what lies behind each axis.
        self.strides = torch.stack([sizes[:, axis:].prod(1) for axis in range(dims + 1)], 1)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def values_per_sample(self) -> int:
        return int(self.channels * math.prod(self.size))

    def to(self, device: torch.device) -> Patches:
        return self._with(self.values.to(device))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Patches:
        """The same crops of what `function`, (B, C, *S) -> (B, C, *S), makes of all images of one size in a row."""
        sizes = (self.freedom + torch.tensor(self.size) - 1).tolist()
        found, start = [], 0
        for size, same in itertools.groupby(sizes):
            count, shape = len(list(same)), (self.channels, *size)
            images = self.values[start : (start := start + count * math.prod(shape))].reshape(count, *shape)
            found.append(function(images).flatten())
        return self._with(torch.cat(found))

    def _with(self, values: Tensor) -> Patches:
        other = copy.copy(self)
        other.values = values
        return other

    def draw(self, size: int, generator: torch.Generator, part: slice = WHOLE) -> Batch:
        index = torch.multinomial(self.share, size, replacement=True, generator=generator)[part]
        places = torch.rand(size, len(self.size), generator=generator, dtype=torch.float64)[part]
        operation = torch.randint(len(self.flips), (size,), generator=generator)[part]

        first = self.first[index] + ((places * self.freedom[index]).long() * self.strides[index, 1:]).sum(1)
        strides, flips = self.strides[index, 1:].gather(1, self.permutations[operation]), self.flips[operation]
        first += (flips * strides * (torch.tensor(self.size) - 1)).sum(1)  # a flipped axis is read from its end
        strides = torch.cat([self.strides[index, :1], torch.where(flips, -strides, strides)], 1)

        plan = torch.cat([index[:, None], first[:, None], strides], 1).to(self.values.device, non_blocking=True)
        where = plan[:, 1]
        for axis, length in enumerate((self.channels, *self.size)):
            steps = torch.arange(length, device=plan.device)
            where = where[..., None] + steps * plan[:, 2 + axis].reshape(-1, *(1,) * (axis + 1))
        return Batch(self.values[where], plan[:, 0])


def fitting(operations: Sequence[Operation], size: Sequence[int]) -> list[Operation]:
    """Those that a crop of this size allows: one that is not square cannot be turned. At least the one that does
    nothing.
    """
    dims = len(size)
    all_of_them = list(operations) or [(tuple(range(dims)), (False,) * dims)]
    return [(p, f) for p, f in all_of_them if all(size[a] == size[b] for a, b in enumerate(p))]


def batches(data: Data, size: int, generator: torch.Generator, part: slice = WHOLE) -> Stream[Batch, None, None]:
    """Draws without end; data that is read from files may read ahead."""
    if ahead := getattr(data, "ahead", None):
        yield from ahead(size, generator, part)
    while True:
        yield data.draw(size, generator, part)


def allowed_operations(noise: Noise, dims: int) -> list[Operation]:
    """The flips and quarter turns that leave the law of the noise unchanged. The depth axis of a volume is never turned
    into the plane.
    """
    permutations = [p for p in itertools.permutations(range(dims)) if dims < 3 or p[0] == 0]
    operations = itertools.product(permutations, itertools.product((False, True), repeat=dims))
    return [(p, f) for p, f in operations if noise.invariant(p, f)]
