"""The paper's network for tables: a multi-layer perceptron with Gaussian Fourier time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from .embedding import FourierTime


class MLP(nn.Module):
    """(B, D), (B,) -> (B, D). Every layer sees the time, through `summary` numbers; the last layer starts at zero.

    given   how many further tables of the same shape it is shown: x is then (B, (1 + given) D), one after the other
    """

    def __init__(
        self,
        features: int,
        widths: Sequence[int] = (256, 256, 256, 256),
        embedding: int = 256,
        scale: float = 1.0,
        summary: int = 64,
        given: int = 0,
    ) -> None:
        super().__init__()
        self.time = nn.Sequential(FourierTime(embedding, scale), nn.Linear(embedding, summary), nn.SiLU())
        sizes = [(1 + given) * features, *widths]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.times = nn.ModuleList(nn.Linear(summary, b) for b in widths)
        self.out = nn.Linear(sizes[-1], features)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        embedded = self.time(t)
        for layer, time in zip(self.layers, self.times, strict=True):
            x = nn.functional.silu(layer(x) + time(embedded))
        output: Tensor = self.out(x)
        return output
