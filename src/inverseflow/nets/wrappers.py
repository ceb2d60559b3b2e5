"""How a plain network F(x, tau) becomes a velocity, a consistency function, an error bar or a sampler.

The network sees time as tau = t * noise_rms, the size of the noise at that time in the units of the data, and its
output is multiplied by noise_rms, so that its target has about unit size whatever the noise. Both wrappers start as the
identity map when F starts at zero, which keeps the inverse objectives from collapsing (the paper's footnote 2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..tensors import alike, expand, ones


class Wrapper(nn.Module):
    """A network with the numbers that give its input and output their units; a saved model keeps them."""

    noise_rms: Tensor
    t_min: Tensor
    typical: Tensor

    def __init__(self, net: nn.Module, noise_rms: float, **numbers: float) -> None:
        super().__init__()
        self.net = net
        for name, number in {"noise_rms": noise_rms, **numbers}.items():
            self.register_buffer(name, torch.tensor(number))


def times(t: Tensor, factor: Tensor) -> Tensor:
    """t * factor, where one time that is the same for all samples stays one number in memory."""
    return (t[:1] * factor).expand(len(t)) if alike(t) else t * factor


class Velocity(Wrapper):
    """v(x, t) = rms F(x, t rms)."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        output: Tensor = self.noise_rms * self.net(x, times(t, self.noise_rms))
        return output


class Consistency(Wrapper):
    """c(x, t) = x - rms (t - t_min) F(x, t rms): c(x, t_min) = x holds bit for bit."""

    def __init__(self, net: nn.Module, noise_rms: float, t_min: float) -> None:
        super().__init__(net, noise_rms, t_min=t_min)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        step = expand(t - self.t_min, x)
        output: Tensor = x - self.noise_rms * step * self.net(x, times(t, self.noise_rms))
        return output


class Spread(Wrapper):
    """s(x1, mean) = typical exp F: the standard deviation of x0 around its mean, for every value."""

    def __init__(self, net: nn.Module, noise_rms: float, typical: float) -> None:
        super().__init__(net, noise_rms, typical=typical)

    def forward(self, x1: Tensor, mean: Tensor) -> Tensor:
        shown = torch.cat([mean, (x1 - mean) / self.noise_rms], dim=1)
        output: Tensor = self.typical * self.net(shown, ones(x1)).float().clamp(-8, 8).exp()
        return output


class ResidualFlow(Wrapper):
    """The velocity of e = (x0 - mean) / std on its way from a standard normal, given x1."""

    def __init__(self, net: nn.Module, noise_rms: float, typical: float) -> None:
        super().__init__(net, noise_rms, typical=typical)

    def forward(self, e: Tensor, t: Tensor, x1: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        shown = [e, mean, (x1 - mean) / self.noise_rms, (std / self.typical).log()]
        output: Tensor = self.net(torch.cat(shown, dim=1), t)
        return output
