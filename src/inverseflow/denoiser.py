"""What a user keeps: the networks, the noise, the scaling and the axes, in one object and one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import sweeps
from .calibration import check_level
from .engine import choose_device
from .errors import InputError, ModelFileError, NoiseError, TrainingDiverged
from .learning import Stages, Uncertainty, learn_flow, learn_posterior
from .methods import Method, choose_method
from .model_file import read_model, write_model
from .nets import NetSpec
from .noise import Noise, Simulator, as_noise
from .patches import Source
from .posterior import mean_is_free
from .process import Bridge, Process, noise_rms
from .recipe import (
    SAMPLER_SHARE,
    SPREAD_SHARE,
    as_data,
    choose_preset,
    default_net,
    default_patch,
    default_settings,
    posterior_nets,
)
from .samples import Scaling, check_against_noise, is_array, read_samples, representative, without_gaps
from .settings import Settings
from .stopping import renoising
from .team import current_team
from .tiling import TILE_OVERLAP
from .trained import ESTIMATES, Trained

NOTHING = 1e-6  # of the spread of the data: what single precision hardly shows
LAST_GOOD = "last_good.safetensors"  # in the folder of a training that diverged


@dataclass
class Denoiser(Trained):
    """A trained denoiser. `Denoiser.train(noisy, noise)` makes one, `denoise` applies it, `save` and `load` keep it."""

    @classmethod
    def train(
        cls,
        x1: Any,
        noise: Noise | str | Callable[..., Any],
        *,
        method: str | Callable[[Process], Method] = "auto",
        axes: str | None = None,
        net: NetSpec | nn.Module | None = None,
        settings: Settings | None = None,
        mean_settings: Settings | None = None,
        estimate: str = "mean",
        std: bool = True,
        samples: bool = False,
        rounds: int = 1,
        preset: str = "auto",
        max_seconds: float | None = None,
        max_steps: int | None = None,
        accumulate: int = 1,
        patch_size: int | None = None,
        augment: bool = True,
        nan: str = "refuse",
        scaling: Scaling | None = None,
        source: Source | None = None,
        seed: int = 0,
        device: str = "auto",
        folder: str | Path | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> Denoiser:
        """Learn to denoise from noisy data alone.

        x1        noisy images (B, C, *S) or a table (B, D); any other order with `axes`; or a list of images
        noise     a noise model in data units, text such as "gaussian:sigma=25", or a function f(x0, generator) -> x1
        method    "icm", "ifm", or a function that makes a Method from the bridge of the (scaled) noise; "auto" is ifm
                  for images of which sweeps are little work, else icm
        net       a NetSpec, or any module called as net(x, t); by default an MLP or a U-Net that fits the device
        settings  steps or seconds, learning rate, ... of the first stage; mean_settings of the posterior mean
        preset    "fast", "balanced", "best": network and settings where none are given (at most max_seconds, max_steps;
                  batches go through the network in `accumulate` parts)
        estimate  "mean" also trains the second stage; "flow" stops after the paper's map
        std       also learn error bars; samples: also learn to draw other possible truths
        rounds    2 and more learn mean and error bars again from draws of the one before, as the EM algorithm does
        nan       "refuse" data with NaN or infinite values, or "mask" them: nothing is learned from what is not there
        scaling   units for the network; by default the data gets mean 0 and standard deviation 1 in every channel
        source    files to learn from while they are read, more than memory holds (`Files`); x1 is then a part of them
        folder    where checkpoints and metrics go; with resume=True an interrupted run goes on
        """
        if estimate not in ESTIMATES:
            raise InputError(f"A training's estimate must be mean or flow, not {estimate!r}.")
        noise, device = as_noise(noise), choose_device(device)
        if samples and (estimate != "mean" or isinstance(noise, Simulator)):
            raise InputError("Draws need the estimate mean and a noise, not a deterministic transformation.")
        images, layout = read_samples(x1, axes, nan)
        check_against_noise(images, noise)
        scaling = scaling or Scaling.of(images)
        images = [scaling.onto(image[None], "cpu")[0] for image in images]
        images = without_gaps(images, scaling.carry(noise), seed)
        preset = choose_preset(preset, device)
        patch_size = patch_size or default_patch(images, preset)
        data = as_data(images, noise, patch_size=patch_size, augment=augment, source=source, scaling=scaling)
        chosen_for_us = settings is None and max_steps is None  # then the training may end when it has learned enough
        std = std and estimate == "mean" and not isinstance(noise, Simulator)
        more = rounds * (SPREAD_SHARE * std + SAMPLER_SHARE * (samples or rounds > 1)) + (rounds - 1)
        spec = net or default_net(images, noise, preset)
        inner = scaling.carry(noise).to(device)
        some, their_numbers = representative(images)
        rms = noise_rms(inner.select(their_numbers), some.to(device))
        if not rms:
            raise NoiseError(
                f"{type(noise).__name__} noise changes nothing in these data; check its numbers and units."
            )
        length = partial(
            default_settings, settings, mean_settings, images, preset, max_seconds, max_steps,
            more=more, accumulate=accumulate,
        )  # fmt: skip
        if method == "auto":
            one_stage = estimate == "mean" and rounds == 1 and not mean_settings and not isinstance(noise, Simulator)
            method = "ifm" if one_stage and sweeps.pay(data, length(free_mean=True)[0]) else "icm"
        chosen = choose_method(method)(Bridge(inner))
        start = chosen.prepare(spec.build(seed) if isinstance(spec, NetSpec) else spec, rms).to(device)
        free = mean_is_free(chosen, start, noise, some[:1].to(device))
        _check_rounds(rounds, free)
        settings, mean_settings = length(free_mean=free and estimate == "mean")
        identity = {"noise": noise.to_dict(), "data": scaling.fingerprint, "samples": len(images)}
        stages = Stages(data, inner, spec, device, seed, Path(folder) if folder else None, resume, progress, identity)
        enough = renoising(chosen, inner, data, device) if chosen_for_us else None
        nets = posterior_nets(images, noise, preset)

        def made(flow: nn.Module, mean: nn.Module | None, found: Uncertainty, estimate: str) -> Denoiser:
            done = stages.done
            description: dict[str, Any] = {
                "method": method if isinstance(method, str) else getattr(method, "__qualname__", repr(method)),
                "net": spec.to_dict() if isinstance(spec, NetSpec) else {"kind": "custom"},
                "noise_rms": rms,
                "estimate": estimate,
                "seed": seed,
                "steps": {name: fitted.steps for name, fitted in done.items()},
                "seconds": {name: round(fitted.seconds, 2) for name, fitted in done.items()},
                "nets": {name: nets[name].to_dict() for name in nets if getattr(found, name) is not None},
            }
            if found.calibration:
                description["coverage"] = found.calibration.coverage
            history = {name: fitted.history for name, fitted in done.items()}
            parts = (noise, scaling, layout.axes, images[0].shape[0], description, history, found)
            return cls(chosen, flow, mean, *parts)

        try:
            flow = learn_flow(stages, chosen, start, settings, enough, free_mean=free)
            if estimate == "flow":
                return made(flow, None, Uncertainty(), estimate)
            mean, found = learn_posterior(
                stages, chosen, flow, rms, nets, settings, mean_settings,
                free_mean=free, std=std, samples=samples, rounds=rounds,
            )  # fmt: skip
            return made(flow, mean, found, estimate)
        except TrainingDiverged as error:
            raise _with_what_is_left(error, stages, made) from error

    def denoise(
        self,
        x1: Any,
        *,
        estimate: str | float | None = None,
        return_std: bool = False,
        axes: str | None = None,
        nan: str = "refuse",
        tile_size: int | None = None,
        tile_overlap: int = TILE_OVERLAP,
    ) -> Any:
        """The clean data, in the shape, order and kind (tensor, numpy or Image) of x1; with its standard deviation if
        return_std.

        estimate   "mean": the posterior mean, least error; "flow": the paper's map, looks like clean data; a number
                   from 0 to 1 lies between the two. Default: as trained.
        nan        "refuse" data with NaN or infinite values, or "mask" them: they are NaN in what comes out
        tile_size  images larger than this go through the network in tiles; by default as large as the memory suggests
        """
        options: dict[str, Any] = {"axes": axes, "nan": nan, "tile_size": tile_size, "tile_overlap": tile_overlap}
        if isinstance(x1, list) and not is_array(x1):
            results = [self.denoise(image, estimate=estimate, return_std=return_std, **options) for image in x1]
            return tuple(map(list, zip(*results, strict=True))) if return_std else results
        found = self._everywhere(self.function(estimate, std=return_std), x1, **options)
        return tuple(found) if return_std else found[0]

    def quantiles(
        self, x1: Any, probabilities: Sequence[float], *, axes: str | None = None, nan: str = "refuse"
    ) -> list[Any]:
        """For every value, what the clean one is below with these probabilities."""
        return self._everywhere(self.function(quantiles=probabilities), x1, axes=axes, nan=nan)[1:]

    def interval(self, x1: Any, level: float = 0.9, *, axes: str | None = None, nan: str = "refuse") -> tuple[Any, Any]:
        """For every value, the bounds between which the clean one lies with this probability.

        `description["coverage"]` tells how many really did, of simulated values that no training has seen.
        """
        low, high = self.quantiles(x1, check_level(level), axes=axes, nan=nan)
        return low, high

    def sample(self, x1: Any, n: int = 8, *, seed: int = 0, axes: str | None = None, nan: str = "refuse") -> Any:
        """n other clean data that x1 could come from: (n, ...) of the shape of x1. Their mean is near the estimate
        "mean", their differences show what is not known. One of them alone has twice its squared error.
        """
        if n < 1:
            raise InputError(f"How many samples? Give a number above 0, not {n}.")
        draws = []
        for number in range(n):
            generator = torch.Generator().manual_seed(1_000_003 * seed + number)
            draws += self._everywhere(self.sampler(), x1, axes=axes, nan=nan, beside=generator)
        return torch.stack(draws) if isinstance(x1, Tensor) else np.stack([np.asarray(draw) for draw in draws])

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write everything into one safetensors file with a JSON header; no pickle."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise ModelFileError(f"{path} exists; choose another name, or let it be overwritten.")
        write_model(path, self)

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
        return cls(**read_model(Path(path), net, method, noise)).to(choose_device(device))


def denoise(
    x1: Any,
    noise: Noise | str | Callable[..., Any],
    *,
    axes: str | None = None,
    nan: str = "refuse",
    **arguments: Any,
) -> Any:
    """Train on the noisy data and denoise it, in one call; `arguments` are those of `Denoiser.train`."""
    return Denoiser.train(x1, noise, axes=axes, nan=nan, **arguments).denoise(x1, axes=axes, nan=nan)


def _with_what_is_left(error: TrainingDiverged, stages: Stages, made: Callable[..., Denoiser]) -> TrainingDiverged:
    """The same error with the stages that ended well, or of the first one its last good weights; with a folder, they
    are also there.
    """
    if "flow" not in stages.done:
        if error.fitted is None:
            return error
        stages.done["flow"] = error.fitted
    left = made(stages.done["flow"].model, None, Uncertainty(), "flow")
    words = f"the last good weights, of step {left.description['steps']['flow']} of the map,"
    where = f"{words} are the denoiser of this exception"
    if stages.folder:
        path = stages.folder / LAST_GOOD
        if current_team().leads:
            left.save(path, overwrite=True)
        where = f"{words} are in {path}"
    again = TrainingDiverged(f"{str(error).removesuffix('.')}; {where}.")
    again.fitted, again.denoiser = error.fitted, left
    return again


def _check_rounds(rounds: int, free_mean: bool) -> None:
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, not {rounds}.")
    if rounds > 1 and free_mean:
        raise InputError("Several rounds need the method icm and a noise, not a deterministic transformation.")
