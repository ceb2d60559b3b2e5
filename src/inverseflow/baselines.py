"""The paper's rivals as Methods, with the same networks and the same training loop. x1 is observed, f the estimate.

Supervised   |f(x1) - x0|^2 with clean x0: what clean examples would give
SURE         |f(x1) - x1|^2 - sigma^2 + 2 sigma^2 div f(x1), the same in expectation (Stein); independent Gaussian noise
Noise2Void   |f(x1 with hidden pixels) - x1|^2 at the hidden pixels, which show a random neighbour (Krull et al. 2019)
Noise2Self   the same with a grid of pixels at a time, which show the mean of their neighbours (Batson and Royer 2019)
Noise2Score  the score of p(x1) by denoising autoencoding, then Tweedie's formula (Kim and Ye 2021)

Noise2Void and Noise2Self know nothing of the noise; they are right when it is independent from pixel to pixel and
E[x1 | x0] = x0, and then all five aim at E[x0 | x1] or, without the pixel itself, close to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import NoiseError
from .losses import posterior_mean_loss
from .methods import Batch, Moment
from .nets.wrappers import Velocity
from .noise import Gamma, Gaussian, Noise, Poisson, Scaled
from .process import Bridge
from .tensors import Generator, broadcast, normal_like, ones, sample_mean


@dataclass(frozen=True)
class _Regression:
    """f(x1) = x1 - v(x1, 1), as the posterior mean of inverse flow matching."""

    process: Bridge

    def prepare(self, net: nn.Module, noise_rms: float) -> nn.Module:
        return Velocity(net, noise_rms)

    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor:
        return self.process.project(_estimate(model, x1))

    def mean(self, model: nn.Module, x1: Tensor) -> Tensor | None:
        return None  # `denoise` is it

    def phase(self, progress: float) -> int:
        return 0


@dataclass(frozen=True)
class Supervised(_Regression):
    """Regression on pairs: batches hold the channels of x1, then those of the clean x0.

    fresh   draw new noise on x0 for every batch, and leave the given x1 alone
    """

    fresh: bool = False

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x1, x0 = batch.x.chunk(2, dim=1)
        if self.fresh:
            x1 = self.process.select(batch.origin).noise.draw(x0, moment.generator)
        return posterior_mean_loss(lambda x: _estimate(model, x), x0, x1)


@dataclass(frozen=True)
class SURE(_Regression):
    """Stein's unbiased estimate of the squared error, its divergence by one random direction (MC-SURE, Ramani 2008).

    epsilon   length of that direction, in standard deviations of the noise
    """

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        noise = _plain(self.process.noise)
        if not isinstance(noise, Gaussian) or noise.channel_correlation is not None:
            raise NoiseError(f"SURE needs independent Gaussian noise, not {type(noise).__name__}; use another method.")

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x1 = batch.x
        sigma = self.process.select(batch.origin).noise.std(x1)
        direction = normal_like(x1, moment.generator)
        moved = x1 + self.epsilon * sigma * direction
        here, there = _estimate(model, torch.cat([x1, moved])).chunk(2)
        slope = direction * (there - here) / self.epsilon  # its mean is sigma times the divergence
        return sample_mean((here - x1).square() - sigma.square() + 2 * sigma * slope)


@dataclass(frozen=True)
class _BlindSpot:
    """f(x1) = F(x1): without a skip past the network, which it would first have to unlearn."""

    process: Bridge  # not looked at

    def prepare(self, net: nn.Module, noise_rms: float) -> nn.Module:
        return Velocity(net, 1.0)

    def mean(self, model: nn.Module, x1: Tensor) -> Tensor | None:
        return None

    def phase(self, progress: float) -> int:
        return 0


@dataclass(frozen=True)
class Noise2Void(_BlindSpot):
    """One hidden pixel in every `cell` x `cell` pixels, which shows another pixel at most `reach` away."""

    cell: int = 8
    reach: int = 2

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x1 = batch.x
        hidden = one_in_every_cell(x1, self.cell, moment.generator)
        shown = torch.where(hidden, random_neighbour(x1, self.reach, moment.generator), x1)
        return _masked_error(model(shown, ones(x1)), x1, hidden)

    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor:
        output: Tensor = model(x1, ones(x1))
        return output


@dataclass(frozen=True)
class Noise2Self(_BlindSpot):
    """Every `width`-th pixel is hidden and shows the mean of its neighbours; each is predicted without itself."""

    width: int = 4

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x1 = batch.x
        dims = x1.ndim - 2
        phase = torch.randint(
            self.width**dims, (len(x1), *(1,) * (dims + 1)), generator=moment.generator, device=x1.device
        )
        hidden = (place_in_cell(x1, self.width) == phase).expand_as(x1)
        return _masked_error(model(_interpolated(x1, hidden), ones(x1)), x1, hidden)

    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor:
        """One pass for each of the width^d grids."""
        place, result = place_in_cell(x1, self.width), torch.zeros_like(x1)
        for phase in range(self.width ** (x1.ndim - 2)):
            hidden = (place == phase).expand_as(x1)
            result = torch.where(hidden, model(_interpolated(x1, hidden), ones(x1)), result)
        return result


@dataclass(frozen=True)
class Noise2Score:
    """Learns R(x) = grad log p(x1) as the residual of a denoising autoencoder: |u + s R(x1 + s u)|^2, u ~ N(0, 1).

    s falls from `first` to `last` in `levels` equal steps, in units of the noise; the minimum is the score of x1 with
    noise s on it (AR-DAE).
    """

    process: Bridge
    first: float = 1.0
    last: float = 0.01
    levels: int = 10

    def __post_init__(self) -> None:
        if not isinstance(noise := _plain(self.process.noise), Gaussian | Poisson | Gamma):
            raise NoiseError(
                f"Noise2Score has a formula for Gaussian, Poisson and Gamma noise, not for {type(noise).__name__};"
                " use another method."
            )

    def prepare(self, net: nn.Module, noise_rms: float) -> nn.Module:
        return Velocity(net, 1 / noise_rms)  # a score is of the size of 1 / noise

    def loss(self, model: nn.Module, batch: Batch, moment: Moment) -> Tensor:
        x1 = batch.x
        size = self.first + (self.last - self.first) * self.phase(moment.progress) / (self.levels - 1)
        noise = self.process.select(batch.origin).noise
        s = size * noise.std(noise.project(x1)).square().mean().sqrt()
        u = normal_like(x1, moment.generator)
        return sample_mean((u + s * model(x1 + s * u, ones(x1))).square())

    def denoise(self, model: nn.Module, x1: Tensor) -> Tensor:
        return self.process.project(tweedie(self.process.noise, x1, model(x1, ones(x1))))

    def phase(self, progress: float) -> int:
        return min(self.levels - 1, int(self.levels * progress))

    def mean(self, model: nn.Module, x1: Tensor) -> Tensor | None:
        return None


def tweedie(noise: Noise, x1: Tensor, score: Tensor) -> Tensor:
    """The estimate of x0 that the score of p(x1) gives, as in Noise2Score's table 1.

    Gaussian   E[x0 | x1]
    Poisson    exp E[log x0 | x1], about half a count below the mean (the slope of log n! is taken as log(n + 1/2))
    Gamma      1 / E[1 / x0 | x1]
    """
    if isinstance(noise, Scaled):
        shift, scale = broadcast(noise.shift, x1), broadcast(noise.scale, x1)
        return (tweedie(noise.noise, x1 * scale + shift, score / scale) - shift) / scale
    if isinstance(noise, Gaussian):
        return x1 + noise.std(x1).square() * score
    if isinstance(noise, Poisson):
        gain, offset = broadcast(noise.gain, x1), broadcast(noise.offset, x1)
        return (x1 - offset + gain / 2) * torch.exp(gain * score) + offset
    if isinstance(noise, Gamma):
        k = broadcast(noise.k, x1)
        return k * x1 / (k - 1 - x1 * score).clamp(min=1)  # of the size of k; a poor score must not turn its sign
    raise NoiseError(f"There is no formula of Tweedie's for {type(noise).__name__} noise.")


def place_in_cell(x: Tensor, width: int) -> Tensor:
    """Each pixel's number, 0 to width^d - 1, in its cell of `width` pixels along every axis; (*S)."""
    place = torch.zeros((), dtype=torch.long, device=x.device)
    for n in x.shape[2:]:
        place = place[..., None] * width + torch.arange(n, device=x.device) % width
    return place


