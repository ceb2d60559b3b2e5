"""Gaussian Fourier features of time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class FourierTime(nn.Module):
    """t (B,) -> (B, size): sin and cos of 2 pi w t with fixed random frequencies w ~ N(0, scale^2)."""

    frequencies: Tensor

    def __init__(self, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(size // 2) * scale)

    def forward(self, t: Tensor) -> Tensor:
        angle = 2 * math.pi * t[:, None] * self.frequencies[None]
        return torch.cat([angle.sin(), angle.cos()], dim=1)
