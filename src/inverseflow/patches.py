"""Random batches from data that lives on the device.

Which sample, which crop and which flip are drawn on the host, so that drawing never waits for the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .methods import Batch
from .noise import Noise

Operation = tuple[tuple[int, ...], tuple[bool, ...]]
"""A permutation of the spatial axes, then which of them are flipped."""


class Data(Protocol):
    def to(self, device: torch.device) -> Data: ...
    def draw(self, size: int, generator: torch.Generator) -> Batch: ...
    def __len__(self) -> int: ...


class Rows:
    """Batches of whole samples, for tables (B, D) and small images (B, C, *S)."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> Rows:
        return Rows(self.x.to(device))

    def draw(self, size: int, generator: torch.Generator) -> Batch:
        index = torch.randint(len(self.x), (size,), generator=generator).to(self.x.device, non_blocking=True)
        return Batch(self.x[index], index)


class Patches:
    """Random crops of images (C, *S) of any sizes, each flipped and turned by one of the allowed operations."""

    def __init__(self, images: Sequence[Tensor], patch_size: int, operations: Sequence[Operation] = ()) -> None:
        dims = images[0].ndim - 1
        self.images = list(images)
        self.operations = list(operations) or [(tuple(range(dims)), (False,) * dims)]
        smallest = [min(image.shape[1 + axis] for image in self.images) for axis in range(dims)]
        self.size = tuple(min(patch_size, n) for n in smallest)
        if len(set(self.size)) > 1:  # a crop that is not square cannot be turned
            self.operations = [
                (p, f) for p, f in self.operations if all(self.size[a] == self.size[b] for a, b in enumerate(p))
            ]
        pixels = torch.tensor([float(image[0].numel()) for image in self.images])
        self.share = pixels / pixels.sum()  # every pixel of the data set is as likely as any other

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> Patches:
        moved = Patches.__new__(Patches)
        moved.__dict__.update(self.__dict__, images=[image.to(device) for image in self.images])
        return moved

    def draw(self, size: int, generator: torch.Generator) -> Batch:
        index = torch.multinomial(self.share, size, replacement=True, generator=generator)
        corners = torch.rand(size, len(self.size), generator=generator).tolist()
        chosen = torch.randint(len(self.operations), (size,), generator=generator).tolist()
        crops = []
        for i, corner, operation in zip(index.tolist(), corners, chosen, strict=True):
            image = self.images[i]
            starts = [int(u * (n - k + 1)) for u, n, k in zip(corner, image.shape[1:], self.size, strict=True)]
            crop = image[(slice(None), *(slice(s, s + k) for s, k in zip(starts, self.size, strict=True)))]
            crops.append(turn(crop, self.operations[operation]))
        device = self.images[0].device
        return Batch(torch.stack(crops), index.to(device, non_blocking=True))


def turn(image: Tensor, operation: Operation) -> Tensor:
    """Apply an operation to the last axes of an image."""
    permutation, flips = operation
    first = image.ndim - len(permutation)
    image = image.permute(*range(first), *(first + p for p in permutation))
    return image.flip([first + axis for axis, flipped in enumerate(flips) if flipped])


def allowed_operations(noise: Noise, dims: int) -> list[Operation]:
    """The flips and quarter turns that leave the law of the noise unchanged. The depth axis of a volume is never turned
    into the plane.
    """
    permutations = [p for p in itertools.permutations(range(dims)) if dims < 3 or p[0] == 0]
    operations = itertools.product(permutations, itertools.product((False, True), repeat=dims))
    return [(p, f) for p, f in operations if noise.invariant(p, f)]
