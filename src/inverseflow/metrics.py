"""How good is it: numbers that need the truth."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def psnr(estimate: Tensor, truth: Tensor, data_range: float = 1.0) -> float:
    """Peak signal-to-noise ratio in dB for a fixed range; nothing is clipped."""
    return float(10 * torch.log10(data_range**2 / (estimate - truth).square().mean()))


def rmse(estimate: Tensor, truth: Tensor) -> float:
    """Root of the mean squared Euclidean distance between rows (B, D)."""
    return math.sqrt(float((estimate - truth).square().flatten(1).sum(1).mean()))


def energy_distance(a: Tensor, b: Tensor, *, independent: bool = False) -> float:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'| between two sets of points (n, D) and (m, D).

    Plain: the distance of the two sets themselves, never negative, 0 only if they are equal. With `independent`, an
    unbiased estimate for the laws behind two sets that were drawn independently (no point paired with itself).
    """
    n, m = len(a), len(b)
    within_a, within_b = torch.cdist(a, a).sum() / n**2, torch.cdist(b, b).sum() / m**2
    if independent:
        within_a, within_b = within_a * n / (n - 1), within_b * m / (m - 1)
    return float(2 * torch.cdist(a, b).mean() - within_a - within_b)
