"""From a user's array and its axes string to (B, C, *S) or (B, D), and back.

Letters as in CAREamics: S sample, T time, C channel, Z Y X space. S and T are samples. A table is "SC": rows and
features.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .errors import InputError
from .tensors import as_float_tensor

LETTERS = "STCZYX"


@dataclass(frozen=True)
class Layout:
    """How an array was read: the axes of the user's array and its shape."""

    axes: str
    shape: tuple[int, ...]

    @property
    def spatial(self) -> str:
        return "".join(letter for letter in "ZYX" if letter in self.axes)

    def restore(self, x: Tensor) -> Tensor:
        """(B, C, *S) back to the user's order and shape."""
        samples = [n for letter, n in zip(self.axes, self.shape, strict=True) if letter in "ST"]
        order = _order(self.axes)
        channels = [x.shape[1]] if "C" in self.axes else []
        x = x.reshape(*samples, *channels, *x.shape[2:])
        return x.permute(*(order.index(letter) for letter in self.axes))


def to_batch(array: Any, axes: str | None) -> tuple[Tensor, Layout]:
    """A float tensor (B, C, *S) or (B, D) and how to go back. Without `axes`: 2-D is a table, 4-D SCYX, 5-D SCZYX."""
    if axes is None and isinstance(known := getattr(array, "axes", None), str):  # an Image knows
        axes = known
    x = as_float_tensor(array).detach()
    axes = guess_axes(x) if axes is None else axes.upper()
    if len(axes) != x.ndim:
        raise InputError(f"axes={axes!r} names {len(axes)} axes, but the array has {x.ndim} (shape {tuple(x.shape)}).")
    if set(axes) - set(LETTERS) or len(set(axes)) < len(axes):
        raise InputError(f"axes={axes!r} may use each of the letters {LETTERS} once.")
    layout = Layout(axes, tuple(x.shape))
    if layout.spatial not in ("", "X", "YX", "ZYX") or (not layout.spatial and ("C" not in axes or len(axes) < 2)):
        raise InputError(f"axes={axes!r} is neither an image (with YX or ZYX) nor a table (SC).")
    order = _order(axes)
    x = x.permute(*(axes.index(letter) for letter in order))
    samples = sum(letter in "ST" for letter in order)
    x = x.reshape(-1, *x.shape[samples:]) if samples else x[None]
    return (x if "C" in axes else x[:, None]).contiguous(), layout


def guess_axes(x: Tensor) -> str:
    if x.ndim == 2:
        if min(x.shape) >= 64:
            warnings.warn(
                f"A 2-D array is read as a table of {x.shape[0]} rows and {x.shape[1]} "
                "features; if it is an image, pass axes='YX'.",
                stacklevel=4,
            )
        return "SC"
    if x.ndim in (4, 5):
        if x.shape[-1] <= 4 and min(x.shape[-3:-1]) >= 16:
            warnings.warn(
                f"An array of shape {tuple(x.shape)} is read as {'SCYX' if x.ndim == 4 else 'SCZYX'}, {x.shape[1]} "
                f"channels of {x.shape[-2]} x {x.shape[-1]} pixels; if its channels come last, pass "
                f"axes={'SYXC' if x.ndim == 4 else 'SZYXC'!r}.",
                stacklevel=4,
            )
        return "SCYX" if x.ndim == 4 else "SCZYX"
    raise InputError(
        f"What are the axes of this {x.ndim}-D array of shape {tuple(x.shape)}? "
        "Pass for example axes='SYX', 'CYX' or 'ZYX'."
    )


def _order(axes: str) -> str:
    return "".join(letter for letter in LETTERS if letter in axes)
