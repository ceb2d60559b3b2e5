"""Tiles: they cover everything once, show no seam, and get smaller when memory runs out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from inverseflow.errors import DeviceError, InputError
from inverseflow.nets import UNet
from inverseflow.tiling import TILE_OVERLAP, apply, bands, windows


@given(st.integers(1, 500), st.integers(1, 8), st.integers(0, 6), st.sampled_from([1, 2, 8]))
def test_the_weights_of_all_windows_sum_to_one(length: int, size: int, overlap: int, multiple: int) -> None:
    size = 8 * size + 3 * multiple * -(-overlap // multiple)
    total = torch.zeros(length, dtype=torch.float64)
    for window in windows(length, size, overlap, multiple):
        assert window.start % multiple == 0
        total[window.start : window.stop] += window.fade(total)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 70, 61), (2, 33, 128), (1, 9, 40, 23)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_local_function_gives_what_it_gives_untiled(shape: tuple[int, ...], batch: int) -> None:
    """A blur of radius 2 looks no further than the quarter of the overlap that is thrown away."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dims = len(shape) - 1
    pool = {2: torch.nn.functional.avg_pool2d, 3: torch.nn.functional.avg_pool3d}[dims]

    def blur(y: Tensor) -> Tensor:
        return pool(y, 5, stride=1, padding=2)

    tiled = apply(blur, x, tile=(26,) * dims, overlap=8, multiple=2, batch=batch)
    assert torch.allclose(tiled, blur(x[None])[0], atol=1e-12)


def test_bands_come_in_order_and_only_what_is_needed_is_read() -> None:
    x = torch.rand(1, 300, 50)
    rows: list[tuple[int, int]] = []

    def read(region: tuple[slice, ...]) -> Tensor:
        rows.append((region[0].start, region[0].stop))
        return x[(slice(None), *region)]

    at = 0
    for number, (place, band) in enumerate(bands(lambda y: y, read, (300, 50), tile=(64, 64), overlap=16)):
        assert place.start == at
        assert torch.allclose(band, x[:, place])
        assert len(rows) == number + 1  # nothing is read ahead
        at = place.stop
    assert at == 300
    assert max(stop - start for start, stop in rows) == 64


def test_a_network_shows_no_seam() -> None:
    """The default overlap, a 640 x 640 image in tiles of 256, and a network that looks as far as a trained one.

    Its random weights are of the size at which tiles differ as those of a trained network do (`benchmarks.tiled`:
    1.5e-4 of the range), so that half of the overlap would not be enough.
    """
    torch.manual_seed(1)
    net = UNet(widths=(16, 32, 48), blocks=1, patch=2).requires_grad_(False)
    for block in net.modules():
        for layer in ("second", "leave"):
            if hasattr(block, layer):
                torch.nn.init.normal_(getattr(block, layer).weight, std=0.2)
    x = torch.randn(1, 640, 640)

    def function(y: Tensor) -> Tensor:
        return y - net(y, y.new_ones(len(y)))

    whole = function(x[None])[0]
    span = float(whole.max() - whole.min())
    less = apply(function, x, tile=(256, 256), overlap=TILE_OVERLAP // 2, multiple=net.multiple, batch=4)
    assert float((less - whole).abs().max()) > 1e-3 * span
    tiled = apply(function, x, tile=(256, 256), overlap=TILE_OVERLAP, multiple=net.multiple, batch=4)
    difference = (tiled - whole).abs()
    assert float(difference.max()) < 1e-3 * span
    assert float(difference[:, :100, :100].max()) < 1e-5  # far from every seam the tile is the image


def test_memory_that_does_not_suffice_makes_the_pieces_smaller() -> None:
    sizes: list[tuple[int, ...]] = []

    def hungry(y: Tensor) -> Tensor:
        if y.numel() > 70 * 70:
            raise torch.OutOfMemoryError
        sizes.append(tuple(y.shape))
        return 2 * y

    x = torch.rand(1, 200, 200)
    assert torch.allclose(apply(hungry, x, tile=(128, 128), overlap=8, batch=4), 2 * x)
    assert max(size[2] for size in sizes) <= 64
    with pytest.raises(DeviceError, match=r"did not suffice for a tile of \d+ x \d+; take a smaller"):
        apply(hungry, x, tile=(200, 200), overlap=64)


def test_a_tile_within_its_overlap_is_refused() -> None:
    with pytest.raises(InputError, match="take at least 96"):
        windows(500, 60, 32)
