"""Weights that the processes of a team share out among them (FSDP), for a network that no device can train alone.

Every device keeps its part of the weights, of their average, of the gradient and of what the optimiser notes. A block
of the network is gathered when a pass comes to it, and let go after it. What is written and what comes out of a
training is whole, so that it does not tell how many processes there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError

LISTS = (nn.ModuleList, nn.ModuleDict)


def share_out(model: nn.Module, mesh: Any) -> nn.Module:
    """Each process of the mesh keeps its part of every weight. The blocks of the network are what it has lists of."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise InputError(
            f"The strategy fsdp needs torch 2.6 or newer, and this is {torch.__version__}; use ddp."
        ) from None
    _refuse_what_has_no_parts(model)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload] # a part of a weight is some rows
    lists = [module for module in model.modules() if isinstance(module, LISTS)]
    blocks = [block for one in lists for block in one.children() if not isinstance(block, LISTS)]
    for module in [*dict.fromkeys(reversed(blocks)), model]:  # what is inside first
        fully_shard(module, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return model


def _refuse_what_has_no_parts(model: nn.Module) -> None:
    """Said by the weight's name; torch would say it of a tensor, some versions in the middle of the first step."""
    owners: dict[nn.Parameter, str] = {}
    for place, module in model.named_modules():
        for name, weight in module.named_parameters(place, recurse=False):
            if not weight.ndim:
                raise InputError(
                    f"The strategy fsdp cannot share out {name}, a single number; give it the shape (1,), or use ddp."
                )
            if weight in owners:
                raise InputError(f"The strategy fsdp cannot share out {name}, which is {owners[weight]} too; use ddp.")
            owners[weight] = name


def shared_like(model: nn.Module, pattern: nn.Module) -> nn.Module:
    """Share `model` out as its twin is, or not at all."""
    part: Any = next(filter(is_part, pattern.parameters()), None)
    return model if part is None else share_out(model, {"data_parallel": part.device_mesh})


def gathered(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values, whole, those of parts on the host. All processes must ask together."""
    return {name: value.full_tensor().cpu() if is_part(value) else value for name, value in values.items()}  # type: ignore[attr-defined]


def part_of(value: Tensor, pattern: Any) -> Tensor:
    """This process's part of a whole value, where `pattern` is shared out; all have the whole, so nothing is sent."""
    if not is_part(pattern) or not value.ndim:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(pattern.device), pattern.device_mesh, pattern.placements, src_data_rank=None)


def parts_of(values: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    own = model.state_dict()
    return {name: part_of(value, own.get(name)) for name, value in values.items()}


def is_part(value: Any) -> bool:
    """Is it a DTensor? Asked without its module, which takes half a second to import."""
    return hasattr(value, "full_tensor")
