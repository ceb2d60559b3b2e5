"""The file of a trained denoiser: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .axes import LETTERS, Layout
from .calibration import LEVELS, PROBABILITIES, Calibration
from .checkpoint import prefixed, read_values, under, write_tensors
from .errors import InputError, ModelFileError, NoiseError
from .header import FORMATS, check_keys, read_header
from .learning import Uncertainty
from .methods import METHODS, Method
from .nets import NetSpec
from .nets.wrappers import ResidualFlow, Spread
from .noise import Noise, from_dict
from .noise.base import stages
from .process import Bridge, Process
from .samples import Scaling

KEYS: dict[str, Any] = {
    "method": str,
    "net": {str: object},
    "noise_rms": float,
    "estimate": str,
    "seed": int,
    "steps": {str: int},
    "seconds": {str: float},
}
"""What the header says of the training, and its type."""
NEEDED: dict[str, Any] = KEYS | {
    "noise": {str: object},
    "axes": str,
    "channels": int,
    "shift": [float],
    "scale": [float],
    "history": {str: [{str: float}]},
}
OPTIONAL: dict[str, Any] = {"nets": {str: {str: object}}, "coverage": {str: float}}
WRAPPERS: dict[str, type[nn.Module]] = {"spread": Spread, "sampler": ResidualFlow}
TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
TYPES |= {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def write_model(path: Path, model: Any) -> None:
    """`model` is a Denoiser."""
    found: Uncertainty = model.uncertainty
    header = {
        "kind": "model",
        "format": FORMATS["model"],
        "version": __version__,
        "noise": model.noise.to_dict(),
        "axes": model.axes,
        "channels": model.channels,
        "shift": model.scaling.shift.tolist(),
        "scale": model.scaling.scale.tolist(),
        "history": model.history,
        **model.description,
    }
    networks = {"flow": model.flow, "mean": model.mean, "spread": found.spread, "sampler": found.sampler}
    tensors: dict[str, Tensor] = {}
    for name, network in networks.items():
        tensors |= prefixed(f"{name}.", network.state_dict()) if network is not None else {}
    if found.calibration is not None:
        tensors |= prefixed("calibration.", found.calibration.tensors())
    write_tensors(path, tensors, header)


def read_model(
    path: Path,
    net: nn.Module | None = None,
    method: Callable[[Process], Method] | None = None,
    noise: Noise | None = None,
) -> dict[str, Any]:
    """The parts of a Denoiser. A network, method or noise that was the user's own Python code must be handed in."""
    header = read_header(path, "model")
    about = header.about
    check_keys(path, about, NEEDED, OPTIONAL)
    with said_of(path):
        _check_numbers(about)
        noise = noise or from_dict(about["noise"])
        scaling = Scaling(torch.tensor(about["shift"]), torch.tensor(about["scale"]))
        if method is None and about["method"] not in METHODS:
            raise ModelFileError(f"its method {about['method'][:80]} was your own code, so pass it again as method=")
        chosen = (method or METHODS[about["method"]])(Bridge(scaling.carry(noise)))
        networks = {"flow": chosen.prepare(net or NetSpec.from_dict(about["net"]).outline(), about["noise_rms"])}
        if any(name.startswith("mean.") for name in header.tensors):
            networks["mean"] = copy.deepcopy(networks["flow"])
        for name, spec in about.get("nets", {}).items():
            if name not in WRAPPERS:
                raise ModelFileError(f"there is no part of a model called {name[:40]!r}")
            networks[name] = WRAPPERS[name](NetSpec.from_dict(spec).outline(), about["noise_rms"], 1.0)
        table = {name: kind for name, kind in header.tensors.items() if name.startswith("calibration.")}
        check_tensors(networks, {name: kind for name, kind in header.tensors.items() if name not in table})
        _check_table(table, about, networks)
        _try(noise, scaling, networks, about, outlined=net is None)
        tensors = read_values(path)
        for name, network in networks.items():
            fill(network, under(f"{name}.", tensors))
        calibration = None
        if table:
            calibration = Calibration(**under("calibration.", tensors), coverage=about["coverage"])
    return {
        "method": chosen,
        "flow": networks["flow"],
        "mean": networks.get("mean"),
        "noise": noise,
        "scaling": scaling,
        "axes": about["axes"],
        "channels": about["channels"],
        "description": {key: about[key] for key in (*KEYS, *OPTIONAL) if key in about},
        "history": about["history"],
        "uncertainty": Uncertainty(networks.get("spread"), calibration, networks.get("sampler")),
    }


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    """What is wrong in a file, as a sentence about it. The networks themselves say what does not fit together."""
    try:
        yield
    except (ModelFileError, NoiseError, InputError, RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, ModelFileError) and str(path) in str(error):
            raise
        words = str(error).partition("\n")[0].rstrip(". ")
        raise ModelFileError(f"{path} cannot be used as it is: {words}.") from error


