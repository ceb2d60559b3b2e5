"""Axes that nobody names: what is surely meant otherwise is said."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from inverseflow.axes import to_batch


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (
            (6, 64, 48, 3),
            "read as SCYX, 64 channels of 48 x 3 pixels; if its channels come last, pass axes='SYXC'",
        ),
        ((2, 8, 32, 40, 1), "read as SCZYX, 8 channels of 40 x 1 pixels; .* pass axes='SZYXC'"),
    ],
)
def test_channels_that_come_last_are_asked_for(shape: tuple[int, ...], said: str) -> None:
    values = np.zeros(shape, np.float32)
    with pytest.warns(UserWarning, match=said):
        to_batch(values, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last = "SYXC" if len(shape) == 4 else "SZYXC"
        assert to_batch(values, last)[0].shape == (shape[0], shape[-1], *shape[1:-1])
        to_batch(np.moveaxis(values, -1, 1), None)
