"""The second stage: from the recovered distribution to the best estimate.

The learned map recovers the *distribution* of x0; it is not the estimate with the least error. But x0_hat = map(x1)
with fresh simulated noise x1' on it are labelled pairs, made without one clean example, and regressing x0_hat from x1'
with a squared loss gives the posterior mean E[x0 | x1]. (Not in the paper; Gaussian data N(0, s^2) with noise sigma:
the map is x1 s / sqrt(s^2 + sigma^2), the mean x1 s^2 / (s^2 + sigma^2).)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from .losses import Field, posterior_mean_loss
from .methods import Batch, Method, Moment
from .noise import Noise, Simulator
from .tensors import ones


@dataclass(frozen=True)
class PosteriorMean:
    """Regress the frozen map's x0_hat from fresh noise on it. The network is a copy of the map, used at t = 1 only."""

    method: Method
    frozen: Field
    noise: Noise

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        noise = self.noise.select(batch.origin)
        with torch.no_grad():
            x0 = self.method.denoise(cast(nn.Module, self.frozen), batch.x)
            x1 = noise.draw(x0, moment.generator)
        return posterior_mean_loss(lambda x: model(x, ones(x)), x0, x1)

    def phase(self, progress: float) -> int:
        return 0  # the same loss from the beginning to the end


@torch.no_grad()
def mean_is_free(method: Method, flow: nn.Module, noise: Noise, x: Tensor) -> bool:
    """Inverse flow matching has the mean in its velocity; a deterministic transformation has no spread to average."""
    return isinstance(noise, Simulator) or method.mean(flow, x) is not None
