"""The few tensor helpers that every layer uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

Generator = torch.Generator | None
Parameter = float | Tensor
"""One number, (C,) one per channel, or (B, 1) / (B, C) one per sample."""
EXACT = 2**24
"""Up to here float32 holds every whole number."""


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
    """Time t = 1 for every sample of x, shape (B,): one number in memory, see `alike`."""
    return x.new_ones(1).expand(x.shape[0])


def alike(t: Tensor) -> bool:
    """Are the times (B,) one number in memory?"""
    return t.shape[0] == 1 or t.stride(0) == 0


def normal_like(x: Tensor, generator: Generator = None) -> Tensor:
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def sample_mean(x: Tensor) -> Tensor:
    """Mean over everything but the batch, shape (B,)."""
    return x.flatten(1).mean(1)


def as_float_tensor(x: Any) -> Tensor:
    """A floating tensor of any array: float32, but float64 where the data is that, or whole numbers that float32 cannot
    hold. Masked values become NaN.
    """
    if isinstance(x, Tensor):
        if x.is_complex():
            raise InputError(f"The data is {x.dtype} and not real numbers; give its magnitude, or both parts apart.")
        if x.dtype in (torch.float32, torch.float64):
            return x
        return x.double() if not x.is_floating_point() and _rounds(x.cpu().numpy()) else x.float()
    try:
        array = np.ma.filled(x.astype(np.float64), np.nan) if np.ma.isMaskedArray(x) else np.asarray(x)
    except ValueError:  # lists of several lengths
        raise InputError("The data is no array: its rows have several lengths; give a list of arrays.") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"The data is {array.dtype} and not real numbers; give an integer or floating-point array.")
    wide = array.dtype.itemsize > 4 if array.dtype.kind == "f" else _rounds(array)
    # A copy: never share the user's memory, and no strides that torch does not know.
    return torch.from_numpy(array.astype(np.float64 if wide else np.float32, order="C"))


def _rounds(array: Any) -> bool:
    """Are there whole numbers that float32 cannot hold?"""
    if not array.size or array.dtype.itemsize < 4 or array.dtype.kind not in "iu":
        return False
    return bool(max(int(array.max()), -int(array.min())) > EXACT)