def check_tensors(networks: Mapping[str, nn.Module], found: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """The file has the weights of these networks, in their shapes, and nothing else; none of them is read for that."""
    wanted = {
        f"{name}.{key}": (TYPES.get(values.dtype, ""), tuple(values.shape))
        for name, network in networks.items()
        for key, values in network.state_dict().items()
    }
    for name in wanted.keys() - found.keys():
        raise ModelFileError(f"the weights {name} of its network are not in it")
    for name, (kind, shape) in found.items():
        if name not in wanted:
            raise ModelFileError(f"its weights {name[:80]} belong to no network of it")
        if (kind, shape) != wanted[name]:
            raise ModelFileError(
                f"its weights {name} are {kind} {shape}, but its network takes {' '.join(map(str, wanted[name]))}"
            )


def fill(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give an outline its weights; a network of the user's own has memory for them already."""
    outline = any(values.is_meta for values in network.state_dict().values())
    network.load_state_dict(weights, assign=outline)


def _check_numbers(about: dict[str, Any]) -> None:
    """What the types of the header's values do not tell."""
    channels, axes = about["channels"], about["axes"]
    layout = Layout(axes[:6], ())
    if len(set(axes)) < len(axes) or set(axes) - set(LETTERS) or layout.spatial not in ("", "X", "YX", "ZYX"):
        raise ModelFileError(f"there are no axes {axes[:20]!r}")
    if not 1 <= channels <= 2**20 or not len(about["shift"]) == len(about["scale"]) == channels:
        raise ModelFileError(f"it has {channels} channels, but shift and scale of other numbers")
    if min(about["scale"]) <= 0 or about["noise_rms"] <= 0:
        raise ModelFileError("its scale and the size of its noise must be greater than 0")
    if about["estimate"] not in ("mean", "flow"):
        raise ModelFileError(f"its estimate {about['estimate'][:20]!r} is neither mean nor flow")
    if not all(level in map("{:g}".format, LEVELS) for level in about.get("coverage", {})):
        raise ModelFileError("the levels of its intervals are not those of inverseflow")
    if not all({"step", "loss"} <= row.keys() for rows in about["history"].values() for row in rows):
        raise ModelFileError("a row of its history lacks the step or the loss")


def _check_table(table: dict[str, Any], about: dict[str, Any], networks: dict[str, nn.Module]) -> None:
    """The calibration of the error bars is there if they are, and has the shapes that `Calibration` says."""
    if not table and "spread" not in networks:
        return
    groups = next((shape[:1] for _, shape in table.values()), (0,))
    shapes = {"predicted": groups, "ratio": groups, "quantiles": (*groups, len(PROBABILITIES))}
    wanted = {f"calibration.{name}": ("F32", shape) for name, shape in shapes.items()}
    if table != wanted or groups[0] < 2 or "coverage" not in about:
        raise ModelFileError("the table that calibrates its error bars is not complete")


def _try(
    noise: Noise, scaling: Scaling, networks: dict[str, nn.Module], about: dict[str, Any], *, outlined: bool
) -> None:
    """Do networks, noise, axes and channels fit together? Told without memory, by outlines alone."""
    dims = len(Layout(about["axes"], ()).spatial)
    zeros = torch.zeros(1, about["channels"], *(1,) * dims)
    values = [getattr(stage, name) for stage in stages(noise) for name in stage.parameters]
    lengths = {value.shape[-1] for value in values if isinstance(value, Tensor)}
    if lengths - {1, about["channels"]} or scaling.carry(noise).project(zeros).shape != zeros.shape:
        raise ModelFileError(f"its noise is not one for {about['channels']} channels")
    x, t = torch.empty(2, about["channels"], *(8,) * dims, device="meta"), torch.empty(2, device="meta")
    shown = {"flow": (x, t), "mean": (x, t), "spread": (x, x), "sampler": (x, t, x, x, x)}
    for name, network in networks.items():
        if (outlined or name not in ("flow", "mean")) and network(*shown[name]).shape != x.shape:
            raise ModelFileError(f"its network {name} does not give what it is given")
