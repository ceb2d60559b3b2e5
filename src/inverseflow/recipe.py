"""What is used when the user does not say: network, training length, batches. Samples are scaled tensors (C, *S)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .errors import InputError
from .nets import NetSpec
from .noise import Noise
from .noise.base import stages
from .patches import Data, Patches, Rows, Source, allowed_operations
from .settings import Settings

FEW_PIXELS = 4_000_000  # below this a large network learns the images by heart, noise included
SMALL_NET = {"widths": (32, 64, 96), "blocks": 1, "patch": 2}

PRESETS = {
    "fast": Settings(steps=500, batch_size=8),
    "balanced": Settings(steps=1250, batch_size=16),
    "best": Settings(steps=4000, batch_size=32),
}
"""Lengths of training for images: one image on two CPU cores, a minute or two on a large GPU, the benchmark tables."""
MEAN_SHARE = {"fast": 0.5, "balanced": 1.0, "best": 1.0}
"""How long the second stage is, compared with the first."""
SPREAD_SHARE, SAMPLER_SHARE = 0.2, 1.0
"""How long error bars and the sampler are learned, compared with the first stage."""
TABLE = Settings(steps=4000, batch_size=512, lr=2e-3, clip=None)


def choose_preset(preset: str, device: str) -> str:
    """ "auto" is fast on a CPU and balanced on a GPU."""
    if preset == "auto":
        return "fast" if device == "cpu" else "balanced"
    if preset not in PRESETS:
        raise InputError(f"preset must be auto, {', '.join(PRESETS)}, not {preset!r}.")
    return preset


def as_data(
    samples: Sequence[Tensor],
    noise: Noise,
    *,
    patch_size: int,
    augment: bool,
    source: Source | None = None,
    scaling: Any = None,
) -> Data:
    """Rows of a table, or random crops of images with the flips and turns that the noise allows; of a source, whose
    samples are a part of it, crops read from it.
    """
    dims = samples[0].ndim - 1
    if not dims:
        return Rows(torch.stack(list(samples)))
    turns = allowed_operations(noise, dims) if augment else ()
    return source.patches(scaling, patch_size, turns) if source else Patches(samples, patch_size, turns)


def default_patch(samples: Sequence[Tensor], preset: str) -> int:
    """Pixels along each axis of a crop: the large network sees further than a small crop shows. Volumes have enough
    in a small one, and many small steps teach more than few large ones.
    """
    if samples[0].ndim == 4:
        return 32
    return 64 if preset == "fast" else 128


def default_net(samples: Sequence[Tensor], noise: Noise, preset: str) -> NetSpec:
    """An MLP for tables; for images a U-Net whose size fits the preset and the amount of data.

    Channels go through it alone, so that no structure bleeds from one into another, unless the noise ties them.
    """
    channels, dims = samples[0].shape[0], samples[0].ndim - 1
    if not dims:
        return NetSpec("MLP", features=channels)
    few = preset == "fast" or sum(sample.numel() for sample in samples) < FEW_PIXELS
    tied = any(getattr(stage, "channel_correlation", None) is not None for stage in stages(noise))
    separate = {"separate": True} if channels > 1 and not tied else {}
    return NetSpec("UNet", channels=channels, dims=dims, **(SMALL_NET if few else {}), **separate)


def posterior_nets(samples: Sequence[Tensor], noise: Noise, preset: str) -> dict[str, NetSpec]:
    """Error bars vary slowly and need little; the sampler, which draws whole images, a network like the map's."""
    small, same = default_net(samples, noise, "fast"), default_net(samples, noise, preset)
    widths = {"widths": (128, 128)} if small.kind == "MLP" else {}
    return {
        "spread": NetSpec(small.kind, **small.arguments, **widths, given=1),
        "sampler": NetSpec(same.kind, **same.arguments, given=3),
    }


def default_settings(
    first: Settings | None,
    second: Settings | None,
    samples: Sequence[Tensor],
    preset: str,
    seconds: float | None = None,
    steps: int | None = None,
    more: float = 0.0,
    accumulate: int = 1,
    free_mean: bool = False,
) -> tuple[Settings, Settings]:
    """Settings of the two stages. Without them, `seconds` ends all stages together, of which further ones take `more`
    of the first one's time; `steps` are those of the first. A first stage whose mean is free has those of both.
    """
    share = MEAN_SHARE[preset] if samples[0].ndim > 1 else 0.5
    if first is None:
        first = TABLE if samples[0].ndim == 1 else PRESETS[preset]
        steps = steps or first.steps
        if free_mean and steps:
            steps, share = round((1 + share) * steps), 0.0
        if samples[0].ndim == 4:
            first = replace(first, batch_size=max(1, first.batch_size // 4))
        seconds = seconds / (1 + share + more) if seconds else None
        first = replace(first, seconds=seconds, steps=steps, accumulate=accumulate)
    if second is None:
        part = max(1, int(share * first.steps)) if first.steps else None
        second = replace(first, steps=part, seconds=share * first.seconds if share and first.seconds else None)
    return first, second
