"""Error bars that are right: what the network says is compared with simulated pairs that no training has seen.

Values are put into ten groups by their predicted standard deviation. Each group has the ratio of the true error to the
predicted one, and the quantiles of the error in units of the prediction, since errors at an edge are not those of a
flat place. Between the groups both are interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InputError

GROUPS = 10
EXTREME = 0.001  # quantiles are known from here to 1 minus this
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Intervals whose coverage is measured."""
PROBABILITIES = torch.cat(
    [torch.tensor([EXTREME, 0.0025, 0.005]), torch.linspace(0.01, 0.99, 99), torch.tensor([0.995, 0.9975, 1 - EXTREME])]
)


@dataclass(frozen=True)
class Calibration:
    """predicted (G,) ascending, ratio (G,), quantiles (G, P), and the measured coverage of some intervals."""

    predicted: Tensor
    ratio: Tensor
    quantiles: Tensor
    coverage: dict[str, float]

    @classmethod
    def of(cls, predicted: Tensor, error: Tensor) -> Calibration:
        """Learned from the first half of these flat arrays; the coverage is measured on the other one."""
        half = len(predicted) // 2
        groups = [(predicted[:half][part], error[:half][part]) for part in predicted[:half].argsort().chunk(GROUPS)]
        centres = torch.stack([std.median() for std, _ in groups])
        ratio = torch.stack([(e.square().mean() / std.square().mean()).sqrt() for std, e in groups])
        quantiles = torch.stack([quantile(e / std, PROBABILITIES) for std, e in groups])
        found = cls(centres, ratio, quantiles, {})
        return cls(centres, ratio, quantiles, found.covers(predicted[half:], error[half:]))

    def covers(self, predicted: Tensor, error: Tensor) -> dict[str, float]:
        """The share of these errors in the intervals of the levels, by level."""
        shares = {}
        for level in LEVELS:
            low, high = (self.quantile(predicted, p) for p in ((1 - level) / 2, (1 + level) / 2))
            shares[f"{level:g}"] = round(float(((error >= low) & (error <= high)).double().mean()), 4)
        return shares

    def std(self, predicted: Tensor) -> Tensor:
        """The standard deviation, corrected."""
        return predicted * self._between(predicted, self.ratio)

    def quantile(self, predicted: Tensor, probability: float) -> Tensor:
        """By how much x0 exceeds the mean with this probability of being smaller."""
        by_group = torch.stack([_interpolate(PROBABILITIES, row, probability) for row in self.quantiles.cpu()])
        return predicted * self._between(predicted, by_group)

    def _between(self, predicted: Tensor, values: Tensor) -> Tensor:
        """`values` of the groups at these predictions; beyond the outer groups, those of the outer groups."""
        centres, values = (x.to(predicted) for x in (self.predicted, values))
        right = torch.searchsorted(centres, predicted.contiguous()).clamp(1, len(centres) - 1)
        left = right - 1
        share = ((predicted - centres[left]) / (centres[right] - centres[left]).clamp(min=1e-30)).clamp(0, 1)
        return torch.lerp(values[left], values[right], share)

    def tensors(self) -> dict[str, Tensor]:
        return {"predicted": self.predicted, "ratio": self.ratio, "quantiles": self.quantiles}


def check_probabilities(probabilities: Sequence[float]) -> None:
    for p in probabilities:
        if not 0 < p < 1:
            raise InputError(f"A quantile must lie between 0 and 1, not {p:g}; 0.05 and 0.95 bound 90 % of the values.")
        if not EXTREME <= p <= 1 - EXTREME:
            raise InputError(f"The quantile {p:g} is too rare to be known; take one from {EXTREME} to {1 - EXTREME}.")


def check_level(level: float) -> tuple[float, float]:
    """The two quantiles of a central interval."""
    if not 0 < level < 1:
        raise InputError(f"The level of an interval must lie between 0 and 1, not {level:g}; 0.9 covers 90 %.")
    both = (1 - level) / 2, (1 + level) / 2
    check_probabilities(both)
    return both


def quantile(x: Tensor, probabilities: Tensor) -> Tensor:
    """torch.quantile refuses more than 16 million values."""
    ordered = x.flatten().double().sort().values
    place = probabilities.double() * (len(ordered) - 1)
    low = place.floor().long()
    high = (low + 1).clamp(max=len(ordered) - 1)
    return torch.lerp(ordered[low], ordered[high], place - low).float()


def _interpolate(x: Tensor, y: Tensor, at: float) -> Tensor:
    right = int(torch.searchsorted(x, at).clamp(1, len(x) - 1))
    share = (at - x[right - 1]) / (x[right] - x[right - 1])
    return torch.lerp(y[right - 1], y[right], share.clamp(0, 1))
