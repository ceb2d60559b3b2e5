"""What a file may claim. Size is no reason to refuse one, since large images stay in their file; a lie is."""

from __future__ import annotations

import errno
import math
from pathlib import Path

import numpy as np

from ..errors import FileError

SMALL = 2**28
"""Bytes that are taken without a question."""
RATIO = 1500
"""How many times its size deflate, LZW or PackBits can hold at most, of an image all zero."""
PLAUSIBLE = 200
"""The same of what was measured and is read at once; more is a bomb."""
LONGEST, MOST = 2**26, 2**50
"""Values along one axis, and in all."""


def is_damage(error: Exception) -> bool:
    """Did a reader stumble over what is in the file, and not over a disk or a right that is missing? The system's
    errors have a number; readers' own have none, and where damage leads nowhere, the system says "invalid argument".
    """
    return not isinstance(error, OSError) or error.errno in (None, errno.EINVAL)


def check_claim(path: Path, claimed: int, stored: int, ratio: int = RATIO) -> None:
    """Refuse what claims to unpack to more than can be in it."""
    if claimed > SMALL and claimed > ratio * stored:
        raise FileError(
            f"{path} claims {claimed / 2**30:.3g} GB of values in {stored / 2**20:.3g} MB, which cannot be; it is "
            "damaged or made to do harm, so get it again from its source."
        )


def check_contents(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Refuse early what no later step can use."""
    if 0 in shape:
        raise FileError(f"{path} has an axis of length 0 (shape {shape}); there is nothing in it to denoise.")
    if min(shape, default=1) < 0 or max(shape, default=1) > LONGEST or math.prod(shape) > MOST:
        sizes = " x ".join(f"{n:.4g}" if abs(n) > LONGEST else str(n) for n in shape)
        raise FileError(
            f"{path} claims the size {sizes}, more than any instrument gives; it is damaged, so get it again from its "
            "source."
        )
    if dtype.kind == "c":
        raise FileError(f"{path} holds complex numbers ({dtype}); save their magnitude, or real and imaginary parts.")
    if dtype.kind not in "biuf" or dtype.itemsize > 16:
        raise FileError(f"{path} holds {str(dtype)[:60]} and not numbers; save an integer or floating-point array.")
