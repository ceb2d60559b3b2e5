"""The few tensor helpers that every layer uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Generator = torch.Generator | None
Parameter = float | Tensor
"""One number, (C,) one per channel, or (B, 1) / (B, C) one per sample."""


def expand(t: Tensor, x: Tensor) -> Tensor:
    """Shape (B,) values so that they multiply (B, *S) samples."""
    return t.reshape(t.shape[0], *(1,) * (x.ndim - 1))


def like(value: Tensor, x: Tensor) -> Tensor:
    """A small tensor on the device and in the precision of x, without waiting for the device."""
    return value.to(device=x.device, dtype=x.dtype, non_blocking=True)


def broadcast(value: Parameter, x: Tensor) -> Parameter:
    """Shape a parameter so that it multiplies x of shape (B, C, *S) or (B, D)."""
    if not isinstance(value, Tensor):
        return value
    value = like(value, x) if value.ndim == 2 else like(value, x)[None]
    return value.reshape(*value.shape, *(1,) * (x.ndim - 2))


def uniform(x: Tensor, generator: Generator = None) -> Tensor:
    """One time in [0, 1) per sample of x, shape (B,)."""
    return torch.rand(x.shape[0], generator=generator, device=x.device, dtype=x.dtype)


def ones(x: Tensor) -> Tensor:
    """Time t = 1 for every sample of x, shape (B,)."""
    return x.new_ones(x.shape[0])


def normal_like(x: Tensor, generator: Generator = None) -> Tensor:
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def sample_mean(x: Tensor) -> Tensor:
    """Mean over everything but the batch, shape (B,)."""
    return x.flatten(1).mean(1)


def as_float_tensor(x: Any) -> Tensor:
    """A floating tensor of any array; float64 stays, everything else becomes float32."""
    if isinstance(x, Tensor):
        return x if x.dtype in (torch.float32, torch.float64) else x.float()
    array = np.asarray(x)
    array = array.astype(
        np.float64 if array.dtype == np.float64 else np.float32
    )  # a copy: never share the user's memory
    return torch.from_numpy(array)
