"""Noise of counting a cell's molecules, as its components see it.

x0 stands for a profile: back to the genes (x0 loadings^+ + centre), exp - 1, made to sum to one. x1 is what a cell of
that profile would show if `depth` of its molecules were caught again: counts ~ Poisson(depth profile), then log(1 +
target counts / total), minus the centre, times the loadings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import NoiseError
from ..tensors import Generator, Parameter, broadcast, like
from .base import Noise


@dataclass(frozen=True, eq=False, repr=False)
class Molecules(Noise):
    """For components (B, D): `loadings` (G, D) and `centre` (G,) of the genes, `depth` one number or (B, 1)."""

    loadings: Any
    centre: Any
    depth: Parameter
    target: float
    parameters: ClassVar = ("depth", "target")

    def __post_init__(self) -> None:
        super().__post_init__()
        loadings, centre = (torch.as_tensor(v, dtype=torch.float64) for v in (self.loadings, self.centre))
        if loadings.ndim != 2 or centre.shape != loadings.shape[:1]:
            raise NoiseError("Molecules needs loadings (genes, components) and a centre (genes,).")
        object.__setattr__(self, "loadings", loadings)
        object.__setattr__(self, "centre", centre)

    def draw(self, x0: Tensor, generator: Generator) -> Tensor:
        loadings, centre = like(self.loadings, x0), like(self.centre, x0)
        if x0.shape[1:] != loadings.shape[1:]:
            raise NoiseError(f"These molecules have {loadings.shape[1]} components, not {tuple(x0.shape[1:])}.")
        back = loadings / loadings.square().sum(0)
        profile = torch.expm1((x0 @ back.T + centre).clamp(min=0))
        share = profile / profile.sum(1, keepdim=True).clamp(min=1e-12)
        counts = torch.poisson(share * broadcast(self.depth, x0), generator)
        seen = torch.log1p(self.target * counts / counts.sum(1, keepdim=True).clamp(min=1))
        return (seen - centre) @ loadings

    def invariant(self, permutation: tuple[int, ...], flips: tuple[bool, ...]) -> bool:
        return False
