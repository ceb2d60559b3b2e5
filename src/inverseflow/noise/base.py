"""What the instrument did: p(x1 | x0).

A noise model answers four questions: draw x1 given x0 (`sample`), how large is it (`mean`, `std`), which values x0 may
take (`domain`), and which flips and rotations leave its law unchanged (`invariant`). A new model is one frozen
dataclass that writes `draw`; everything else has a default that is right for any noise.

Parameters are in data units. Each may be one number, a sequence with one value per channel, or an array of shape (B, 1)
or (B, C) with one per sample.
"""

from __future__ import annotations

import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, NoiseError
from ..tensors import Generator, Parameter, as_float_tensor, broadcast

Array = TypeVar("Array", Tensor, np.ndarray)
SIMULATED_DRAWS = 256


@dataclass(frozen=True)
class Domain:
    """The values that clean data may take: the real line, [0, inf), [0, 1], or any interval."""

    lower: Parameter = -math.inf
    upper: Parameter = math.inf

    @property
    def is_real_line(self) -> bool:
        return not any(isinstance(b, Tensor) or math.isfinite(b) for b in (self.lower, self.upper))

    def contains(self, other: Domain) -> bool:
        """Does it hold all of the other's values? Not for certain where they differ by channel or sample."""
        ends = self.lower, other.lower, other.upper, self.upper
        return not any(isinstance(end, Tensor) for end in ends) and bool(ends[0] <= ends[1] and ends[2] <= ends[3])

    def clamp(self, x: Tensor) -> Tensor:
        """x moved into the domain."""
        lower, upper = self.lower, self.upper
        if isinstance(lower, Tensor):
            x, lower = torch.maximum(x, _bounds(lower, x, torch.amin)), -math.inf
        if isinstance(upper, Tensor):
            x, upper = torch.minimum(x, _bounds(upper, x, torch.amax)), math.inf
        return x if math.isinf(lower) and math.isinf(upper) else x.clamp(lower, upper)

    def __str__(self) -> str:
        return f"[{_show(self.lower)}, {_show(self.upper)}]"


