"""What is used when the user does not say: network, training length, batches. Samples are scaled tensors (C, *S)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .nets import NetSpec
from .noise import Noise
from .patches import Data, Patches, Rows, allowed_operations
from .train import Settings

FEW_PIXELS = 4_000_000  # below this a large network learns the images by heart, noise included


def as_data(samples: Sequence[Tensor], noise: Noise, *, patch_size: int, augment: bool) -> Data:
    """Rows of a table, or random crops of images with the flips and turns that the noise allows."""
    dims = samples[0].ndim - 1
    if not dims:
        return Rows(torch.stack(list(samples)))
    return Patches(samples, patch_size, allowed_operations(noise, dims) if augment else ())


def default_net(samples: Sequence[Tensor], device: str) -> NetSpec:
    """An MLP for tables; for images a U-Net whose size fits the device and the amount of data."""
    channels, dims = samples[0].shape[0], samples[0].ndim - 1
    if not dims:
        return NetSpec("MLP", features=channels)
    if device == "cpu" or sum(sample.numel() for sample in samples) < FEW_PIXELS:
        return NetSpec("UNet", channels=channels, dims=dims, widths=(32, 64, 96), blocks=1, patch=2)
    return NetSpec("UNet", channels=channels, dims=dims)


def default_settings(
    first: Settings | None, second: Settings | None, samples: Sequence[Tensor], device: str
) -> tuple[Settings, Settings]:
    """Settings of the two stages; the second takes half as long as the first unless it is given."""
    if first is None and samples[0].ndim == 1:
        first = Settings(steps=4000, batch_size=512, lr=2e-3, clip=None)
    elif first is None:
        first = Settings(steps=1000, batch_size=8) if device == "cpu" else Settings(steps=4000, batch_size=32, lr=5e-4)
    if second is None:
        steps = max(1, first.steps // 2) if first.steps else None
        seconds = first.seconds / 2 if first.seconds else None
        second = replace(first, steps=steps, seconds=seconds)
    return first, second
