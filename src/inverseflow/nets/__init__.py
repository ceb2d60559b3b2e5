"""Networks. Any `nn.Module` called as net(x, t) works everywhere; these are the ones that come along.

To add one that a saved model can name: a new file and its line in `__all__` here; its constructor takes plain values.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from ..errors import ModelFileError
from .embedding import FourierTime
from .mlp import MLP
from .paper import PaperUNet
from .unet import UNet
from .wrappers import Consistency, Velocity

__all__ = ["MLP", "Consistency", "FourierTime", "NetSpec", "PaperUNet", "UNet", "Velocity", "count_parameters"]

BUILDABLE: dict[str, type[nn.Module]] = {"MLP": MLP, "UNet": UNet, "PaperUNet": PaperUNet}


class NetSpec:
    """A network by name and arguments, as a model file stores it: NetSpec("UNet", channels=1).build(seed=0)."""

    def __init__(self, kind: str, **arguments: Any) -> None:
        if kind not in BUILDABLE:
            raise ModelFileError(
                f"There is no network called {kind!r}; known are {', '.join(BUILDABLE)}, "
                "or pass your own module as net=."
            )
        known = inspect.signature(BUILDABLE[kind]).parameters
        for name in arguments:
            if name not in known:
                raise ModelFileError(f"The network {kind} takes {', '.join(known)}, not {name!r}.")
        self.kind, self.arguments = kind, arguments

    def build(self, seed: int = 0) -> nn.Module:
        """The network with seeded weights; the global random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return BUILDABLE[self.kind](**self.arguments)

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> NetSpec:
        if description.get("kind") == "custom":
            raise ModelFileError("the network was your own module, so pass it again as net=")
        return cls(**description)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in self.arguments.items()}}


def count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