REAL = Domain()
POSITIVE = Domain(0.0)
UNIT = Domain(0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Noise(ABC):
    """p(x1 | x0). Subclasses are frozen dataclasses that write `draw`."""

    parameters: ClassVar[tuple[str, ...]] = ()
    """Fields that are numbers in data units, checked to be finite and >= 0 and allowed to vary by channel or sample."""
    signed: ClassVar[tuple[str, ...]] = ()
    """Those of `parameters` that may be negative."""
    centred: ClassVar[bool] = False
    """E[x1 | x0] = x0."""
    stays: ClassVar[bool] = False
    """x1 lies in the domain, as x0 does."""
    affine_variance: ClassVar[bool] = False
    """Var[x1 | x0] is a + b x0, so that its expectation over x0 is its value at the mean."""

    def __post_init__(self) -> None:
        for name in self.parameters:
            value = _as_parameter(getattr(self, name), f"{type(self).__name__}.{name}", signed=name in self.signed)
            object.__setattr__(self, name, value)

    @abstractmethod
    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        """x1 of the shape of x0. x0 lies in the domain; it must not be modified."""

    def sample(self, x0: Array, *, generator: Generator = None) -> Array:
        """Draw x1 given clean x0 (tensor or numpy array) of shape (B, C, *S) or (B, D)."""
        clean = as_float_tensor(x0)
        self.check_channels(clean.shape[1] if clean.ndim > 1 else 1)
        if not bool(torch.isfinite(clean).all()):
            raise InputError(
                f"{type(self).__name__} was given data with NaN or infinite values; replace or mask them first."
            )
        if not torch.equal(self.project(clean), clean):
            raise NoiseError(
                f"{type(self).__name__} needs clean values in {self.domain}, but the data goes from "
                f"{float(clean.min()):.4g} to {float(clean.max()):.4g}; subtract the camera's offset or clip the data."
            )
        noisy = self.draw(clean, generator)
        return noisy if isinstance(x0, Tensor) else noisy.numpy()

    @property
    def domain(self) -> Domain:
        return REAL

    def project(self, x0: Tensor) -> Tensor:
        """x0 moved into the domain; cheap, no synchronisation, used in the training loop."""
        return self.domain.clamp(x0)

    def mean(self, x0: Tensor) -> Tensor:
        """E[x1 | x0]: exact where there is a formula, else from seeded draws."""
        return x0 if self.centred else self.simulated_moments(x0)[0]

    def std(self, x0: Tensor) -> Tensor:
        """Standard deviation of x1 given x0: exact where there is a formula, else from seeded draws."""
        return self.simulated_moments(x0)[1]

    def simulated_moments(self, x0: Tensor, draws: int = SIMULATED_DRAWS) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of x1 given x0 from seeded draws (relative error of std 1 / sqrt(2 draws))."""
        generator = torch.Generator(x0.device).manual_seed(0)
        mean, squares = torch.zeros_like(x0), torch.zeros_like(x0)
        for count in range(1, draws + 1):  # Welford: no loss of digits when the noise is small beside the signal
            x1 = self.draw(x0, generator)
            delta = x1 - mean
            mean = mean + delta / count
            squares = squares + delta * (x1 - mean)
        return mean, (squares / (draws - 1)).sqrt()

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        """Is the law unchanged when the spatial axes are permuted, then flipped? True for pixelwise noise."""
        return True

    def then(self, other: Noise) -> Noise:
        """This noise first, `other` on its result: `Poisson(0.01).then(Gaussian(10 / 255))`."""
        return Composition((*stages(self), *stages(other)))

    def check_channels(self, count: int) -> None:
        """Parameters with one value per channel are for as many channels."""
        for name in self.parameters:
            value = getattr(self, name)
            if isinstance(value, Tensor) and value.shape[-1] not in (1, count):
                raise NoiseError(
                    f"{type(self).__name__}.{name} has {value.shape[-1]} values, one per channel, but the data has "
                    f"{count} channel{'s' * (count != 1)}."
                )

    def select(self, index: Tensor) -> Self:
        """The noise of these samples, where a parameter was given per sample."""
        changes = {
            name: _rows(value, index)
            for name in self.parameters
            if isinstance(value := getattr(self, name), Tensor) and value.ndim == 2
        }
        return self._changed(changes) if changes else self

    def to(self, device: torch.device | str) -> Self:
        """The same noise with its arrays on a device, so that drawing there moves nothing."""
        return self._changed({name: _moved(value, device) for name, value in vars(self).items()})

    def _changed(self, values: dict[str, Any]) -> Self:
        """Other values of attributes that were checked already: checking them again would wait for the device."""
        changed = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(changed, name, value)
        return changed

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON and YAML can hold; `inverseflow.noise.from_dict` reads them back."""
        return {"kind": type(self).__name__} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def __repr__(self) -> str:  # of those that hold arrays; the others have that of a dataclass
        from .words import in_words

        return in_words(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Noise) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(repr(self.to_dict()))


@dataclass(frozen=True, eq=False)
class Composition(Noise):
    """Several noises in order: the first acts on the clean data, each next one on the result of the one before."""

    noises: tuple[Noise, ...]

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        for noise in self.noises:
            x0 = noise.draw(noise.project(x0), generator)
        return x0

    @property
    def domain(self) -> Domain:
        return self.noises[0].domain

    @property
    def _untouched(self) -> bool:
        """Does every stage take the values that the one before gives as they are?"""
        return all(
            after.domain.is_real_line or (before.stays and after.domain.contains(before.domain))
            for before, after in itertools.pairwise(self.noises)
        )

    def mean(self, x0: Tensor) -> Tensor:
        """That of the first stage, exact when every later one is centred and moves nothing into its domain."""
        first, *later = self.noises
        return first.mean(x0) if self._untouched and all(n.centred for n in later) else super().mean(x0)

    def std(self, x0: Tensor) -> Tensor:
        """Law of total variance, exact when every later stage is so, and its variance affine in the signal."""
        first, *later = self.noises
        if not (self._untouched and all(n.centred and n.affine_variance for n in later)):
            return super().std(x0)
        mean, variance = first.mean(x0), first.std(x0).square()
        for noise in later:
            variance = variance + noise.std(mean).square()
        return variance.sqrt()

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return all(noise.invariant(permutation, flips) for noise in self.noises)

    def check_channels(self, count: int) -> None:
        for noise in self.noises:
            noise.check_channels(count)

    def select(self, index: Tensor) -> Composition:
        return Composition(tuple(noise.select(index) for noise in self.noises))


def stages(noise: Noise) -> tuple[Noise, ...]:
    return noise.noises if isinstance(noise, Composition) else (noise,)


def _as_parameter(value: Any, name: str, *, signed: bool) -> Parameter:
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise NoiseError(f"{name} must be a number, or one per channel or sample, not {value!r}.") from None
    if tensor.ndim > 2 or not tensor.numel():
        shape = tuple(tensor.shape)
        raise NoiseError(
            f"{name} must be one number, one per channel (C,), or per sample (B, 1) or (B, C), not {shape}."
        )
    if not bool(torch.isfinite(tensor).all()) or (not signed and bool((tensor < 0).any())):
        raise NoiseError(f"{name} must be finite{'' if signed else ' and not negative'}, not {_show(value)}.")
    return tensor if tensor.ndim else float(tensor)


def _bounds(bound: Tensor, x: Tensor, widest: Callable[..., Tensor]) -> Tensor:
    """A bound shaped for x. The bounds of other samples than x's (x is new data) count as one, the widest."""
    if bound.ndim == 2 and len(bound) != len(x):
        bound = widest(bound, 0, keepdim=True)
    shaped = broadcast(bound, x)
    assert isinstance(shaped, Tensor)
    return shaped


def _rows(value: Tensor, index: Tensor) -> Tensor:
    """The rows of a per-sample parameter, where it has more than one; it follows the index to its device, so that
    nothing waits.
    """
    return value if len(value) == 1 else value.to(index.device, non_blocking=True)[index]


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor) and torch.device(device).type == "mps":
        value = value.float()  # it has no float64
    if isinstance(value, Noise | Tensor):
        return value.to(device)
    return tuple(_moved(item, device) for item in value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Noise):
        return value.to_dict()
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _show(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{float(value.min()):.4g}..{float(value.max()):.4g}"
    return f"{value:.4g}" if isinstance(value, float | int) else str(value)
