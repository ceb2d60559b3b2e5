"""The paper's own U-Net, so that its tables can be repeated with it.

From its text: the U-Net of Lehtinen et al. (2018) with channels [128, 128, 256, 256, 512], plus a Gaussian Fourier time
embedding of 512. Two convolutions and a max-pooling per level on the way down; nearest-neighbour upsampling,
concatenation with the skip, and two convolutions on the way up; leaky ReLU (0.1); the time is added to every level. The
text leaves the number of convolutions per level open.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .embedding import FourierTime
from .unet import crop, pad_to_multiple, zero


class Level(nn.Module):
    """Two convolutions; on the way up of the level below, doubled in size, and the skip, one above the other."""

    doubled: Tensor

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        taps = torch.tensor([[0.0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]])  # of the doubled kernel, along one axis
        self.register_buffer("doubled", taps, persistent=False)

    def forward(self, x: Tensor, embedded: Tensor, skip: Tensor | None = None) -> Tensor:
        h = self.first(x) if skip is None else self._merge(x, skip)
        h = nn.functional.leaky_relu(h + self.time(embedded)[:, :, None, None], 0.1)
        return nn.functional.leaky_relu(self.second(h), 0.1)

    def _merge(self, below: Tensor, skip: Tensor) -> Tensor:
        """first(cat([below doubled, skip])), with neither the doubled nor the joined image in memory.

        Doubling and then a kernel of 3 x 3 is one transposed convolution of 4 x 4, in 4 instead of 9 products a pixel.
        """
        of_below, of_skip = torch.split(self.first.weight, [below.shape[1], skip.shape[1]], dim=1)
        spread = torch.einsum("ik,ockl,jl->coij", self.doubled, of_below, self.doubled)
        merged: Tensor = nn.functional.conv_transpose2d(below, spread, stride=2, padding=1)
        return merged + nn.functional.conv2d(skip, of_skip, self.first.bias, padding=1)


class PaperUNet(nn.Module):
    """(B, C, H, W), (B,) -> (B, C, H, W), any size."""

    def __init__(
        self,
        channels: int = 1,
        widths: Sequence[int] = (128, 128, 256, 256, 512),
        embedding: int = 512,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.multiple = 2 ** (len(widths) - 1)
        self.features_per_pixel = float(widths[0])
        self.time = nn.Sequential(FourierTime(embedding, scale), nn.Linear(embedding, embedding), nn.SiLU())
        self.down = nn.ModuleList(Level(a, b, embedding) for a, b in zip([channels, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(Level(a + b, b, embedding) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.leave = zero(nn.Conv2d(widths[0], channels, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h, embedded = pad_to_multiple(x, self.multiple), self.time(t)
        skips: list[Tensor] = []
        for depth, level in enumerate(self.down):
            h = level(nn.functional.max_pool2d(h, 2) if depth else h, embedded)
            skips.append(h)
        skips.pop()
        for level in self.up:
            h = level(h, embedded, skips.pop())
        output: Tensor = self.leave(h)
        return crop(output, x.shape[2:])
