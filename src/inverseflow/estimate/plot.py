"""The picture of a `NoiseEstimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .result import NoiseEstimate


def draw(estimate: NoiseEstimate) -> Figure:
    from matplotlib.figure import Figure  # no pyplot: nothing to close, no window, any thread

    panels = 1 if estimate.autocorrelation is None else 2
    figure = Figure(figsize=(5.5 * panels, 4), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    levels, sd, low, high = (np.atleast_2d(part) for part in (*estimate.std_curve, *estimate.interval))
    for channel, name in enumerate(estimate.names):
        colour = f"C{estimate.channels[channel]}"
        axes[0].fill_between(levels[channel], low[channel], high[channel], color=colour, alpha=0.2, lw=0)
        axes[0].plot(levels[channel], sd[channel], color=colour, label=name or "estimate, 95 %")
        axes[0].plot(levels[channel], (1 + estimate.lean) * sd[channel], "--", color=colour, lw=1)
        if channel < len(estimate.measured):
            axes[0].plot(*estimate.measured[channel], ".", color=colour, ms=5)
    axes[0].set(xlabel="signal", ylabel="noise, standard deviation", ylim=(0, None))
    axes[0].set_title(f"{estimate.family}, from {estimate.method}; dashed: used for training", fontsize=9)
    axes[0].legend(frameon=False)
    if estimate.autocorrelation is not None:
        shown = estimate.autocorrelation
        shown = shown[len(shown) // 2] if shown.ndim == 3 else shown
        reach = len(shown) // 2
        extent = (-reach - 0.5, reach + 0.5, reach + 0.5, -reach - 0.5)
        drawn = axes[1].imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1, extent=extent)
        axes[1].set(xlabel="lag x (pixels)", ylabel="lag y (pixels)")
        lag1 = estimate.lag1 or ()
        along = f"; {lag1[0]:.2f} to the next slice" if len(lag1) == 3 else ""
        axes[1].set_title(f"correlation of the noise{along}", fontsize=9)
        figure.colorbar(drawn, ax=axes[1], shrink=0.8)
    return figure
