"""How a plain network F(x, tau) becomes a velocity or a consistency function.

The network sees time as tau = t * noise_rms, the size of the noise at that time in the units of the data, and its
output is multiplied by noise_rms, so that its target has about unit size whatever the noise. Both wrappers start as the
identity map when F starts at zero, which keeps the inverse objectives from collapsing (the paper's footnote 2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..tensors import expand


class Velocity(nn.Module):
    """v(x, t) = rms F(x, t rms)."""

    noise_rms: Tensor

    def __init__(self, net: nn.Module, noise_rms: float) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("noise_rms", torch.tensor(noise_rms))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        output: Tensor = self.noise_rms * self.net(x, t * self.noise_rms)
        return output


class Consistency(nn.Module):
    """c(x, t) = x - rms (t - t_min) F(x, t rms): c(x, t_min) = x holds bit for bit."""

    noise_rms: Tensor
    t_min: Tensor

    def __init__(self, net: nn.Module, noise_rms: float, t_min: float) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("noise_rms", torch.tensor(noise_rms))
        self.register_buffer("t_min", torch.tensor(t_min))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        step = expand(t - self.t_min, x)
        output: Tensor = x - self.noise_rms * step * self.net(x, t * self.noise_rms)
        return output
