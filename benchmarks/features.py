"""How far apart are two sets of pictures? The Fréchet distance in a fixed feature space.

The features are those of a small convolutional network with random weights, always the same: averages over the picture
of three layers. They need no download, see edges, textures and brightness, and know nothing of any denoiser.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

WIDTHS = (16, 24, 32)


@torch.no_grad()
def features(pictures: Tensor) -> np.ndarray:
    """(n, 1, Y, X), any n -> (n, 72)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in zip((1, *WIDTHS), WIDTHS, strict=False)]
    x, found = pictures.float(), []
    for layer in layers:
        x = nn.functional.relu(layer(x) * 3)
        found.append(x.mean((2, 3)))
        x = nn.functional.avg_pool2d(x, 2)
    result: np.ndarray = torch.cat(found, 1).double().numpy()
    return result


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """|mean difference|^2 + tr(A + B - 2 (A B)^(1/2)) of features (n, D): the squared distance of two normals."""
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    size, axes = np.linalg.eigh(cov_a)
    root_a = (axes * np.sqrt(size.clip(min=0))) @ axes.T
    # tr (A B)^(1/2) = tr (A^(1/2) B A^(1/2))^(1/2), of a symmetric matrix: no trouble with features that never vary.
    root = np.sqrt(np.linalg.eigvalsh(root_a @ cov_b @ root_a).clip(min=0)).sum()
    return float(np.square(a.mean(0) - b.mean(0)).sum() + np.trace(cov_a + cov_b) - 2 * root)


def patches(pictures: Tensor, size: int) -> Tensor:
    """All (n, 1, size, size) pieces of pictures (B, 1, Y, X) that do not overlap."""
    y, x = (n // size * size for n in pictures.shape[-2:])
    tiles = pictures[..., :y, :x].unfold(2, size, size).unfold(3, size, size)
    return tiles.reshape(-1, 1, size, size)
