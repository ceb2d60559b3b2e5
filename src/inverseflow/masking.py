"""Values that are missing: NaN and infinities are refused, or masked on request.

Masked values take the mean of their surroundings while something is computed, so that their neighbours are as well off
as elsewhere, and are NaN again in whatever comes out. In training they also get fresh noise: a smooth place as the
instrument would have shown it, which teaches nothing that is not so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .errors import InputError

POLICIES = ("refuse", "mask")
BAND = 2**22  # values that are looked at together
_POOLS = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def check_policy(nan: str) -> None:
    if nan not in POLICIES:
        raise InputError(f"nan must be {' or '.join(POLICIES)}, not {nan!r}.")


def refuse(what: str, gone: Tensor, axes: str) -> None:
    """Raise where `gone`, in the order of `axes`, is true somewhere."""
    if bool(gone.any()):
        raise sentence(what, int(gone.sum()), gone.numel(), axes, gone.nonzero()[0].tolist())


def sentence(what: str, count: int, total: int, axes: str, first: Sequence[int]) -> InputError:
    where = ", ".join(f"{letter} {place}" for letter, place in zip(axes, first, strict=True))
    return InputError(
        f"{what} has {count} NaN or infinite value{'s'[: count > 1]} of {total}, the first at {where}; replace or crop "
        "them, or leave them out with --nan mask (nan='mask' in Python)."
    )


def missing(x: Tensor) -> Tensor:
    """Where x is NaN, or infinite in single precision."""
    return ~torch.isfinite(x.float())


def has_missing(x: Tensor) -> bool:
    """Is anything missing? A sum tells in one pass: float64 holds that of any finite values in single precision."""
    return not math.isfinite(x.float().sum(dtype=torch.float64))


def count_missing(data: Any) -> tuple[int, tuple[int, ...]]:
    """How many values of a large array are missing, and where the first is; it is read in bands."""
    count, first = 0, ()
    if np.dtype(data.dtype).kind != "f":
        return count, first
    *outer, rows, width = data.shape
    step = max(1, BAND // max(1, width))
    for index in np.ndindex(*outer):
        for start in range(0, rows, step):
            gone = ~np.isfinite(np.asarray(data[(*index, slice(start, start + step))], np.float32))
            if gone.any() and not count:
                row, column = np.argwhere(gone)[0].tolist()
                first = (*index, start + row, column)
            count += int(gone.sum())
    return count, first


def refuse_missing(data: Any, axes: str, what: str) -> None:
    count, first = count_missing(data)
    if count:
        raise sentence(what, count, math.prod(data.shape), axes, first)


def fill(x: Tensor) -> Tensor:
    """x (B, C, *S) with the mean of their surroundings in the place of missing values; in a table (B, D), and where
    nothing at all is known, 0.
    """
    gone = missing(x)
    if not bool(gone.any()):
        return x
    values = x.masked_fill(gone, 0.0)
    return torch.where(gone, _surroundings(values, (~gone).to(x.dtype)), x) if x.ndim > 2 else values


def restore(result: Tensor, gone: Tensor | None) -> Tensor:
    """`result` (B, k C, *S), k things about the same C channels, with NaN where the data was missing, if it was."""
    if gone is None:
        return result
    times = [1, result.shape[1] // gone.shape[1], *(1,) * (gone.ndim - 2)]
    return result.masked_fill(gone.repeat(times), torch.nan)


def _surroundings(values: Tensor, weight: Tensor) -> Tensor:
    """The mean over 3 pixels along each axis; where none of them is known, the same of the image at half its size.

    `values` are already multiplied by their weight.
    """
    size: Sequence[int] = values.shape[2:]
    pool = _POOLS[len(size) - 1]
    near, known = (pool(x, 3, stride=1, padding=1) for x in (values, weight))
    mean = near / known.clamp(min=torch.finfo(known.dtype).tiny)
    if max(size) == 1 or bool((known > 0).all()):
        return mean
    step = [min(2, n) for n in size]
    half = _surroundings(*(pool(x, step, ceil_mode=True) for x in (values, weight)))
    wide = half
    for axis, (n, k) in enumerate(zip(size, step, strict=True), start=2):
        wide = wide.repeat_interleave(k, axis).narrow(axis, 0, n)
    return torch.where(known > 0, mean, wide)
