"""Batches: every pixel as likely as any other, right crops, right turns, right sample numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inverseflow.noise import CorrelatedGaussian, Gaussian
from inverseflow.patches import Patches, Rows, allowed_operations


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
@given(
    st.sampled_from(list(itertools.permutations(range(3)))),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 1000),
)
def test_crops_are_turned_as_numpy_turns(permutation: tuple[int, ...], flips: tuple[bool, ...], seed: int) -> None:
    """Volumes of different sizes and two channels; every crop is the numpy crop that starts at its own corner."""
    images = [torch.rand(2, 5, 6, 7), torch.rand(2, 9, 4, 8)]
    batch = Patches(images, 4, [(permutation, flips)]).draw(5, torch.Generator().manual_seed(seed))
    for crop, number in zip(batch.x.numpy(), batch.origin.tolist(), strict=True):
        back = crop
        for axis, flipped in enumerate(flips, start=1):
            back = np.flip(back, axis) if flipped else back
        back = np.transpose(back, (0, *(1 + np.argsort(permutation))))
        image = images[number].numpy()
        z, y, x = np.argwhere(image[0] == back[0, 0, 0, 0])[0]
        assert np.array_equal(back, image[:, z : z + 4, y : y + 4, x : x + 4])


def test_mapped_images_are_cropped_at_the_same_places() -> None:
    images = [torch.rand(2, 30, 20), torch.rand(2, 17, 41)]
    turns = allowed_operations(Gaussian(1.0), 2)
    means = [image.mean(dim=(1, 2), keepdim=True) for image in images]  # of a whole image, which no crop knows
    mapped = Patches(images, 8, turns).mapped(lambda images: images - images.mean(dim=(2, 3), keepdim=True))
    expected = Patches([image - mean for image, mean in zip(images, means, strict=True)], 8, turns)
    here, there = (patches.draw(50, torch.Generator().manual_seed(0)) for patches in (mapped, expected))
    assert torch.equal(here.x, there.x)
    assert torch.equal(here.origin, there.origin)


def test_rows() -> None:
    data = Rows(torch.arange(10.0)[:, None])
    batch = data.draw(1000, torch.Generator().manual_seed(0))
    assert torch.equal(batch.x[:, 0], batch.origin.float())
    assert set(batch.origin.tolist()) == set(range(10))
