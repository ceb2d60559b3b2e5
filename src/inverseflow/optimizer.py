"""How weights are moved: AdamW, and for the weights between the features of a convolution Muon (K. Jordan 2024).

The gradient of such a layer, as a matrix (outputs, inputs x kernel), is large in few directions, and Adam, which looks
at single weights, moves along these. Muon moves by the nearest orthogonal matrix, as far in every direction. Its steps
are made as large as Adam's (a root mean square of 0.2 lr, Liu et al. 2025).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .settings import Settings
from .sharding import is_part, part_of

FEATURES = 8  # a layer with fewer on either side speaks with a picture, whose channels are not interchangeable
RATES = {"muon": 3e-3, "adamw": 1e-3}
TYPICAL_STEP = 0.2  # of a weight under AdamW, over the learning rate
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""a, b, c of x -> a x + b x^3 + c x^5, which takes singular values from 0.001 to 1 into 0.7 to 1.2 in five steps."""


def suited(settings: Settings, model: nn.Module, pace: float = 1.0) -> Settings:
    """The settings with an optimiser and a learning rate that suit the network, where they leave it open.

    A loss whose `pace` is below 1 bears less of Muon, which moves along every direction that its noise shows.
    """
    kind = settings.optimizer
    if kind == "auto":
        kind = "muon" if any(map(is_between_features, model.parameters())) else "adamw"
    return replace(settings, optimizer=kind, lr=settings.lr or RATES[kind] * (pace if kind == "muon" else 1))


def make_optimizer(model: nn.Module, settings: Settings, cuda: bool) -> torch.optim.Optimizer:
    """On a GPU the learning rate lies there, where a recorded step reads it."""
    assert settings.lr
    common: dict[str, Any] = {
        "lr": torch.tensor(settings.lr, device="cuda") if cuda else settings.lr,
        "betas": (0.9, 0.99),
        "weight_decay": settings.weight_decay,
        "fused": True,
        "capturable": cuda,
    }
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), **common)
    return Muon(model, **common)


def set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def is_between_features(weight: Tensor) -> bool:
    """A convolution's weights from features to features; transposed ones have inputs first, which does not matter."""
    return weight.ndim > 2 and min(weight.shape[:2]) >= FEATURES


class Muon(torch.optim.AdamW):
    """AdamW whose last group is moved by orthogonal matrices."""

    def __init__(self, model: nn.Module, **adamw: Any) -> None:
        weights = list(model.parameters())
        rest = [weight for weight in weights if not is_between_features(weight)]
        groups: list[dict[str, Any]] = [{"params": rest}, {"params": list(filter(is_between_features, weights))}]
        super().__init__(groups, **adamw)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As of any optimiser: Adam's own would look for its count of steps beside the momentum."""
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        last = self.param_groups.pop()
        try:
            value = super().step(closure)
        finally:
            self.param_groups.append(last)
        alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for weight in last["params"]:
            if weight.grad is not None:
                alike[weight.shape].append(weight)
        for weights in alike.values():
            self._move(weights, last["lr"], last["weight_decay"])
        return value

    def _move(self, weights: list[Tensor], lr: float | Tensor, decay: float) -> None:
        """Weights of one shape, all at once."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        moments = [self.state[weight]["momentum"] for weight in weights]
        gradients: Any = [weight.grad for weight in weights]
        torch._foreach_lerp_(moments, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, moments, MOMENTUM)  # Nesterov's
        matrices = torch.stack([_whole(matrix).flatten(1) for matrix in ahead])
        moves = orthogonal(matrices) * (lr * TYPICAL_STEP * math.sqrt(max(matrices.shape[1:])))
        if decay:
            torch._foreach_mul_(weights, 1 - lr * decay)
        torch._foreach_sub_(
            weights, [part_of(move.view_as(weight), weight) for move, weight in zip(moves, weights, strict=True)]
        )


def _whole(matrix: Any) -> Tensor:
    whole: Tensor = matrix.full_tensor() if is_part(matrix) else matrix
    return whole


def orthogonal(matrices: Tensor) -> Tensor:
    """(k, rows, columns) with singular values of about 1 and the same singular vectors; bfloat16 on a GPU is enough."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)
