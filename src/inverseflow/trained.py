"""A trained model and what it computes for a batch in memory: the estimates, their errors, draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from . import tiling
from .axes import Layout, to_batch
from .calibration import check_probabilities
from .engine import half_precision, placed
from .errors import InputError
from .io.image import Image
from .learning import Uncertainty
from .masking import check_policy, fill, has_missing, missing, refuse, restore
from .methods import Method
from .noise import Noise, Simulator
from .posterior import draw_from
from .samples import Scaling
from .tensors import broadcast
from .tiling import TILE_OVERLAP

ESTIMATES = ("mean", "flow")


@dataclass
class Trained:
    """The parts of a trained model, as a file keeps them."""

    method: Method
    flow: nn.Module
    mean: nn.Module | None
    noise: Noise
    scaling: Scaling
    axes: str
    channels: int
    description: dict[str, Any]
    history: dict[str, list[dict[str, float]]]
    uncertainty: Uncertainty = field(default_factory=Uncertainty)

    def function(
        self, estimate: str | float | None = None, *, std: bool = False, quantiles: Sequence[float] = ()
    ) -> Callable[[Tensor], Tensor]:
        """What `denoise` does to a batch (B, C, *S) or (B, D) in memory, small enough for one network pass.

        What was asked for comes out one after the other along C: the estimate, std, quantiles.
        """
        estimate = self.description["estimate"] if estimate is None else estimate
        check_estimate(estimate)
        check_probabilities(quantiles)
        if (std or quantiles) and self.uncertainty.spread is None:
            raise InputError("This model has no error bars; train it with std=True (or --std) and the estimate mean.")

        def denoise(x1: Tensor) -> Tensor:
            shown, gone = self._shown(x1)
            with half_precision(self.device, self._ours):
                result = self._denoise_batch(shown, estimate, std, quantiles).cpu()
            return restore(result, gone)

        return denoise

    def sampler(self) -> Callable[[Tensor], Tensor]:
        """(B, 2 C, *S), noisy data and a standard normal -> (B, C, *S), a draw of the clean data."""
        sampler, spread = self.uncertainty.sampler, self.uncertainty.spread
        if sampler is None or spread is None:
            raise InputError("This model cannot draw samples; train it with samples=True (or --samples).")

        @torch.no_grad()
        def draw(both: Tensor) -> Tensor:
            x1, z = both.chunk(2, dim=1)
            (y1, gone), z = self._shown(x1), z.to(self.device).float()
            with half_precision(self.device, self._ours):
                mean = self._mean(y1)
                drawn = draw_from(sampler, y1, mean, spread(y1, mean), z)  # type: ignore[arg-type]
            return restore(self.scaling.undo(self._project(drawn)).cpu(), gone)

        return draw

    def _shown(self, x1: Tensor) -> tuple[Tensor, Tensor | None]:
        """Data as the networks see it: scaled, without gaps, on the device; and where the gaps are, if it has any."""
        y1 = self.scaling.onto(x1, self.device)
        if not has_missing(x1):
            return y1, None
        return fill(y1), missing(x1)

    @property
    def device(self) -> torch.device:
        return next(self.flow.parameters()).device

    @property
    def _ours(self) -> bool:
        return bool(self.description["net"]["kind"] != "custom")

    @property
    def multiple(self) -> int:
        """Tiles start at multiples of this, where the network's own grid has a corner."""
        return tiling.multiple_of(self.flow)

    def tile(
        self, shape: Sequence[int], tile_size: int | None = None, overlap: int = tiling.TILE_OVERLAP
    ) -> tuple[tuple[int, ...], int, int]:
        """The tile of an image of this shape, how many go through the network together, and how far they overlap."""
        return tiling.tile_for(self.flow, self.channels, shape, tile_size, overlap)

    @torch.no_grad()
    def _denoise_batch(self, y1: Tensor, estimate: str | float, std: bool, quantiles: Sequence[float]) -> Tensor:
        blend = {"mean": 0.0, "flow": 1.0}[estimate] if isinstance(estimate, str) else estimate
        mean = self._mean(y1) if blend < 1 or std or quantiles else None
        flow = self.method.denoise(self.flow, y1) if blend > 0 else None
        best = mean if flow is None else flow if mean is None or blend == 1 else torch.lerp(mean, flow, blend)
        assert best is not None
        results = [self.scaling.undo(best)]
        if mean is not None and (std or quantiles):
            spread, calibration = self.uncertainty.spread, self.uncertainty.calibration
            assert spread is not None
            assert calibration is not None
            predicted = spread(y1, mean)
            if std:
                results.append(calibration.std(predicted) * broadcast(self.scaling.scale, y1))
            results += [self.scaling.undo(self._project(mean + calibration.quantile(predicted, p))) for p in quantiles]
        return torch.cat(results, dim=1)

    def _everywhere(
        self,
        function: Callable[[Tensor], Tensor],
        x1: Any,
        *,
        axes: str | None = None,
        nan: str = "refuse",
        tile_size: int | None = None,
        tile_overlap: int = TILE_OVERLAP,
        beside: torch.Generator | None = None,
    ) -> list[Any]:
        """A function of batches applied to data of any kind and size; with `beside`, it also sees a standard normal."""
        if axes is None and not isinstance(x1, Image) and np.ndim(x1) == len(self.axes):
            axes = self.axes
        check_policy(nan)
        x, layout = to_batch(x1, axes)
        if nan == "refuse" and has_missing(x):
            refuse("The data", layout.restore(missing(x)), layout.axes)
        if x.shape[1] != self.channels or len(layout.spatial) != len(Layout(self.axes, ()).spatial):
            raise InputError(
                f"This model was trained on {self._shape_words()}, but the data has {x.shape[1]} channels and "
                f"axes {layout.axes}; give matching data or train a new model."
            )
        if beside is not None:
            x = torch.cat([x, torch.randn(x.shape, generator=beside)], dim=1)
        whole = tiling.everywhere(function, x, self.flow, tile_size, tile_overlap)
        results = [layout.restore(result) for result in torch.split(whole, self.channels, dim=1)]
        if isinstance(x1, Image):
            return [x1.replace(result.numpy()) for result in results]
        return [result if isinstance(x1, Tensor) else result.numpy() for result in results]

    def _mean(self, y1: Tensor) -> Tensor:
        """The mean network is the map's twin, so the map's method applies it: one pass at t = 1, then the domain."""
        mean = self.method.denoise(self.mean, y1) if self.mean is not None else self.method.mean(self.flow, y1)
        if mean is None and not isinstance(self.noise, Simulator):
            raise InputError(
                "This model was trained for the estimate flow and has no posterior mean; ask it for the estimate "
                "flow, or train again."
            )
        return self.method.denoise(self.flow, y1) if mean is None else mean

    def _project(self, y0: Tensor) -> Tensor:
        return self.scaling.carry(self.noise).project(y0)

    def _shape_words(self) -> str:
        return f"{self.channels} {'features' if self.axes == 'SC' else 'channels'} with axes {self.axes}"

    def to(self, device: str) -> Self:
        """The same model on another device."""
        for network in (self.flow, self.mean, self.uncertainty.spread, self.uncertainty.sampler):
            if network is not None:
                placed(network, torch.device(device)).requires_grad_(False)
        return self


def check_estimate(estimate: str | float) -> None:
    known = estimate in ESTIMATES if isinstance(estimate, str) else 0 <= estimate <= 1
    if not known:
        raise InputError(f"estimate must be mean, flow, or a number from 0 (mean) to 1 (flow), not {estimate!r}.")
