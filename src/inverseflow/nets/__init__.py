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
MOST_WEIGHTS = 500_000_000
"""Of a network that a file describes; the largest of ours has 21 million."""
MOST = {"dims": 3, "blocks": 64, "patch": 64, "given": 64, "features": 2**20} | dict.fromkeys(
    ("channels", "embedding", "summary", "widths"), 2**16
)
MOST_LEVELS = 16
PADDINGS = ("zeros", "circular")


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

    def outline(self) -> nn.Module:
        """The network without its weights, which takes no memory; too large a one is refused."""
        with torch.device("meta"):
            network = BUILDABLE[self.kind](**self.arguments)
        if count_parameters(network) > MOST_WEIGHTS:
            raise ModelFileError(
                f"a network of {count_parameters(network):.3g} weights is asked for, {MOST_WEIGHTS:.3g} are the most"
            )
        return network

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> NetSpec:
        """As a file describes it, which is not believed before it is checked."""
        kind = description.get("kind")
        if kind == "custom":
            raise ModelFileError("the network was your own module, so pass it again as net=")
        if not isinstance(kind, str) or kind not in BUILDABLE:
            raise ModelFileError(f"there is no network called {str(kind)[:40]!r}; known are {', '.join(BUILDABLE)}")
        known = inspect.signature(BUILDABLE[kind]).parameters
        for name, value in description.items():
            if name != "kind" and (name not in known or not _is_possible(name, value, known[name].default)):
                raise ModelFileError(f"a network {kind} with {name[:40]}={str(value)[:40]} is not possible")
        lacking = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in description]
        if lacking:
            raise ModelFileError(f"its network {kind} lacks {lacking[0]}")
        return cls(**description)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in self.arguments.items()}}


def _is_possible(name: str, value: Any, default: Any) -> bool:
    """May a network of ours have this argument?"""
    if isinstance(default, tuple):
        return (
            isinstance(value, list) and 1 <= len(value) <= MOST_LEVELS and all(_is_possible(name, n, 1) for n in value)
        )
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, str):
        return value in PADDINGS
    if isinstance(default, float):
        return isinstance(value, int | float) and 0 < value < 1e6
    return isinstance(value, int) and (0 if name == "given" else 1) <= value <= MOST[name]


def count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
