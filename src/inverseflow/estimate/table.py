"""What was found, as lines for a terminal: how large the noise is at which signal, and how well each family fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .result import NoiseEstimate

LEVELS = 5


def table(estimate: NoiseEstimate) -> list[str]:
    levels, sd, low, high = (np.atleast_2d(part) for part in (*estimate.std_curve, *estimate.interval))
    lines = []
    for channel, name in enumerate(estimate.names):
        lines.append(f"{name + ': ' * bool(name) + 'signal':>22} {'noise (sd)':>12}   95 % interval")
        for k in np.linspace(0, levels.shape[1] - 1, LEVELS).astype(int):
            none = 1e-9 * sd[channel].max()  # below the offset of photons there is no noise
            level, *others = (part[channel, k] for part in (levels, sd, low, high))
            at, below, above = (value if value > none else 0.0 for value in others)
            lines.append(f"{level:>22.4g} {at:>12.4g}   {below:.4g} to {above:.4g}")
    if estimate.lag1 is not None:
        names = ("z", "y", "x")[-len(estimate.lag1) :]
        said = ", ".join(f"{lag:.2f} along {name}" for name, lag in zip(names, estimate.lag1, strict=True))
        lines.append(f"{'neighbours correlate':>22} {said}")
    lines.append(f"{'family':>22} {'misfit':>12}   least is best")
    ranked = sorted(estimate.scores.items(), key=lambda pair: pair[1])
    return lines + [f"{name:>22} {score:>12.1f}" for name, score in ranked]
