"""Batches: every pixel as likely as any other, right crops, right turns, right sample numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inverseflow.noise import CorrelatedGaussian, Gaussian
from inverseflow.patches import Patches, Rows, allowed_operations, turn


def test_crops_come_from_their_image_and_are_only_turned() -> None:
    images = [torch.arange(100 * i, 100 * i + 30 * 20).reshape(1, 30, 20).float() + 10_000 * i for i in range(3)]
    patches = Patches(images, 8, allowed_operations(Gaussian(1.0), 2))
    batch = patches.draw(200, torch.Generator().manual_seed(0))
    assert batch.x.shape == (200, 1, 8, 8)
    for crop, i in zip(batch.x, batch.origin.tolist(), strict=True):
        values = sorted(crop.flatten().tolist())
        top_left = values[0]
        row, column = divmod(int(top_left - 100 * i - 10_000 * i), 20)
        assert values == sorted(images[i][0, row : row + 8, column : column + 8].flatten().tolist())


def test_pixels_are_drawn_alike_whatever_the_image_size() -> None:
    images = [torch.zeros(1, 32, 32), torch.ones(1, 64, 96)]
    index = Patches(images, 16).draw(20_000, torch.Generator().manual_seed(0)).origin
    assert float(index.float().mean()) == pytest.approx(6 / 7, abs=0.01)


def test_allowed_operations_respect_the_noise() -> None:
    assert len(allowed_operations(Gaussian(1.0), 2)) == 8
    assert len(allowed_operations(Gaussian(1.0), 3)) == 16  # depth is flipped but never turned into the plane
    assert len(allowed_operations(CorrelatedGaussian(1.0, torch.ones(1, 4)), 2)) == 4
    assert len(allowed_operations(CorrelatedGaussian(1.0, torch.eye(4)), 2)) == 4


def test_thin_images_are_not_turned() -> None:
    patches = Patches([torch.rand(1, 10, 40)], 16, allowed_operations(Gaussian(1.0), 2))
    assert patches.draw(50, torch.Generator().manual_seed(0)).x.shape == (50, 1, 10, 16)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(itertools.permutations(range(2)))), st.tuples(st.booleans(), st.booleans()))
def test_turn_equals_numpy(permutation: tuple[int, ...], flips: tuple[bool, bool]) -> None:
    import numpy as np

    image = torch.arange(12).reshape(1, 3, 4)
    expected = np.transpose(image[0].numpy(), permutation)
    for axis, flipped in enumerate(flips):
        expected = np.flip(expected, axis) if flipped else expected
    assert np.array_equal(turn(image, (permutation, flips))[0].numpy(), expected)


def test_rows() -> None:
    data = Rows(torch.arange(10.0)[:, None])
    batch = data.draw(1000, torch.Generator().manual_seed(0))
    assert torch.equal(batch.x[:, 0], batch.origin.float())
    assert set(batch.origin.tolist()) == set(range(10))
