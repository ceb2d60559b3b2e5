"""Noise that is added and does not depend on the signal.

Gaussian:            x1 = x0 + sigma z,            z ~ N(0, 1) at every pixel
CorrelatedGaussian:  x1 = x0 + sigma (z * g),      g a kernel of unit energy, so sigma stays the pixel's std
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator, Parameter, broadcast, like, normal_like
from .base import Noise

KERNEL_ENERGY_LOST, ROUNDING = 1e-6, 1e-12
LARGEST_KERNEL = 2**23  # values


@dataclass(frozen=True, eq=False)
class Gaussian(Noise):
    """x1 = x0 + sigma z. `channel_correlation` (C x C) correlates the channels of one pixel."""

    sigma: Parameter
    channel_correlation: Any = None
    parameters: ClassVar = ("sigma",)
    centred: ClassVar = True
    affine_variance: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_channel_correlation(self)

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        z = mix_channels(normal_like(x0, generator), self.__dict__.get("_factor"))
        return x0 + broadcast(self.sigma, x0) * z

    def std(self, x0: Tensor) -> Tensor:
        return torch.ones_like(x0) * broadcast(self.sigma, x0)


@dataclass(frozen=True, eq=False, repr=False)
class CorrelatedGaussian(Noise):
    """x1 = x0 + sigma (z * kernel), stationary, in 1D, 2D or 3D.

    The kernel is scaled to unit energy. By default the white field is drawn larger than the image and cropped, so that
    every crop of the image has exactly the law of that crop; `periodic=True` wraps around, as in the paper.
    """

    sigma: Parameter
    kernel: Any
    channel_correlation: Any = None
    periodic: bool = False
    parameters: ClassVar = ("sigma",)
    centred: ClassVar = True
    affine_variance: ClassVar = True

    def __post_init__(self) -> None:
        super().__post_init__()
        kernel = torch.as_tensor(self.kernel, dtype=torch.float64)
        energy = kernel.square().sum()
        if kernel.ndim not in (1, 2, 3) or not bool(torch.isfinite(kernel).all()) or energy == 0:
            raise NoiseError(
                "CorrelatedGaussian.kernel must be a finite, non-zero 1D, 2D or "
                f"3D array, not shape {tuple(kernel.shape)}."
            )
        if abs(float(energy) - 1) > ROUNDING:  # one that is read back stays what it was, bit for bit
            kernel = kernel / energy.sqrt()
        object.__setattr__(self, "kernel", kernel)
        _set_channel_correlation(self)

    @classmethod
    def cosine(
        cls, sigma: Parameter, a: float = 2.0, *, omega: float = 1.0, dims: int = 2, periodic: bool = False
    ) -> CorrelatedGaussian:
        """The paper's kernel cos(omega r) exp(-r^2 / 2 a^2), with omega 1; omega 0 is a Gaussian blur."""
        if not 0 < a < math.inf or not math.isfinite(omega) or dims not in (1, 2, 3):
            raise NoiseError(
                f"A cosine kernel needs a width a > 0, a finite omega and 1, 2 or 3 dims, not a={a}, omega={omega}, "
                f"dims={dims}."
            )
        if math.log(12 * a + 3) * dims > math.log(LARGEST_KERNEL):
            raise NoiseError(f"A cosine kernel of the width a={a:g} is larger than any image; give a in pixels.")
        r = _radius(math.ceil(6 * a), int(dims))
        return cls(sigma, torch.cos(omega * r) * torch.exp(-r.square() / (2 * a * a)), periodic=periodic)

    @classmethod
    def from_spectrum(cls, sigma: Parameter, spectrum: Any, *, periodic: bool = False) -> CorrelatedGaussian:
        """From a power spectrum on an FFT grid (zero frequency first): the zero-phase kernel with that spectrum."""
        power = torch.as_tensor(spectrum, dtype=torch.float64)
        if (
            power.ndim not in (1, 2, 3)
            or not bool(torch.isfinite(power).all())
            or float(power.min()) < 0
            or float(power.max()) == 0
        ):
            raise NoiseError("A power spectrum must be a finite 1D, 2D or 3D array, not negative and not all zero.")
        kernel = torch.fft.fftshift(torch.fft.ifftn(power.sqrt()).real)
        return cls(sigma, _trim(kernel), periodic=periodic)

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        dims = self.kernel.ndim
        if x0.ndim != dims + 2:
            raise NoiseError(
                f"A {dims}D correlated noise needs data of shape (B, C, "
                f"{', '.join('ZYX'[-dims:])}), not {tuple(x0.shape)}."
            )
        kernel = like(self.kernel, x0)
        size = x0.shape[2:]
        margin = (0,) * dims if self.periodic else tuple(k - 1 for k in kernel.shape)
        if self.periodic and any(k > n for k, n in zip(kernel.shape, size, strict=True)):
            kernel = _wrap(kernel, size)
        grid = tuple(n + m for n, m in zip(size, margin, strict=True))
        white = torch.randn((*x0.shape[:2], *grid), generator=generator, device=x0.device, dtype=x0.dtype)
        axes = tuple(range(-dims, 0))
        spectrum = torch.fft.rfftn(white, dim=axes) * torch.fft.rfftn(kernel, s=grid, dim=axes)
        field = torch.fft.irfftn(spectrum, s=grid, dim=axes)
        if not self.periodic:  # what lies past the margin is untouched by the wrap-around
            field = field[(..., *(slice(m, None) for m in margin))]
        return x0 + broadcast(self.sigma, x0) * mix_channels(field, self.__dict__.get("_factor"))

    def std(self, x0: Tensor) -> Tensor:
        return torch.ones_like(x0) * broadcast(self.sigma, x0)

    def autocovariance(self, reach: int) -> Tensor:
        """Correlation of two pixels by their distance, lags -reach..reach along each axis; 1 at lag 0."""
        shape = tuple(2 * max(k, reach + 1) for k in self.kernel.shape)
        correlation: Tensor = torch.fft.ifftn(torch.fft.fftn(self.kernel, s=shape).abs().square()).real
        index = torch.arange(-reach, reach + 1)
        for axis in range(correlation.ndim):
            correlation = correlation.index_select(axis, index % shape[axis])
        return correlation

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        if len(permutation) != self.kernel.ndim:
            return False
        law = self.autocovariance(max(self.kernel.shape) - 1)
        moved = law.permute(permutation).flip([axis for axis, flipped in enumerate(flips) if flipped])
        return bool((moved - law).abs().max() < 1e-3)


