"""The processes that train one model together: who this one is, its part of a batch, and what all must agree on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from .errors import InputError


@dataclass(frozen=True)
class Team:
    """One process of `size`; a process alone is a team of one."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Is it this one that writes and talks?"""
        return self.rank == 0

    def share(self, batch_size: int) -> slice:
        """This process's part of a batch: all draw the same places and each reads its own."""
        if batch_size % self.size:
            raise InputError(
                f"A batch of {batch_size} cannot be shared equally by {self.size} processes; take a multiple of it."
            )
        part = batch_size // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def agree(self, number: float, device: torch.device) -> float:
        """The leader's number. Clocks differ, and processes that part ways wait for each other for ever."""
        if self.size == 1:
            return number
        told = torch.tensor([number], dtype=torch.float64, device=device)
        dist.broadcast(told, 0)
        return float(told)

    def gather(self, x: Tensor, device: torch.device) -> list[Tensor]:
        """The tensors of all processes, of one shape."""
        if self.size == 1:
            return [x]
        found = [torch.empty_like(x, device=device) for _ in range(self.size)]
        dist.all_gather(found, x.to(device))
        return [one.to(x.device) for one in found]

    def first(self, step: Tensor, device: torch.device) -> int:
        """The earliest step that any of the processes has noted; -1 if none has."""
        return min((noted for noted in map(int, self.gather(step, device)) if noted >= 0), default=-1)

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()


def current_team() -> Team:
    if dist.is_available() and dist.is_initialized():
        return Team(dist.get_rank(), dist.get_world_size())
    return Team()
