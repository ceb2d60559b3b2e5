"""The two pictures of denoised cells, in the manner of scanpy's `pl`. Each returns a matplotlib figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cells.counts import read_components
from .errors import InputError
from .metrics import principal_components

__all__ = ["embeddings", "noise"]

MOST_LABELS = 100


def embeddings(
    adata: Any, *, color: str | None = None, before: str = "X_pca", after: str = "X_inverseflow", size: float = 6.0
) -> Any:
    """The first two principal components before and after, side by side, coloured by a column of `.obs`: labels, or
    numbers.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    if color is not None and not isinstance(color, str):
        raise InputError(f"color is the name of one column of .obs, not {color!r}.")
    if color is not None and color not in adata.obs:
        raise InputError(f"There is no .obs[{color!r}]; it has {', '.join(adata.obs.columns) or 'nothing'}.")
    numeric = color is not None and adata.obs[color].dtype.kind in "iuf"
    labels = adata.obs[color].astype(str).to_numpy() if color and not numeric else np.full(adata.n_obs, "")
    present = list(np.unique(labels))
    if color and hasattr(adata.obs[color], "cat"):  # categories have an order: cluster 2 before 10
        order = [str(name) for name in adata.obs[color].cat.categories]
        present.sort(key=lambda name: order.index(name) if name in order else len(order))
    count = len(present)
    if count > MOST_LABELS:
        raise InputError(
            f".obs[{color!r}] has {count} labels, too many to tell apart; give a column of {MOST_LABELS} at most."
        )
    colours = colormaps["tab10" if count <= 10 else "tab20"] if count <= 20 else colormaps["turbo"].resampled(count)
    graded = colormaps["viridis"].with_extremes(bad="0.8")  # grey where the number is missing
    figure = Figure(figsize=(11, 5), layout="constrained")
    for axes, key in zip(figure.subplots(1, 2), (before, after), strict=True):
        x, y = principal_components(read_components(adata, key), 2).T
        axes.set(title=key, xlabel="PC 1", ylabel="PC 2", xticks=[], yticks=[])
        if numeric:
            values = adata.obs[color].to_numpy(np.float64, na_value=np.nan)
            points = axes.scatter(x, y, s=size, linewidths=0, c=values, cmap=graded, plotnonfinite=True)
            continue
        for number, label in enumerate(present):
            chosen = labels == label
            axes.scatter(x[chosen], y[chosen], s=size, linewidths=0, color=colours(number), label=label)
    if numeric:
        figure.colorbar(points, ax=figure.axes, label=color)
    elif color:
        handles, names = axes.get_legend_handles_labels()
        columns = 1 + (len(names) > 20)
        figure.legend(handles, names, loc="outside right upper", markerscale=2, fontsize=8, ncols=columns)
    return figure


def noise(adata: Any, *, key: str = "inverseflow_noise") -> Any:
    """The spread of every component, and how much of it is noise."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if key not in adata.uns:
        raise InputError(f"There is no .uns[{key!r}]; run inverseflow.pp.estimate_noise(adata) first.")
    found = adata.uns[key]
    number = np.arange(1, len(found["sd"]) + 1)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(number, found["spread"], "o-", color="0.4", label="what is seen")
    axes.plot(number, found["sd"], "o-", color="C3", label="noise")
    axes.plot(number, found["counting"], "--", color="C3", label="of it by counting")
    if key in adata.obsm:
        low, high = np.quantile(np.asarray(adata.obsm[key]), [0.05, 0.95], axis=0)
        axes.fill_between(number, low, high, color="C3", alpha=0.15, linewidth=0, label="5 to 95 % of the cells")
    axes.set(xlabel="component", ylabel="standard deviation", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure
