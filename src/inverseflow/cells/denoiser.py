"""The components of cells, denoised: `Denoiser` for tables, with fit and transform, and the spread that is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..denoiser import Denoiser
from ..errors import InputError
from ..nets import NetSpec
from ..noise import Gaussian, Noise
from ..samples import Scaling
from ..settings import Settings
from .counts import Array

CELLS = Settings(steps=1000, batch_size=512, lr=5e-4, ema=0.99, clip=None)
WIDTHS = (256, 256)


@dataclass
class CellDenoiser:
    """CellDenoiser(noise).fit(x).transform(x), for components x (n, D).

    noise   their standard deviation: one number, (D,) one per component, (n, D) one per cell too; or any Noise
    preset  "ours", or "paper": the first component scaled to 1, sigma 0.4, the paper's network, 1000 epochs
    """

    noise: Any
    preset: str = "ours"
    seed: int = 0
    device: str = "auto"
    progress: bool = False
    model: Denoiser | None = None

    def fit(self, x: Array) -> CellDenoiser:
        """Learn from the cells themselves."""
        x = np.asarray(x, dtype=np.float32)
        if self.preset not in ("ours", "paper"):
            raise InputError(f"preset must be ours or paper, not {self.preset!r}.")
        paper = self.preset == "paper"
        noise = self.noise if isinstance(self.noise, Noise) else Gaussian(self._sigma(x))
        epochs = max(1, 1000 * len(x) // CELLS.batch_size)
        how = Settings(steps=epochs, batch_size=CELLS.batch_size, lr=1e-4, clip=None) if paper else CELLS
        net = NetSpec("MLP", features=x.shape[1], **({} if paper else {"widths": WIDTHS}))
        self.model = Denoiser.train(
            x,
            noise,
            net=net,
            scaling=self._scaling(x, noise),
            settings=how,
            mean_settings=how,
            axes="SC",
            estimate="flow" if paper else "mean",
            std=False,  # for Gaussian noise the slope of the mean tells it, without another network
            seed=self.seed,
            device=self.device,
            progress=self.progress,
        )
        return self

    def transform(self, x: Array) -> Array:
        """The cells without the noise, (n, D) float32."""
        assert self.model is not None, "fit first"
        return np.asarray(self.model.denoise(np.asarray(x, dtype=np.float32)))

    def std(self, x: Array) -> Array | None:
        """What remains unknown of each component, for Gaussian noise: the diagonal of d E[x0 | x1] / d x1 times the
        noise's covariance is its variance.
        """
        assert self.model is not None, "fit first"
        noise, mean = self.model.noise, self.model.mean
        if not isinstance(noise, Gaussian) or mean is None:
            return None
        scaling, method, device = self.model.scaling, self.model.method, next(mean.parameters()).device

        def one(row: torch.Tensor) -> torch.Tensor:
            return scaling.undo(method.denoise(mean, scaling.apply(row[None])))[0]

        rows = torch.as_tensor(np.asarray(x, dtype=np.float32), device=device)
        sigma = torch.as_tensor(noise.sigma, dtype=torch.float32, device=device).expand(rows.shape)
        tied = torch.eye(rows.shape[1]) if noise.channel_correlation is None else noise.channel_correlation
        tied = torch.as_tensor(tied, dtype=torch.float32, device=device)

        def share_of(row: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:  # of the noise's variance
            slopes: torch.Tensor = torch.func.jacfwd(one)(row)
            return (slopes * tied * sigma / sigma[:, None]).sum(1)

        with torch.no_grad():
            share = torch.func.vmap(share_of, chunk_size=1024)(rows, sigma)
        return np.asarray((sigma * share.clamp(0, 1).sqrt()).cpu())

    def _sigma(self, x: Array) -> torch.Tensor:
        sigma = torch.as_tensor(np.asarray(self.noise, dtype=np.float64))
        if sigma.ndim > 2 or (sigma.ndim and sigma.shape not in (x.shape[1:], x.shape)):
            raise InputError(
                f"The noise must be one number, one for each of the {x.shape[1]} components, or (cells, components),"
                f" not of shape {tuple(sigma.shape)}."
            )
        if not (sigma.isfinite() & (sigma > 0)).all():
            raise InputError(
                "The noise must be above 0 and finite everywhere; without noise there is nothing to remove."
            )
        return sigma

    def _scaling(self, x: Array, noise: Noise) -> Scaling:
        """Each component in units of its noise, which then is alike in all; else all by the spread of the first."""
        seen = torch.from_numpy(x).double()
        shift = seen.mean(0)
        scale = seen[:, 0].std() * torch.ones(x.shape[1])
        if self.preset == "ours" and isinstance(noise, Gaussian):
            sigma = torch.as_tensor(noise.sigma, dtype=torch.float64)
            scale = (sigma.square().mean(0) if sigma.ndim == 2 else sigma.square()).sqrt() * torch.ones(x.shape[1])
        return Scaling(shift.float(), scale.float())
