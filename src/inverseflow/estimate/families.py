"""Which law of noise has this curve? One least-squares fit per candidate, and the simplest that explains the bins.

    gaussian         v = b                   Gaussian(sqrt b)
    poisson          v = a x                 Poisson(a)
    gamma            v = c x^2               Gamma(1 / c)
    poissongaussian  v = a x + b             PoissonGaussian(a, sqrt b); for b or x < 0: gain a, offset -b / a, sigma 0
    signaldependent  v = s x^(2 g) + b       SignalDependent(g, sqrt s, sqrt b); g = 1 is gamma and Gaussian together

The score of a candidate is its misfit plus ln(bins) for each parameter (BIC); less is better. A curve alone cannot tell
a constant offset from a background, read noise from an offset of the photon noise, or Rayleigh's multiplicative noise,
which also moves the mean, from gamma's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from ..noise import (
    CorrelatedGaussian,
    CorrelatedSignal,
    Gamma,
    Gaussian,
    Noise,
    Poisson,
    PoissonGaussian,
    SignalDependent,
)
from .curve import fit
from .levels import Levels

Array = np.ndarray[Any, Any]
FAMILIES = ("gaussian", "poisson", "gamma", "poissongaussian", "signaldependent")
POWERS = (1.0, 0.25, 0.35, 0.65, 0.75, 0.85, 1.25, 1.5)
"""Exponents g that are tried; 1/2 is poissongaussian."""
NEAR_ZERO = 0.25
"""Of the noise: a background that is subtracted leaves levels so far below 0."""
MARGIN, COARSE_MARGIN = 1.0, 3.0
"""A family must score better by this much for each parameter more; by the second, and for any dependence on the signal,
where the curve comes from blocks so large that texture, of which bright places have more, is left in it.
"""


@dataclass(frozen=True)
class Law:
    """A fitted candidate: `values` by parameter name, and what it takes to compare it."""

    family: str
    values: dict[str, float]
    score: float
    parameters: int

    def variance(self, level: Array) -> Array:
        x, v = np.asarray(level, float), self.values
        power = v.get("power", 1.0)
        affine = v.get("b", 0.0) + v.get("a", 0.0) * np.maximum(x - v.get("offset", 0.0), 0)
        variance: Array = affine + v.get("s", 0.0) * np.maximum(x, 0) ** (2 * power)
        return variance


def fit_family(
    family: str, level: Array, variance: Array, freedom: Array, powers: Sequence[float] = POWERS
) -> Law | None:
    """The best law of one family, or None where the family cannot describe the data at all."""
    count = len(level)
    one, x = np.ones_like(level), np.maximum(level, 0)

    def law(terms: Sequence[Array], name: Callable[[Array], dict[str, float]], parameters: int) -> Law:
        coefficients, _, misfit = fit(np.stack(list(terms), -1), variance, freedom)
        return Law(family, name(coefficients), misfit + parameters * float(np.log(max(count, 2))), parameters)

    if family == "gaussian":
        return law([one], lambda c: {"b": float(c[0])}, 1)
    if family == "poissongaussian":
        low, high = float(level.min()), float(level.max())  # of several channels, one after the other
        if count < 2 or high <= low:
            return None

        def line(c: Array) -> dict[str, float]:
            slope = float(c[1] - c[0]) / (high - low)
            return _line(slope, float(c[0]) - slope * low, low)

        found = law([(high - level) / (high - low), (level - low) / (high - low)], line, 2)
        return found if found.values["a"] > 0 else None
    if not (x > 0).any() or (x == 0).mean() > 0.2:
        return None  # these families need a signal that is not negative
    if family == "poisson":
        return law([x], lambda c: {"a": float(c[0])}, 1)
    if family == "gamma":
        return law([x**2], lambda c: {"s": float(c[0])}, 1)
    if family == "signaldependent":

        def power_law(g: float) -> Law:
            name = functools.partial(_power_law, g)
            return law([one, x ** (2 * g)], name, 2 + (g != 1))

        laws = [power_law(g) for g in powers]
        return min((found for found in laws if found.values["s"] > 0), key=lambda found: found.score, default=None)
    raise InputError(f"There is no noise family {family!r}; choose auto, correlated, {', '.join(FAMILIES)}.")


def _power_law(power: float, coefficients: Array) -> dict[str, float]:
    return {"b": float(coefficients[0]), "s": float(coefficients[1]), "power": power}


def _line(slope: float, intercept: float, low: float) -> dict[str, float]:
    """With an offset of 0, below which no clean value can lie, unless the signal does (`low`) or the variance would."""
    above = intercept >= 0 and low >= -NEAR_ZERO * np.sqrt(intercept)
    if above or slope <= 0:
        return {"a": max(slope, 0.0), "b": max(intercept, 0.0)}
    return {"a": slope, "b": 0.0, "offset": -intercept / slope}


def plausible(law: Law, levels: Levels) -> bool:
    """Photons alone give multiples of the gain, so poisson needs values on a lattice that is not coarser than the gain.
    Where something else is added, however little, poissongaussian is the same law.
    """
    return law.family != "poisson" or 0 < levels.step < 2 * law.values["a"]


def choose(candidates: Sequence[dict[str, Law]], *, coarse: bool = False) -> str:
    """The family that all channels share: least total score; a simpler one wins within the margin."""
    shared = [name for name in FAMILIES if all(name in found for found in candidates)]  # in order: ties are no chance
    total = {name: sum(found[name].score for found in candidates) for name in shared}
    size = {name: max(found[name].parameters for found in candidates) for name in shared}
    if coarse:
        return min(total, key=lambda name: total[name] + COARSE_MARGIN * (size[name] - (name == "gaussian")))
    return min(total, key=lambda name: total[name] + MARGIN * size[name])


def as_noise(laws: Sequence[Law], lean: float, kernel: Array | None) -> Noise:
    """The noise model of these laws, one per channel; standard deviations times (1 + lean)."""
    family, up = laws[0].family, 1 + lean

    def values(name: str, default: float = 0.0) -> Any:
        numbers = [law.values.get(name, default) for law in laws]
        return numbers[0] if len(set(numbers)) == 1 else np.array(numbers)

    if kernel is not None:
        sigma, s = up * np.sqrt(values("b")), values("s")
        if np.all(values("a") == 0) and np.all(s == 0):
            return CorrelatedGaussian(sigma, kernel)
        return CorrelatedSignal(sigma, kernel, up**2 * values("a"), values("offset"), up * np.sqrt(s))
    if family == "gaussian":
        return Gaussian(up * np.sqrt(values("b")))
    if family == "poisson":
        return Poisson(up**2 * values("a"))
    if family == "gamma":
        return Gamma(1 / (up**2 * values("s")))
    if family == "poissongaussian":
        return PoissonGaussian(up**2 * values("a"), up * np.sqrt(values("b")), values("offset"))
    return SignalDependent(values("power"), up * np.sqrt(values("s")), up * np.sqrt(values("b")))
