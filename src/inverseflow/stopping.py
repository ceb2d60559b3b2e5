"""When is enough learned? When noise(x0_hat) no longer gets more like x1.

A loss says nothing here: it compares the network with itself, and a conditional variance always remains. But if x0_hat
has the distribution of the clean data, then fresh noise on it gives data like those that were seen. The distance is
that of the two spectra; a network that learns its images by heart, noise included, moves away again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from .audit.measures import NEGLIGIBLE, band_power, planes, spectral_distance
from .losses import Field
from .methods import Batch, Method
from .noise import Noise, Simulator
from .patches import Data

CROPS = 16


@dataclass(frozen=True)
class Renoising:
    """The distance on a few crops, always the same ones with the same draws of noise."""

    method: Method
    noise: Noise
    batch: Batch

    @torch.no_grad()
    def __call__(self, average: Field) -> float:
        x1, noise = self.batch.x, self.noise.select(self.batch.origin)
        x0 = self.method.denoise(cast(nn.Module, average), x1)
        again = noise.draw(x0, torch.Generator(x1.device).manual_seed(0))
        distances = []
        for channel in range(x1.shape[1]):
            seen, drawn, alone = (planes(x, channel) for x in (x1, again, again - x0))
            floor = NEGLIGIBLE * float(band_power(alone).mean())
            distances.append(spectral_distance(seen, drawn, floor))
        return max(distances)


def renoising(method: Method, noise: Noise, data: Data, device: str) -> Renoising | None:
    """For images; a table has no spectrum, and deterministic dynamics no noise."""
    batch = data.draw(CROPS, torch.Generator().manual_seed(0))
    if batch.x.ndim < 4 or isinstance(noise, Simulator):
        return None
    return Renoising(method, noise, Batch(batch.x.to(device), batch.origin.to(device)))