def one_in_every_cell(x: Tensor, width: int, generator: Generator) -> Tensor:
    """True at one random pixel of every cell, for every channel by itself."""
    cells = [-(-n // width) for n in x.shape[2:]]
    chosen = torch.randint(width ** len(cells), (*x.shape[:2], *cells), generator=generator, device=x.device)
    for axis, n in enumerate(x.shape[2:], start=2):
        chosen = chosen.repeat_interleave(width, axis).narrow(axis, 0, n)
    return chosen == place_in_cell(x, width)


def random_neighbour(x: Tensor, reach: int, generator: Generator) -> Tensor:
    """For every pixel the value of another one, drawn from the 2 reach + 1 around it along every axis."""
    sizes = x.shape[2:]
    reach = min(reach, (min(sizes) - 1) // 2)
    side = 2 * reach + 1
    pick = torch.randint(side ** len(sizes) - 1, x.shape, generator=generator, device=x.device)
    pick = pick + (pick >= side ** len(sizes) // 2)  # never the pixel itself
    flat = torch.zeros_like(pick)
    for axis, n in enumerate(sizes):
        offset = pick // side ** (len(sizes) - 1 - axis) % side - reach
        place = torch.arange(n, device=x.device).reshape(-1, *(1,) * (len(sizes) - 1 - axis)) + offset
        place = torch.where((place < 0) | (place >= n), place - 2 * offset, place)  # past the edge: the other way
        flat = flat * n + place
    return x.flatten(2).gather(2, flat.flatten(2)).reshape(x.shape)


def _interpolated(x: Tensor, hidden: Tensor) -> Tensor:
    """Hidden pixels show the mean of their direct neighbours; edges are repeated outwards from one pixel inside."""
    total = torch.zeros_like(x)
    for axis in range(2, x.ndim):
        n = x.shape[axis]
        index = torch.arange(n, device=x.device)
        before = torch.where(index > 0, index - 1, 1)
        after = torch.where(index < n - 1, index + 1, n - 2)
        total = total + x.index_select(axis, before) + x.index_select(axis, after)
    return torch.where(hidden, total / (2 * (x.ndim - 2)), x)


def _estimate(model: nn.Module, x1: Tensor) -> Tensor:
    output: Tensor = x1 - model(x1, ones(x1))
    return output


def _masked_error(output: Tensor, x1: Tensor, hidden: Tensor) -> Tensor:
    """Mean squared error over the hidden pixels of each sample, (B,)."""
    wrong = torch.where(hidden, (output - x1).square(), 0.0)
    return wrong.flatten(1).sum(1) / hidden.flatten(1).sum(1).clamp(min=1)


def _plain(noise: Noise) -> Noise:
    return noise.noise if isinstance(noise, Scaled) else noise
