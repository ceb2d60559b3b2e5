"""A residual, time-conditioned U-Net in 1D, 2D or 3D, for any input size.

Blocks bound the size of every pixel's channels, which keeps training stable; nothing is normalised over space, because
such statistics depend on the crop, and a tile would not give what the whole image gives. Every residual block starts as
the identity and the output starts at zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..tensors import alike
from .embedding import FourierTime

CONV: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


class Block(nn.Module):
    """x + conv(silu(conv(silu(bounded x)) scaled and shifted by time))."""

    def __init__(self, dims: int, width: int, embedding: int, padding_mode: str) -> None:
        super().__init__()
        arguments: dict[str, Any] = {"kernel_size": 3, "padding": 1, "padding_mode": padding_mode}
        self.first = CONV[dims](width, width, **arguments)
        self.time = nn.Linear(embedding, 2 * width)
        self.second = zero(CONV[dims](width, width, **arguments))

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        scale, shift = self.time(embedded).chunk(2, dim=1)
        h = nn.functional.silu(bounded(x))
        if len(embedded) == 1:  # one time for all pixels: into the weights, of which there are fewer
            h = self._scaled(h, 1 + scale[0], shift[0])
        else:
            scale, shift = (part.reshape(*part.shape, *(1,) * (x.ndim - 2)) for part in (scale, shift))
            h = self.first(h) * (1 + scale) + shift
        output: Tensor = x + self.second(nn.functional.silu(h))
        return output

    def _scaled(self, h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """first(h) * scale + shift in one pass over the pixels."""
        first: Any = self.first
        weight = first.weight * scale.reshape(-1, *(1,) * (h.ndim - 1))
        output: Tensor = first._conv_forward(h, weight, first.bias * scale + shift)
        return output


class Level(nn.Module):
    """Residual blocks of one width."""

    def __init__(self, blocks: int, dims: int, width: int, embedding: int, padding_mode: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dims, width, embedding, padding_mode) for _ in range(blocks))

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, embedded)
        return x


class UNet(nn.Module):
    """(B, C, *S), (B,) -> (B, C, *S).

    widths   channels of each level, finest first; each level halves the size of the one before
    blocks   residual blocks per level, on the way down and again on the way up
    patch    size of the patches that the first layer merges: 2 makes the net about 4 times faster in 2D
    padding_mode  "zeros", or "circular" for periodic data
    separate  every channel goes through alone: nothing bleeds from one into another
    given    how many further arrays of the same shape it is shown: x is (B, (1 + given) C, *S), one after the other
    """

    def __init__(
        self,
        channels: int = 1,
        dims: int = 2,
        widths: Sequence[int] = (64, 128, 192, 256),
        blocks: int = 2,
        patch: int = 1,
        embedding: int = 128,
        padding_mode: str = "zeros",
        separate: bool = False,
        given: int = 0,
    ) -> None:
        super().__init__()
        self.multiple = patch * 2 ** (len(widths) - 1)
        self.features_per_pixel = widths[0] / patch**dims  # what a pass costs in memory
        self.padding_mode = padding_mode
        self.separate = separate
        channels = 1 if separate else channels
        self.arrays = 1 + given
        self.time = nn.Sequential(FourierTime(embedding), nn.Linear(embedding, embedding), nn.SiLU())
        kernel = {"kernel_size": patch, "stride": patch} if patch > 1 else {"kernel_size": 3, "padding": 1}
        periodic = {"padding_mode": padding_mode} if patch == 1 else {}
        self.enter = CONV[dims](self.arrays * channels, widths[0], **kernel, **periodic)

        self.down_levels = nn.ModuleList(Level(blocks, dims, width, embedding, padding_mode) for width in widths)
        self.up_levels = nn.ModuleList(Level(blocks, dims, width, embedding, padding_mode) for width in widths[:-1])
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(CONV[dims](a, b, kernel_size=2, stride=2) for a, b in pairs)
        self.up = nn.ModuleList(TRANSPOSED[dims](b, a, kernel_size=2, stride=2) for a, b in pairs)
        if patch > 1:
            self.leave = zero(TRANSPOSED[dims](widths[0], channels, **kernel))
        else:
            self.leave = zero(CONV[dims](widths[0], channels, **kernel, **periodic))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.separate and x.shape[1] > self.arrays:
            each = x.reshape(len(x), self.arrays, -1, *x.shape[2:]).transpose(1, 2)
            every = t[:1].expand(len(each) * each.shape[1]) if alike(t) else t.repeat_interleave(each.shape[1])
            alone: Tensor = self(each.flatten(0, 1), every)
            return alone.reshape(*each.shape[:2], *x.shape[2:])
        size = x.shape[2:]
        h = self.enter(pad_to_multiple(x, self.multiple, self.padding_mode))
        embedded = self.time(t[:1] if alike(t) else t)  # the same for all samples: once
        skips: list[Tensor] = []
        for depth, level in enumerate(self.down_levels):
            if depth:
                skips.append(h)
                h = self.down[depth - 1](h)
            h = level(h, embedded)
        for depth in reversed(range(len(self.up))):
            h = self.up_levels[depth](self.up[depth](h) + skips[depth], embedded)
        output: Tensor = self.leave(h)
        return crop(output, size)


def bounded(x: Tensor) -> Tensor:
    """Every pixel's channels shrunk to a root mean square below 1; small ones stay as they are: nothing is amplified.

    By pixel, so that a tile still gives what the image gives. In half precision the size is float32, and would make
    what follows so too.
    """
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1).to(x.dtype)


def zero(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def crop(x: Tensor, size: Sequence[int]) -> Tensor:
    """The first `size` values along every spatial axis."""
    for axis, n in enumerate(size, start=2):
        x = x.narrow(axis, 0, n)
    return x


def pad_to_multiple(x: Tensor, multiple: int, padding_mode: str = "zeros") -> Tensor:
    """Grow every spatial axis to a multiple by mirroring (or wrapping) its end; a thin axis repeats its edge."""
    missing = [-n % multiple for n in x.shape[2:]]
    if not any(missing):
        return x
    if padding_mode == "circular":
        mode = "circular"
    else:
        mode = "reflect" if all(m < n for m, n in zip(missing, x.shape[2:], strict=True)) else "replicate"
    pads = [p for m in reversed(missing) for p in (0, m)]
    padded: Tensor = torch.nn.functional.pad(x, pads, mode=mode)
    return padded
