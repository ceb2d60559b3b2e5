"""The file of a trained denoiser: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__
from .calibration import Calibration
from .checkpoint import prefixed, read_tensors, under, write_tensors
from .errors import ModelFileError, NoiseError
from .learning import Uncertainty
from .methods import METHODS, Method
from .nets import NetSpec
from .nets.wrappers import ResidualFlow, Spread
from .noise import Noise, from_dict
from .process import Bridge, Process
from .samples import Scaling

FORMAT = 1
KEYS = ("method", "net", "noise_rms", "estimate", "seed", "steps", "seconds")
WRAPPERS: dict[str, type[nn.Module]] = {"spread": Spread, "sampler": ResidualFlow}


def write_model(path: Path, model: Any) -> None:
    """`model` is a Denoiser."""
    found: Uncertainty = model.uncertainty
    header = {
        "kind": "model",
        "format": FORMAT,
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
    tensors, header = read_tensors(path, "model")
    if header.get("format") != FORMAT:
        raise ModelFileError(
            f"{path} has the model format {header.get('format')!r}; this inverseflow "
            f"{__version__} reads {FORMAT}, so update inverseflow."
        )
    try:
        noise = noise or from_dict(header["noise"])
        scaling = Scaling(torch.tensor(header["shift"]), torch.tensor(header["scale"]))
        if method is None and header["method"] not in METHODS:
            raise ModelFileError(f"its method {header['method']} was your own code, so pass it again as method=")
        chosen = (method or METHODS[header["method"]])(Bridge(scaling.carry(noise)))
        flow = chosen.prepare(net or NetSpec.from_dict(header["net"]).build(), header["noise_rms"])
        flow.load_state_dict(under("flow.", tensors))
        mean = copy.deepcopy(flow) if any(name.startswith("mean.") for name in tensors) else None
        if mean is not None:
            mean.load_state_dict(under("mean.", tensors))
        return {
            "method": chosen,
            "flow": flow,
            "mean": mean,
            "noise": noise,
            "scaling": scaling,
            "axes": header["axes"],
            "channels": header["channels"],
            "description": {key: header[key] for key in (*KEYS, "nets", "coverage") if key in (*KEYS, *header)},
            "history": header["history"],
            "uncertainty": _uncertainty(tensors, header),
        }
    except (KeyError, TypeError, AttributeError, RuntimeError, NoiseError, ModelFileError) as error:
        raise ModelFileError(f"{path} cannot be used as it is: {error}.") from error


def _uncertainty(tensors: dict[str, Tensor], header: dict[str, Any]) -> Uncertainty:
    networks: dict[str, nn.Module] = {}
    for name, spec in header.get("nets", {}).items():
        networks[name] = WRAPPERS[name](NetSpec.from_dict(spec).build(), header["noise_rms"], 1.0)
        networks[name].load_state_dict(under(f"{name}.", tensors))
    table = under("calibration.", tensors)
    calibration = Calibration(**table, coverage=header["coverage"]) if table else None
    return Uncertainty(networks.get("spread"), calibration, networks.get("sampler"))
