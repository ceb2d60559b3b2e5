"""The files of models and checkpoints: safetensors with a JSON header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .errors import InputError, ModelFileError
from .header import HEADER, MAX_HEADER, read_header
from .sharding import part_of
from .whole import write_whole

LARGEST_HEADER = MAX_HEADER - 2**21
"""Bytes of what we say; the names and places of the tensors come on top."""
KEPT = {frozenset(("step", "exp_avg", "exp_avg_sq")), frozenset(("momentum",))}
"""What an optimiser keeps of a parameter: Adam, Muon."""


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write atomically: a reader sees the old file or the new one, never a part."""
    data = save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata={HEADER: packed(path, header)})
    write_whole(path, data, overwrite=True)


def packed(path: Path, header: dict[str, Any]) -> str:
    """The header as text, if `read_header` would take it back."""
    text = json.dumps(header)
    if len(json.dumps(text)) > LARGEST_HEADER:
        raise InputError(
            f"{path} would say more of itself than {LARGEST_HEADER / 2**20:.0f} MB; a noise with so many numbers goes "
            "with its data and not into a model, so keep the results, or train without a folder."
        )
    return text


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that `write_tensors` wrote with header["kind"] == kind."""
    header = read_header(path, kind)
    return read_values(path), header.about


def read_values(path: Path) -> dict[str, Tensor]:
    """The tensors of a file whose header was checked, copied out of it: the file may go or change afterwards."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path} is damaged, or changed while it was read; copy it again.") from error
    for name, values in tensors.items():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise ModelFileError(f"{path} has NaN or infinite values in its weights {name!r}; train it again.")
    return tensors


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state as named tensors: "0.exp_avg", "0.step", "7.momentum", ..."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, values in state.items() for name, value in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Take over a state that fits: for every parameter the same names, each a number or of the parameter's shape. Of a
    parameter that is frozen, or that nothing depends on, there is none.
    """
    weights = [values for group in optimizer.param_groups for values in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        i, _, name = key.partition(".")
        if value.ndim and value.shape != weights[int(i)].shape:
            raise ValueError(f"the state {key} of the optimiser has the shape {tuple(value.shape)}")
        state.setdefault(int(i), {})[name] = part_of(value, weights[int(i)])
    if {frozenset(values) for values in state.values()} - KEPT or set(state) - set(range(len(weights))):
        raise ValueError("the state of the optimiser is not complete")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + k: v for k, v in tensors.items()}
