"""What dark and flat frames say: offset, read noise and gain, for the whole camera and pixel by pixel.

Over the frames of a stack, with nothing but the noise changing:
    offset(y, x) = mean dark,   variance(y, x) = var dark,   gain = (var flat - var dark) / (mean flat - offset)
The maps of an sCMOS camera differ from pixel to pixel; `correct` brings an image to the camera's typical pixel, after
which one PoissonGaussian describes all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri
from torch import Tensor

from ..errors import InputError

Array = np.ndarray[Any, Any]
HOT = 5.0
"""A pixel whose read noise is this many times the median is called hot."""
CHANCE = 0.01
"""That any pixel is called hot in a camera whose pixels are all alike: two frames tell little of a pixel's noise."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Maps (Y, X) in data units; without flat frames `gain` and `response` are None.

    `response` is each pixel's sensitivity relative to the mean, from the flat frames' means: far less noisy than a gain
    for each pixel from its variance, which would need thousands of frames. `frames`: dark ones, behind `variance`.
    """

    offset: Array
    variance: Array
    gain: float | None = None
    response: Array | None = None
    frames: int | None = None

    @property
    def black(self) -> float:
        return float(np.median(self.offset))

    @property
    def sigma(self) -> float:
        """Root mean square of the read noise, without hot pixels."""
        return float(np.sqrt(self.variance[~self.hot].mean()))

    @property
    def hot(self) -> Array:
        """Where the read noise is far above the camera's: pixels for the mask."""
        limit = HOT**2
        if self.frames is not None:  # the variance of white noise is a chi-squared number
            chance, middle = chdtri(self.frames - 1, [CHANCE / self.variance.size, 0.5])
            limit = max(limit, float(chance / middle))
        hot: Array = self.variance > limit * np.median(self.variance)
        return hot

    def correct(self, image: Any) -> Array:
        """An image (..., Y, X) with every pixel's offset, and response where known, brought to the typical one."""
        values = np.asarray(image, np.float64) - self.offset
        return (values if self.response is None else values / self.response) + self.black


def calibrate(dark: Any, flat: Any) -> Calibration:
    """`dark`, `flat`: stacks (T, Y, X) of frames without light and of one evenly lit, unchanging view."""
    if dark is None:
        raise InputError("Flat frames need dark frames beside them, to know the offset; pass dark=... too.")
    dark_mean, dark_variance = _moments(dark, "dark")
    count = np.shape(dark)[0]
    if flat is None:
        return Calibration(dark_mean, dark_variance, frames=count)
    mean, variance = _moments(flat, "flat")
    if mean.shape != dark_mean.shape:
        raise InputError(f"The flat frames are {mean.shape}, the dark frames {dark_mean.shape}; they must match.")
    light = mean - dark_mean
    if not light.mean() > 0 or not (variance - dark_variance).mean() > 0:
        raise InputError("The flat frames are not brighter and noisier than the dark frames; check which are which.")
    gain = float((variance - dark_variance).mean() / light.mean())
    return Calibration(dark_mean, dark_variance, gain, np.maximum(light / light.mean(), 1e-3), count)


def _moments(stack: Any, name: str) -> tuple[Array, Array]:
    frames = stack.detach().cpu().numpy() if isinstance(stack, Tensor) else np.asarray(stack)
    if frames.ndim != 3 or len(frames) < 2:
        raise InputError(f"The {name} frames must be a stack (T, Y, X) of at least two, not shape {frames.shape}.")
    if frames.dtype.kind not in "biuf":
        raise InputError(f"The {name} frames must be real numbers, not {frames.dtype}; convert them first.")
    frames = frames.astype(np.float64)
    if not np.isfinite(frames).all():
        raise InputError(f"The {name} frames hold NaN or infinite values; replace them first.")
    if len(frames) == 2:
        return frames.mean(0), np.square(frames[0] - frames[1] - np.mean(frames[0] - frames[1])) / 2
    return frames.mean(0), frames.var(0, ddof=1)
