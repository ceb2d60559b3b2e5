"""What a user keeps: the networks, the noise, the scaling and the axes, in one object and one file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import __version__, tiling
from .axes import Layout, to_batch
from .checkpoint import prefixed, read_tensors, under, write_tensors
from .engine import choose_device
from .errors import InputError, ModelFileError, NoiseError
from .io.image import Image
from .methods import METHODS, Method, choose_method
from .nets import NetSpec
from .noise import Noise, Simulator, as_noise, from_dict
from .posterior import PosteriorMean, mean_is_free
from .process import Bridge, Process, noise_rms
from .recipe import as_data, choose_preset, default_net, default_patch, default_settings
from .replay import phase_of
from .samples import Scaling, check_against_noise, check_finite, read_samples, representative
from .settings import Settings
from .stopping import renoising
from .train import Fitted, as_function, fit

FORMAT = 1
ESTIMATES = ("mean", "flow")
TILE_OVERLAP = 64


@dataclass
class Denoiser:
    """A trained denoiser. `Denoiser.train(noisy, noise)` makes one, `denoise` applies it, `save` and `load` keep it."""

    method: Method
    flow: nn.Module
    mean: nn.Module | None
    noise: Noise
    scaling: Scaling
    axes: str
    channels: int
    description: dict[str, Any]
    history: dict[str, list[dict[str, float]]]

    @classmethod
    def train(
        cls,
        x1: Any,
        noise: Noise | str | Callable[..., Any],
        *,
        method: str | Callable[[Process], Method] = "icm",
        axes: str | None = None,
        net: NetSpec | nn.Module | None = None,
        settings: Settings | None = None,
        mean_settings: Settings | None = None,
        estimate: str = "mean",
        preset: str = "auto",
        max_seconds: float | None = None,
        max_steps: int | None = None,
        patch_size: int | None = None,
        augment: bool = True,
        scaling: Scaling | None = None,
        seed: int = 0,
        device: str = "auto",
        folder: str | Path | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> Denoiser:
        """Learn to denoise from noisy data alone.

        x1        noisy images (B, C, *S) or a table (B, D); any other order with `axes`; or a list of images
        noise     a noise model in data units, text such as "gaussian:sigma=25", or a function f(x0, generator) -> x1
        method    "icm" (default), "ifm", or a function that makes a Method from the bridge of the (scaled) noise
        net       a NetSpec, or any module called as net(x, t); by default an MLP or a U-Net that fits the device
        settings  steps or seconds, learning rate, ... of the first stage; mean_settings of the posterior mean
        preset    "fast", "balanced", "best": network and settings where none are given (at most max_seconds, max_steps)
        estimate  "mean" also trains the second stage; "flow" stops after the paper's map
        scaling   units for the network; by default the data gets mean 0 and standard deviation 1 in every channel
        folder    where checkpoints and metrics go; with resume=True an interrupted run goes on
        """
        _check_estimate(estimate)
        noise, device = as_noise(noise), choose_device(device)
        samples, layout = read_samples(x1, axes)
        check_against_noise(samples, noise)
        scaling = scaling or Scaling.of(samples)
        samples = [scaling.apply(sample[None])[0] for sample in samples]
        preset = choose_preset(preset, device)
        data = as_data(samples, noise, patch_size=patch_size or default_patch(samples, preset), augment=augment)
        chosen_for_us = settings is None and max_steps is None  # then the training may end when it has learned enough
        settings, mean_settings = default_settings(settings, mean_settings, samples, preset, max_seconds, max_steps)
        spec = net or default_net(samples, noise, preset)
        inner = scaling.carry(noise).to(device)
        some, their_numbers = representative(samples)
        rms = noise_rms(inner.select(their_numbers), some.to(device))
        chosen = choose_method(method)(Bridge(inner))
        model = chosen.prepare(spec.build(seed) if isinstance(spec, NetSpec) else spec, rms)

        def stage(name: str, title: str, start: nn.Module, of: Any, how: Settings, stage_seed: int) -> Fitted:
            where = Path(folder) / name if folder else None
            what = {"noise": noise.to_dict(), "data": scaling.fingerprint, "samples": len(samples)}
            common: dict[str, Any] = {"device": device, "resume": resume, "progress": progress, "identity": what}
            common |= {"watch": enough if name == "flow" else None, "phase": phase_of(of, spec, inner)}
            return fit(start, of.loss, data, how, seed=stage_seed, folder=where, title=title, **common)

        enough = renoising(chosen, inner, data, device) if chosen_for_us else None
        stages = {"flow": stage("flow", "recovering", model, chosen, settings, seed)}
        flow = stages["flow"].model
        if estimate == "mean" and not mean_is_free(chosen, flow, noise, some[:1].to(device)):
            second = PosteriorMean(chosen, as_function(flow, mean_settings, data, device), inner)
            start = copy.deepcopy(flow).requires_grad_(True)
            stages["mean"] = stage("mean", "posterior mean", start, second, mean_settings, seed + 1)
        description = {
            "method": method if isinstance(method, str) else getattr(method, "__qualname__", repr(method)),
            "net": spec.to_dict() if isinstance(spec, NetSpec) else {"kind": "custom"},
            "noise_rms": rms,
            "estimate": estimate,
            "seed": seed,
            "steps": {name: fitted.steps for name, fitted in stages.items()},
            "seconds": {name: round(fitted.seconds, 2) for name, fitted in stages.items()},
        }
        return cls(
            method=chosen,
            flow=flow,
            mean=stages["mean"].model if "mean" in stages else None,
            noise=noise,
            scaling=scaling,
            axes=layout.axes,
            channels=samples[0].shape[0],
            description=description,
            history={name: fitted.history for name, fitted in stages.items()},
        )

    def denoise(
        self,
        x1: Any,
        *,
        estimate: str | None = None,
        axes: str | None = None,
        tile_size: int | None = None,
        tile_overlap: int = TILE_OVERLAP,
    ) -> Any:
        """The clean data, in the shape, order and kind (tensor, numpy or Image) of x1.

        estimate   "mean": the posterior mean, least error; "flow": the paper's map, looks like clean data. Default: as
                   trained.
        tile_size  images larger than this go through the network in tiles; by default as large as the memory suggests
        """
        if isinstance(x1, list):
            return [self.denoise(image, estimate=estimate, axes=axes) for image in x1]
        if axes is None and not isinstance(x1, Image) and np.ndim(x1) == len(self.axes):
            axes = self.axes
        x, layout = to_batch(x1, axes)
        check_finite(x, "The data")
        if x.shape[1] != self.channels or len(layout.spatial) != len(Layout(self.axes, ()).spatial):
            raise InputError(
                f"This model was trained on {self._shape_words()}, but the data has {x.shape[1]} channels and "
                f"axes {layout.axes}; give matching data or train a new model."
            )
        function = self.function(estimate)
        tile, batch, tile_overlap = self.tile(x.shape[2:], tile_size, tile_overlap)
        if tile == tuple(x.shape[2:]):
            parts = [function(part) for part in torch.split(x, batch)]
        else:
            parts = [
                tiling.apply(function, y, tile=tile, overlap=tile_overlap, multiple=self.multiple, batch=batch)[None]
                for y in x
            ]
        result = layout.restore(torch.cat(parts))
        if isinstance(x1, Image):
            return x1.replace(result.numpy())
        return result if isinstance(x1, Tensor) else result.numpy()

    def function(self, estimate: str | None = None) -> Callable[[Tensor], Tensor]:
        """What `denoise` does to a batch (B, C, *S) or (B, D) in memory, small enough for one network pass."""
        estimate = estimate or self.description["estimate"]
        _check_estimate(estimate)
        device = next(self.flow.parameters()).device
        return lambda x1: self._denoise_batch(x1.to(device), estimate).cpu()

    @property
    def multiple(self) -> int:
        """Tiles start at multiples of this, where the network's own grid has a corner."""
        return int(getattr(getattr(self.flow, "net", None), "multiple", 1))

    def tile(
        self, shape: Sequence[int], tile_size: int | None = None, overlap: int = TILE_OVERLAP
    ) -> tuple[tuple[int, ...], int, int]:
        """The tile of an image of this shape, how many go through the network together, and how far they overlap."""
        net = getattr(self.flow, "net", None)
        features = getattr(net, "features_per_pixel", 64) * (self.channels if getattr(net, "separate", False) else 1)
        pixels = tiling.pixels_at_once(next(self.flow.parameters()).device, features)
        return tiling.choose_tile(shape, pixels, self.multiple, tile_size, overlap)

    @torch.no_grad()
    def _denoise_batch(self, x1: Tensor, estimate: str) -> Tensor:
        y1, y0 = self.scaling.apply(x1.float()), None
        if estimate == "mean":
            # The mean network is the map's twin, so the map's method applies it: one pass at t = 1, then the domain.
            y0 = self.method.denoise(self.mean, y1) if self.mean is not None else self.method.mean(self.flow, y1)
            if y0 is None and not isinstance(self.noise, Simulator):
                raise InputError(
                    "This model was trained for the estimate flow and has no posterior mean; ask it for the estimate "
                    "flow, or train again."
                )
        if y0 is None:
            y0 = self.method.denoise(self.flow, y1)
        return self.scaling.undo(y0)

    def _shape_words(self) -> str:
        return f"{self.channels} {'features' if self.axes == 'SC' else 'channels'} with axes {self.axes}"

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write everything into one safetensors file with a JSON header; no pickle."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise ModelFileError(f"{path} exists; choose another name, or let it be overwritten.")
        header = {
            "kind": "model",
            "format": FORMAT,
            "version": __version__,
            "noise": self.noise.to_dict(),
            "axes": self.axes,
            "channels": self.channels,
            "shift": self.scaling.shift.tolist(),
            "scale": self.scaling.scale.tolist(),
            "history": self.history,
            **self.description,
        }
        tensors = prefixed("flow.", self.flow.state_dict())
        if self.mean is not None:
            tensors |= prefixed("mean.", self.mean.state_dict())
        write_tensors(path, tensors, header)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        net: nn.Module | None = None,
        method: Callable[[Process], Method] | None = None,
        noise: Noise | None = None,
        device: str = "auto",
    ) -> Denoiser:
        """Read a saved model. A network, method or noise that was your own Python code must be handed in again."""
        tensors, header = read_tensors(Path(path), "model")
        if header.get("format") != FORMAT:
            raise ModelFileError(
                f"{path} has the model format {header.get('format')!r}; this inverseflow "
                f"{__version__} reads {FORMAT}, so update inverseflow."
            )
        try:
            noise = noise or from_dict(header["noise"])
            scaling = Scaling(torch.tensor(header["shift"]), torch.tensor(header["scale"]))
            process = Bridge(scaling.carry(noise))
            if method is None and header["method"] not in METHODS:
                raise ModelFileError(f"its method {header['method']} was your own code, so pass it again as method=")
            chosen = (method or METHODS[header["method"]])(process)
            module = net or NetSpec.from_dict(header["net"]).build()
            flow = chosen.prepare(module, header["noise_rms"])
            flow.load_state_dict(under("flow.", tensors))
            mean = copy.deepcopy(flow) if any(name.startswith("mean.") for name in tensors) else None
            if mean is not None:
                mean.load_state_dict(under("mean.", tensors))
            keys = ("method", "net", "noise_rms", "estimate", "seed", "steps", "seconds")
            model = cls(
                method=chosen,
                flow=flow,
                mean=mean,
                noise=noise,
                scaling=scaling,
                axes=header["axes"],
                channels=header["channels"],
                description={k: header[k] for k in keys},
                history=header["history"],
            )
        except (KeyError, TypeError, AttributeError, RuntimeError, NoiseError, ModelFileError) as error:
            raise ModelFileError(f"{path} cannot be used as it is: {error}.") from error
        return model.to(choose_device(device))

    def to(self, device: str) -> Denoiser:
        """The same denoiser on another device."""
        mean = self.mean.to(device).requires_grad_(False) if self.mean is not None else None
        return replace(self, flow=self.flow.to(device).requires_grad_(False), mean=mean)


def denoise(x1: Any, noise: Noise | str | Callable[..., Any], *, axes: str | None = None, **arguments: Any) -> Any:
    """Train on the noisy data and denoise it, in one call; `arguments` are those of `Denoiser.train`."""
    return Denoiser.train(x1, noise, axes=axes, **arguments).denoise(x1, axes=axes)


def _check_estimate(estimate: str) -> None:
    if estimate not in ESTIMATES:
        raise InputError(f"estimate must be {' or '.join(ESTIMATES)}, not {estimate!r}.")
