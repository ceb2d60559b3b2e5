"""What a user's noisy data must be before it is trained on: finite, varied, possible under its noise, and scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .axes import Layout, to_batch
from .errors import InputError, NoiseError
from .noise import Gamma, Noise, Poisson, Rayleigh, Scaled
from .tensors import broadcast


@dataclass(frozen=True)
class Scaling:
    """y = (x - shift) / scale with one shift and scale per channel: the noisy training data gets mean 0 and std 1."""

    shift: Tensor
    scale: Tensor

    @classmethod
    def of(cls, samples: list[Tensor]) -> Scaling:
        """Learn from samples (C, *S) of any sizes, in float64."""
        flat = torch.cat([sample.reshape(sample.shape[0], -1) for sample in samples], dim=1).double()
        shift, scale = flat.mean(1), flat.std(1, correction=0)
        constant = torch.nonzero(scale <= 1e-12 * (1 + shift.abs())).flatten().tolist()
        if constant:
            value = float(shift[constant[0]])
            raise InputError(f"Channel or feature {constant[0]} is constant ({value:.4g} everywhere), so leave it out.")
        return cls(shift.float(), scale.float())

    def apply(self, x: Tensor) -> Tensor:
        return (x - broadcast(self.shift, x)) / broadcast(self.scale, x)

    def undo(self, y: Tensor) -> Tensor:
        return y * broadcast(self.scale, y) + broadcast(self.shift, y)

    @property
    def fingerprint(self) -> list[float]:
        """Numbers that other data would not give."""
        return [*self.shift.tolist(), *self.scale.tolist()]

    def carry(self, noise: Noise) -> Noise:
        """The noise of data units as the scaled data has it."""
        return Scaled(noise, self.shift, self.scale)


def read_samples(x1: Any, axes: str | None) -> tuple[list[Tensor], Layout]:
    """Every sample as float32 (C, *S); a list of images of several sizes is one list of samples."""
    if isinstance(x1, list):
        if not x1:
            raise InputError("The list of images is empty; give at least one.")
        read = [to_batch(image, axes) for image in x1]
        samples = [sample for batch, _ in read for sample in batch.float()]
        if len({(sample.shape[0], sample.ndim) for sample in samples}) > 1:
            raise InputError("The images differ in their channels or dimensions; train one model for each kind.")
        layout = read[0][1]
    else:
        batch, layout = to_batch(x1, axes)
        samples = list(batch.float())
    if not samples or not samples[0].numel():
        raise InputError("The data is empty.")
    for number, sample in enumerate(samples):
        check_finite(sample, f"Sample {number}")
    return samples, layout


def check_finite(x: Tensor, what: str) -> None:
    bad = int((~torch.isfinite(x)).sum())
    if bad:
        raise InputError(
            f"{what} has {bad} NaN or infinite values of {x.numel()}; replace or crop them before denoising."
        )


def check_against_noise(samples: list[Tensor], noise: Noise) -> None:
    """Counts cannot lie below their offset: such data contradicts a noise without a Gaussian part."""
    if not isinstance(noise, Poisson | Gamma | Rayleigh):
        return
    for number, sample in enumerate(samples):
        x1, its_noise = sample[None], noise.select(torch.tensor([number]))
        if not torch.equal(torch.maximum(x1, its_noise.project(x1)), x1):
            raise NoiseError(
                f"The data has the value {float(sample.min()):.4g} (in sample {number}), which {type(noise).__name__}"
                f" noise in {noise.domain} cannot give; set its offset, add a Gaussian part, or keep the background."
            )


def representative(
    samples: list[Tensor], samples_at_most: int = 256, pixels_at_most: int = 64
) -> tuple[Tensor, Tensor]:
    """A batch for the data's statistics, centre crops of samples from all over it, and the numbers of those samples."""
    chosen = range(0, len(samples), -(-len(samples) // samples_at_most))
    dims = samples[0].ndim - 1
    size = [min(pixels_at_most, *(sample.shape[1 + axis] for sample in samples)) for axis in range(dims)]
    if not dims:
        chosen = range(len(samples))
    crops = []
    for number in chosen:
        starts = [(n - k) // 2 for n, k in zip(samples[number].shape[1:], size, strict=True)]
        window = tuple(slice(s, s + k) for s, k in zip(starts, size, strict=True))
        crops.append(samples[number][(slice(None), *window)])
    return torch.stack(crops), torch.tensor(list(chosen))
