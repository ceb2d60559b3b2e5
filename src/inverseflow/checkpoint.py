"""Files that are whole or absent: safetensors with a JSON header, written beside the target, synced, then renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .errors import ModelFileError

HEADER = "inverseflow"


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write atomically: a reader sees the old file or the new one, never a part."""
    data = save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata={HEADER: json.dumps(header)})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file that `write_tensors` wrote with header["kind"] == kind."""
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}; check the name and the folder.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            header = json.loads(metadata.get(HEADER, "null"))
            if not isinstance(header, dict) or header.get("kind") != kind:
                raise ModelFileError(f"{path} is not an inverseflow {kind}; give a file that inverseflow wrote.")
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (not a dict)
    except (SafetensorError, ValueError, OSError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{path} is not an inverseflow {kind}, or it is damaged; give a file that inverseflow wrote."
        ) from error


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's state as named tensors: "0.exp_avg", "0.step", ..."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, values in state.items() for name, value in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        i, _, name = key.partition(".")
        state.setdefault(int(i), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + k: v for k, v in tensors.items()}
