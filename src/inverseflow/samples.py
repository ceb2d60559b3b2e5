"""What a user's noisy data must be before it is trained on: finite, varied, possible under its noise, and scaled."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .axes import Layout, to_batch
from .errors import InputError, NoiseError
from .masking import check_policy, fill, missing, refuse
from .noise import Noise, Scaled
from .tensors import broadcast

SMALLEST, LARGEST = 1e-16, 1e16
"""Standard deviation and size of data whose squares float32 holds."""
COARSE = 0.01
"""Of the standard deviation: larger steps of float32 are worth a word."""


@dataclass(frozen=True)
class Scaling:
    """y = (x - shift) / scale with one shift and scale per channel: the noisy training data gets mean 0 and std 1."""

    shift: Tensor
    scale: Tensor

    @classmethod
    def of(cls, samples: list[Tensor]) -> Scaling:
        """Learn from samples (C, *S) of any sizes, in float64; missing values do not count."""
        flat = torch.cat([sample.reshape(sample.shape[0], -1) for sample in samples], dim=1).double()
        found = [_moments(row[torch.isfinite(row)], f"Channel or feature {number}") for number, row in enumerate(flat)]
        shift, scale = (torch.tensor(part, dtype=torch.float32) for part in zip(*found, strict=True))
        return cls(shift, scale)

    def apply(self, x: Tensor) -> Tensor:
        return (x - broadcast(self.shift, x)) / broadcast(self.scale, x)

    def onto(self, x: Tensor, device: torch.device | str) -> Tensor:
        """The same in float32 on a device. Data in float64 is scaled first: it may vary by a millionth of its mean."""
        if x.dtype == torch.float64:
            return self.apply(x).float().to(device)
        return self.apply(x.to(device, non_blocking=True).float())

    def undo(self, y: Tensor) -> Tensor:
        return y * broadcast(self.scale, y) + broadcast(self.shift, y)

    @property
    def fingerprint(self) -> list[float]:
        """Numbers that other data would not give."""
        return [*self.shift.tolist(), *self.scale.tolist()]

    def carry(self, noise: Noise) -> Noise:
        """The noise of data units as the scaled data has it."""
        return Scaled(noise, self.shift, self.scale)


def _moments(known: Tensor, what: str) -> tuple[float, float]:
    """Mean and standard deviation, if a network can work with data that has these."""
    if not len(known):
        raise InputError(f"{what} has no value that is a number, so leave it out.")
    mean, sd, largest = float(known.mean()), float(known.std(correction=0)), float(known.abs().max())
    if sd <= 1e-14 * largest:
        raise InputError(f"{what} is constant ({mean:.4g} everywhere), so leave it out.")
    if not SMALLEST <= sd <= largest <= LARGEST:
        raise InputError(
            f"{what} has values up to {largest:.3g} that vary by {sd:.3g}, too {'small' if sd < SMALLEST else 'large'}"
            " for single precision; multiply the data, and the numbers of the noise, by a constant."
        )
    step = float(np.spacing(np.float32(largest)))
    if step > sd:
        raise InputError(
            f"{what} has values up to {largest:.8g} that vary by {sd:.3g}, less than single precision tells apart"
            " there; subtract a constant from the data and from the noise's offset."
        )
    if step > COARSE * sd:
        warnings.warn(
            f"{what} has values up to {largest:.8g} that vary by {sd:.3g}; results are in single precision, which has "
            f"steps of {step:.2g} there, so subtract a constant from the data and from the noise's offset.",
            stacklevel=5,
        )
    return mean, sd


def read_samples(x1: Any, axes: str | None, nan: str = "refuse") -> tuple[list[Tensor], Layout]:
    """Every sample as (C, *S); a list of images of several sizes is one list of samples."""
    check_policy(nan)
    if isinstance(x1, list) and not is_array(x1):
        if not x1:
            raise InputError("The list of images is empty; give at least one.")
        read = [to_batch(image, axes) for image in x1]
        samples = [sample for batch, _ in read for sample in batch]
        if len({(sample.shape[0], sample.ndim) for sample in samples}) > 1:
            raise InputError("The images differ in their channels or dimensions; train one model for each kind.")
        layout = read[0][1]
    else:
        batch, layout = to_batch(x1, axes)
        samples = list(batch)
    if not samples or not samples[0].numel():
        raise InputError("The data is empty.")
    for number, sample in enumerate(samples):
        if nan == "refuse":
            refuse(f"Sample {number}", missing(sample), f"C{layout.spatial}")
    return samples, layout


def is_array(listed: list[Any]) -> bool:
    """Lists of numbers, or of lists of them, are one array and no list of images."""
    return bool(listed) and not any(hasattr(item, "shape") and len(item.shape) for item in listed)


def without_gaps(images: list[Tensor], noise: Noise, seed: int) -> list[Tensor]:
    """Scaled samples (C, *S) with a smooth place under fresh noise where values are missing."""
    generator = torch.Generator().manual_seed(seed)

    def whole(number: int, image: Tensor) -> Tensor:
        gone = missing(image)
        if not bool(gone.any()):
            return image
        smooth, own = fill(image[None]), noise.select(torch.tensor([number]))
        return torch.where(gone, own.draw(own.project(smooth), generator)[0], image)

    return [whole(number, image) for number, image in enumerate(images)]


def check_against_noise(samples: list[Tensor], noise: Noise) -> None:
    """Counts cannot lie below their offset: such data contradicts a noise without a Gaussian part."""
    if not noise.stays:
        return
    for number, sample in enumerate(samples):
        x1, its_noise = sample[None], noise.select(torch.tensor([number]))
        outside = x1[x1 != its_noise.project(x1)]  # NaN, where values are missing, is as it was
        outside = outside[torch.isfinite(outside)]
        if outside.numel():
            bounded = torch.as_tensor(noise.domain.upper).isfinite().all()
            remedy = (
                "bring the data into it" if bounded else "set its offset, add a Gaussian part, or keep the background"
            )
            raise NoiseError(
                f"The data has the value {float(outside.min()):.4g} (in sample {number}), which {type(noise).__name__} "
                f"noise in {noise.domain} cannot give; {remedy}."
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
