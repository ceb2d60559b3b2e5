"""A noise model in a YAML file, for people to read and change.

    noise: poisson:gain=2.1,offset=98 + gaussian:sigma=3.2

or, where numbers alone do not say it, the mapping that `Noise.to_dict` gives.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ..errors import FileError, NoiseError
from ..whole import write_whole
from . import from_dict, parse
from .base import Noise

MAX_BYTES, MAX_EVENTS, MAX_DEPTH = 8 * 2**20, 300_000, 16


def read_noise(path: str | Path) -> Noise:
    content = read_yaml(path)
    noise = content.get("noise") if isinstance(content, dict) else content
    try:
        if isinstance(noise, str):
            return parse(noise)
        if isinstance(noise, dict):
            return from_dict(noise)
    except NoiseError as error:
        raise NoiseError(f"{path}: {error}") from None
    raise NoiseError(f"{path} has no noise in it; write for example a line 'noise: gaussian:sigma=10'.")


def read_yaml(path: str | Path) -> Any:
    """Plain values from a file that anybody may have written: no tags, no aliases, no more than people and we write."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise NoiseError(f"{path} is larger than {MAX_BYTES // 2**20} MB, so it is no noise; check its name.")
        text = raw.decode("utf-8")
        _check(text)
        return from_yaml(text)
    except OSError as error:
        raise FileError(f"The noise file {path} cannot be read ({error.strerror}); check its name.") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, NoiseError):
            raise
        where, why = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        told = f" (line {where.line + 1}{f': {why}' if why else ''})" if where else ""
        raise NoiseError(f"{path} is not YAML as a noise is written{told}; correct it.") from error


def one_after_the_other(stages: Iterable[str]) -> Noise:
    """The noise that the command line describes: texts and YAML files, composed in order."""
    noises = [read_noise(text) if text.lower().endswith((".yaml", ".yml")) else parse(text) for text in stages]
    return functools.reduce(lambda first, then: first.then(then), noises)


def write_noise(path: str | Path, noise: Noise, *, overwrite: bool = False) -> None:
    write_yaml(path, {"noise": noise.to_dict()}, overwrite=overwrite)


def write_yaml(path: str | Path, content: dict[str, Any], *, overwrite: bool = False) -> None:
    write_whole(Path(path), to_yaml(content).encode("utf-8"), overwrite=overwrite)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """As yaml.safe_load, in C where that is built (a kernel has thousands of numbers), and no key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        if len(found) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a name stands twice", problem_mark=node.start_mark)
        return found


# YAML reads 1e-4 as text, because it has no point; people write it for a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def from_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _check(text: str) -> None:
    """Before anything is made of it: no aliases, with which few lines become any number; no tags; not too deep."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        problem = (
            "an alias, which a noise does not need" if isinstance(event, yaml.AliasEvent)
            else "a tag, which a noise does not need" if getattr(event, "tag", None)
            else "nested too deeply" if depth > MAX_DEPTH
            else "too long" if count > MAX_EVENTS
            else ""
        )  # fmt: skip
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def to_yaml(content: dict[str, Any]) -> str:
    """As yaml.safe_dump, in C where that is built; rows of numbers are lines."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(content, Dumper=dumper, sort_keys=False, default_flow_style=None)
    return text
