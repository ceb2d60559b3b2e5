"""Noise models. To add one: a new file with a frozen dataclass that writes `draw`, and its name here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import NoiseError
from .additive import CorrelatedGaussian, Gaussian
from .base import POSITIVE, REAL, UNIT, Composition, Domain, Noise
from .correlated import CorrelatedSignal
from .counting import Poisson, PoissonGaussian, SignalDependent
from .diffusion import SDE, Jacobi
from .function import FunctionNoise, Simulator, Unsaved
from .molecules import Molecules
from .multiplicative import Gamma, Rayleigh
from .scaled import Scaled
from .stages import Clip, Quantise

__all__ = [
    "POSITIVE",
    "REAL",
    "SDE",
    "UNIT",
    "Clip",
    "Composition",
    "CorrelatedGaussian",
    "CorrelatedSignal",
    "Domain",
    "FunctionNoise",
    "Gamma",
    "Gaussian",
    "Jacobi",
    "Molecules",
    "Noise",
    "Poisson",
    "PoissonGaussian",
    "Quantise",
    "Rayleigh",
    "Scaled",
    "SignalDependent",
    "Simulator",
    "Unsaved",
    "as_noise",
    "from_dict",
    "parse",
]


def as_noise(noise: Noise | str | Callable[..., Any]) -> Noise:
    """A noise model from one, from text such as "poisson:gain=0.01", or from a function f(x0, generator) -> x1."""
    if isinstance(noise, Noise):
        return noise
    if isinstance(noise, str):
        return parse(noise)
    if callable(noise):
        return FunctionNoise(noise)
    raise NoiseError(
        "noise must be a noise model, text such as 'gaussian:sigma=25', or a function "
        f"f(x0, generator), not {type(noise).__name__}."
    )


Maker = Callable[..., Noise]
NUMBERS_ALONE = (Clip, Gamma, Gaussian, Jacobi, Poisson, PoissonGaussian, Quantise, Rayleigh, SignalDependent)
SPOKEN: dict[str, Maker] = {kind.__name__.lower(): kind for kind in NUMBERS_ALONE} | {
    "cosine": CorrelatedGaussian.cosine
}
"""The noises that numbers alone describe, by the names that text may use."""
WITH_ARRAYS = (CorrelatedGaussian, CorrelatedSignal, Molecules)
STORED: dict[str, Maker] = {kind.__name__.lower(): kind for kind in (*NUMBERS_ALONE, *WITH_ARRAYS, Unsaved)}
"""The noises that a file may hold."""


def parse(text: str) -> Noise:
    """Read "poisson:gain=0.01 + gaussian:sigma=0.04": stages in order, each a name and its numbers."""
    result: Noise | None = None
    for stage in re.split(r"(?<!\d[eE])(?<!\.[eE])\+", text):  # not the one in sigma=3e+12
        name, _, arguments = stage.strip().partition(":")
        noise = _build(_kind(name, SPOKEN), _numbers(arguments, text))
        result = noise if result is None else result.then(noise)
    assert result is not None  # split never returns an empty list
    return result


def from_dict(description: dict[str, Any]) -> Noise:
    """The noise that `Noise.to_dict` described."""
    values = dict(description)
    kind = str(values.pop("kind", ""))
    if kind == "Composition":
        stages = values.get("noises")
        if not isinstance(stages, list | tuple) or not stages or not all(isinstance(stage, dict) for stage in stages):
            raise NoiseError("A Composition needs noises, a list of at least one noise with its kind.")
        return Composition(tuple(from_dict(stage) for stage in stages))
    return _build(_kind(kind, STORED), values)


def _numbers(arguments: str, text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for pair in filter(None, (a.strip() for a in arguments.split(","))):
        key, value = (part.strip() for part in pair.partition("=")[::2])
        if key in values:
            raise NoiseError(f"The noise {text!r} says {key} twice; say it once.")
        try:
            values[key] = float(value)
        except ValueError:
            more = ", and one number per channel in a YAML file" * ("[" in pair)
            raise NoiseError(f"Cannot read {pair!r} in the noise {text!r}; write it as name=number{more}.") from None
    return values


def _kind(name: str, known: Mapping[str, Maker]) -> Maker:
    wanted = name.lower().replace("-", "").replace("_", "")
    if wanted in known:
        return known[wanted]
    close = get_close_matches(wanted, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}."
    raise NoiseError(f"There is no noise called {name!r}{hint}")


def _build(kind: Maker, values: dict[str, Any]) -> Noise:
    known = inspect.signature(kind).parameters
    lacking = [name for name, p in known.items() if p.default is inspect.Parameter.empty and name not in values]
    if lacking or not values.keys() <= known.keys():
        given = ", ".join(str(name)[:40] for name in values) or "nothing"
        raise NoiseError(f"{kind.__name__} takes {', '.join(known)}; it was given {given}.")
    try:
        return kind(**values)
    except NoiseError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise NoiseError(f"{kind.__name__} cannot be made of these {', '.join(values)}: {why}.") from error