def mix_channels(z: Tensor, factor: Tensor | None) -> Tensor:
    """Independent channels become correlated ones; `factor` is Cholesky's of their correlation."""
    if factor is None:
        return z
    if z.shape[1] != factor.shape[0]:
        raise NoiseError(f"channel_correlation is for {factor.shape[0]} channels, but the data has {z.shape[1]}.")
    return torch.einsum("cd,bd...->bc...", like(factor, z), z)


def _set_channel_correlation(noise: Gaussian | CorrelatedGaussian) -> None:
    if noise.channel_correlation is None:
        return
    matrix = torch.as_tensor(noise.channel_correlation, dtype=torch.float64)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if (
        not square
        or not torch.allclose(matrix, matrix.T)
        or not torch.allclose(matrix.diagonal(), torch.ones(len(matrix), dtype=torch.float64))
    ):
        raise NoiseError("channel_correlation must be a symmetric C x C matrix with ones on its diagonal.")
    if float(torch.linalg.eigvalsh(matrix).min()) <= 0:
        raise NoiseError("channel_correlation must be positive definite.")
    object.__setattr__(noise, "channel_correlation", matrix)
    object.__setattr__(noise, "_factor", torch.linalg.cholesky(matrix))


def _radius(reach: int, dims: int) -> Tensor:
    axis = torch.arange(-reach, reach + 1, dtype=torch.float64)
    return torch.stack(torch.meshgrid(*[axis] * dims, indexing="ij")).square().sum(0).sqrt()


def _trim(kernel: Tensor) -> Tensor:
    """The smallest centred window that loses no more than a millionth of the energy."""
    energy = kernel.square().sum()
    centre = [n // 2 for n in kernel.shape]
    for reach in range(max(kernel.shape) // 2 + 1):
        window = kernel[tuple(slice(max(c - reach, 0), c + reach + 1) for c in centre)]
        if window.square().sum() >= (1 - KERNEL_ENERGY_LOST) * energy:
            return window
    return kernel


def _wrap(kernel: Tensor, size: torch.Size) -> Tensor:
    """A kernel larger than the image, folded onto the periodic grid; its energy is kept at one."""
    for axis, n in enumerate(size):
        folded = torch.zeros(
            *kernel.shape[:axis], n, *kernel.shape[axis + 1 :], dtype=kernel.dtype, device=kernel.device
        )
        kernel = folded.index_add(axis, torch.arange(kernel.shape[axis], device=kernel.device) % n, kernel)
    return kernel / kernel.square().sum().sqrt()
