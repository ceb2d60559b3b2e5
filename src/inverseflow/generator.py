"""New clean data, though only noisy data was ever seen: a generator of the distribution that a denoiser recovered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .axes import Layout
from .checkpoint import prefixed, read_values, under, write_tensors
from .denoiser import Denoiser
from .engine import choose_device
from .errors import InputError, ModelFileError
from .header import FORMATS, check_keys, read_header
from .losses import squared
from .masking import fill as filled
from .methods import ConsistencyTraining, FlowMatching, Method
from .model_file import check_tensors, fill, said_of
from .nets import NetSpec
from .noise import Gaussian, Noise
from .patches import Patches, Rows, allowed_operations
from .posterior import TO_NORMAL
from .recipe import PRESETS, TABLE, choose_preset, default_net
from .replay import phase_of
from .samples import Scaling, read_samples
from .settings import Settings
from .tensors import normal_like
from .times import GrowingGrid
from .train import fit

SIZE = 64
AXES = {1: "SC", 2: "SCX", 3: "SCYX", 4: "SCZYX"}
MOST_VALUES = 2**26
"""Of one draw as a file describes it."""
NEEDED: dict[str, Any] = {
    "method": str,
    "net": {str: object},
    "shift": [float],
    "scale": [float],
    "axes": str,
    "shape": [int],
    "description": {str: object},
}
METHODS: dict[str, Callable[[], Method]] = {
    "flow": lambda: FlowMatching(TO_NORMAL, solver_steps=16),
    "consistency": lambda: ConsistencyTraining(TO_NORMAL, grid=GrowingGrid(10, 80), distance=squared),
}
TIME_UNIT = 0.15  # a small range of times lets a network learn all of them together from the start


@dataclass
class Generator:
    """`Generator.train(noisy, noise)` makes one, `sample` draws, `save` and `load` keep it."""

    kind: str
    model: nn.Module
    net: NetSpec
    scaling: Scaling
    axes: str
    shape: tuple[int, ...]
    description: dict[str, Any]

    @classmethod
    def train(
        cls,
        x1: Any,
        by: Denoiser | Noise | str | Callable[..., Any] | None,
        *,
        method: str = "flow",
        axes: str | None = None,
        nan: str = "refuse",
        size: int = SIZE,
        net: NetSpec | None = None,
        settings: Settings | None = None,
        preset: str = "auto",
        seed: int = 0,
        device: str = "auto",
        folder: str | Path | None = None,
        resume: bool = False,
        progress: bool = True,
    ) -> Generator:
        """Learn to draw clean data like that in noisy x1.

        by      a Denoiser of such data, or its noise: then a denoiser is trained first. None takes x1 as it is
        nan     "refuse" data with NaN or infinite values, or "mask" them
        method  "flow": an ODE, 32 passes of the network; "consistency": one pass, rougher
        size    images are drawn as squares (cubes) of this side
        """
        if method not in METHODS:
            raise InputError(f"method must be {' or '.join(METHODS)}, not {method!r}.")
        device = choose_device(device)
        preset = choose_preset(preset, device)
        where = Path(folder) if folder else None
        common: dict[str, Any] = {"seed": seed, "device": device, "resume": resume, "progress": progress}
        if by is not None and not isinstance(by, Denoiser):
            by = Denoiser.train(
                x1,
                by,
                axes=axes,
                nan=nan,
                estimate="flow",
                preset=preset,
                folder=where and where / "denoiser",
                **common,
            )
        images, layout = read_samples(x1, axes, nan)
        if isinstance(by, Denoiser):
            images = [
                by.denoise(image[None], estimate="flow", axes=_batch_axes(layout), nan=nan)[0] for image in images
            ]
        scaling = Scaling.of(images)
        images = [filled(scaling.onto(image[None], "cpu"))[0] for image in images]
        data = _data(images, size)
        spec = net or default_net(images, Gaussian(1.0), preset)
        chosen = METHODS[method]()
        fitted = fit(
            chosen.prepare(spec.build(seed), TIME_UNIT),
            chosen.loss,
            data,
            settings or _settings(images, preset),
            folder=where and where / "generator",
            phase=phase_of(chosen, spec, Gaussian(1.0)),
            title="generator",
            **common,
        )
        shape = tuple(data.draw(1, torch.Generator()).x.shape[1:])
        about = {"steps": fitted.steps, "seconds": round(fitted.seconds, 2), "seed": seed}
        return cls(method, fitted.model, spec, scaling, _batch_axes(layout), shape, about)

    @torch.no_grad()
    def sample(self, n: int = 16, *, size: int | Sequence[int] | None = None, seed: int = 0) -> Tensor:
        """(n, C, *S) or (n, D) new clean data; images of another size than trained on are possible."""
        if n < 1:
            raise InputError(f"How many samples? Give a number above 0, not {n}.")
        spatial = self.shape[1:]
        if size is not None:
            spatial = tuple([size] * len(spatial) if isinstance(size, int) else size)
        parameter, generator = next(self.model.parameters()), torch.Generator().manual_seed(seed)
        z = normal_like(torch.empty(n, self.shape[0], *spatial), generator)
        method, draws = METHODS[self.kind](), []
        for part in torch.split(z, max(1, 2**21 // max(1, z[0].numel()))):
            draws.append(self.scaling.undo(method.denoise(self.model, part.to(parameter.device))).cpu())
        return torch.cat(draws)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write everything into one safetensors file with a JSON header; no pickle."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise ModelFileError(f"{path} exists; choose another name, or let it be overwritten.")
        header = {
            "kind": "generator",
            "format": FORMATS["generator"],
            "version": __version__,
            "method": self.kind,
            "net": self.net.to_dict(),
            "shift": self.scaling.shift.tolist(),
            "scale": self.scaling.scale.tolist(),
            "axes": self.axes,
            "shape": list(self.shape),
            "description": self.description,
        }
        write_tensors(path, prefixed("model.", self.model.state_dict()), header)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Generator:
        path = Path(path)
        header = read_header(path, "generator")
        about = header.about
        check_keys(path, about, NEEDED, {})
        with said_of(path):
            shape, axes, method = tuple(about["shape"]), about["axes"], about["method"]
            if method not in METHODS:
                raise ModelFileError(f"its method {method[:40]!r} is neither {' nor '.join(METHODS)}")
            if not shape or min(shape) < 1 or math.prod(shape) > MOST_VALUES or axes != AXES.get(len(shape)):
                raise ModelFileError(f"it cannot draw samples of shape {shape[:6]} with axes {axes[:20]!r}")
            if not len(about["shift"]) == len(about["scale"]) == shape[0] or min(about["scale"]) <= 0:
                raise ModelFileError("its shift and scale are not those of its channels")
            spec = NetSpec.from_dict(about["net"])
            model = METHODS[method]().prepare(spec.outline(), TIME_UNIT)
            check_tensors({"model": model}, header.tensors)
            x = torch.empty(1, *shape, device="meta")
            if model(x, torch.empty(1, device="meta")).shape != x.shape:
                raise ModelFileError("its network does not fit its shape")
            fill(model, under("model.", read_values(path)))
            scaling = Scaling(torch.tensor(about["shift"]), torch.tensor(about["scale"]))
        model.to(choose_device(device)).requires_grad_(False)
        return cls(method, model, spec, scaling, axes, shape, about["description"])


def _batch_axes(layout: Layout) -> str:
    return f"SC{layout.spatial}"


def _data(images: list[Tensor], size: int) -> Rows | Patches:
    """Table rows, or crops; clean data may be flipped, but what is up stays up."""
    dims = images[0].ndim - 1
    if not dims:
        return Rows(torch.stack(images))
    mirrored = [
        (p, f) for p, f in allowed_operations(Gaussian(1.0), dims) if p == tuple(range(dims)) and not any(f[:-1])
    ]
    return Patches(images, size, mirrored)


def _settings(images: list[Tensor], preset: str) -> Settings:
    """Twice as long as a denoiser: a generator knows nothing at the start, where a denoiser knows x1."""
    settings = TABLE if images[0].ndim == 1 else PRESETS[preset]
    return replace(settings, steps=2 * settings.steps) if settings.steps else settings
