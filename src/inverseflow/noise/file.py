"""A noise model in a YAML file, for people to read and change.

    noise: poisson:gain=2.1,offset=98 + gaussian:sigma=3.2

or, where numbers alone do not say it, the mapping that `Noise.to_dict` gives.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..errors import FileError, NoiseError
from . import from_dict, parse
from .base import Noise


def read_noise(path: str | Path) -> Noise:
    try:
        content: Any = from_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"The noise file {path} cannot be read ({error.strerror}); check its name.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        raise NoiseError(f"{path} is not YAML{f' (line {where.line + 1})' if where else ''}; correct it.") from error
    noise = content.get("noise") if isinstance(content, dict) else content
    if isinstance(noise, str):
        return parse(noise)
    if isinstance(noise, dict):
        return from_dict(noise)
    raise NoiseError(f"{path} has no noise in it; write for example a line 'noise: gaussian:sigma=10'.")


def one_after_the_other(stages: Iterable[str]) -> Noise:
    """The noise that the command line describes: texts and YAML files, composed in order."""
    noises = [read_noise(text) if text.lower().endswith((".yaml", ".yml")) else parse(text) for text in stages]
    return functools.reduce(lambda first, then: first.then(then), noises)


def write_noise(path: str | Path, noise: Noise) -> None:
    Path(path).write_text(to_yaml({"noise": noise.to_dict()}), encoding="utf-8")


def from_yaml(text: str) -> Any:
    """As yaml.safe_load, but in C where that is built: the kernel of a volume has thousands of numbers."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def to_yaml(content: dict[str, Any]) -> str:
    """As yaml.safe_dump, in C where that is built; rows of numbers are lines."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(content, Dumper=dumper, sort_keys=False, default_flow_style=None)
    return text
