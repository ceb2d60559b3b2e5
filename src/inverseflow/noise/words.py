"""A noise in one line: PoissonGaussian(gain=2, sigma=3, offset=0), Poisson(gain=2, offset=0) then Gaussian(sigma=1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import Noise, stages


def in_words(noise: Noise) -> str:
    return " then ".join(_stage(stage) for stage in stages(noise))


def _stage(noise: Noise) -> str:
    said = {name: value for name, value in noise.to_dict().items() if name != "kind"}
    plain = {name: value for name, value in said.items() if value is not None and value is not False}
    return f"{type(noise).__name__}({', '.join(f'{name}={_short(value)}' for name, value in plain.items())})"


def _short(value: Any) -> str:
    """Numbers in four digits, long arrays by their size."""
    if isinstance(value, bool | str | dict):
        return str(value)
    array = np.asarray(value)
    if array.size > 4:
        return f"{' x '.join(map(str, array.shape))} values"
    return f"{float(array):.4g}" if not array.ndim else "[" + ", ".join(f"{v:.4g}" for v in array.ravel()) + "]"
