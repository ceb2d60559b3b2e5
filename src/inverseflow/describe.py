"""Words and numbers about images, noises and models: for `info`, the plan of a dry run, the page of a result."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import __version__, generator, model_file, state
from .audit import Audit
from .denoiser import Denoiser
from .engine import choose_device
from .estimate.levels import find_levels
from .header import FORMATS, Header, check_keys, read_header
from .io import Image
from .io.image import printable
from .io.lazy import LazyArray
from .masking import count_missing
from .nets import count_parameters
from .noise import CorrelatedGaussian, Noise, from_dict
from .noise.base import Composition, stages
from .noise.words import in_words
from .recipe import MEAN_SHARE, PRESETS, SPREAD_SHARE, choose_preset
from .report import Report

SHOWN = 4096  # pixels; of a larger plane the page shows the middle
PLANES = 4096  # at most that `info` looks at
SCANNED = 2**24  # values that `info` looks at; of larger images every n-th plane
SAME_VIEW = 0.9  # correlation of the 8 x 8 means of two frames above which they show one view


def facts(image: Image) -> dict[str, Any]:
    """How a file was understood."""
    planes = _planes(image)
    values = sum(p.size for p in planes)
    known = np.concatenate([p[np.isfinite(p)] for p in planes])
    low, high = (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)
    bottom, top = (int((known == bound).sum()) / values for bound in (low, high))
    missing = values - known.size
    levels = find_levels(planes)
    sizes = {
        letter: f"{size:.6g} {image.units.get(letter, '')}".strip()
        for letter, size in image.pixel_size.items()
        if letter in image.axes
    }
    found = {
        "kind": image.kind,
        "shape": " x ".join(map(str, image.shape)),
        "axes": image.axes,
        "pixel_size": ", ".join(f"{letter} {size}" for letter, size in sizes.items()) or "not in the file",
        "channels": ", ".join(image.channel_names) or None,
        "dtype": str(image.source_dtype),
        "range": f"{low:g} to {high:g}" + ("" if values == math.prod(image.shape) else " (of a part)"),
        "at_the_ends": f"{100 * bottom:.3g} % of the values at {low:g}, {100 * top:.3g} % at {high:g}"
        + ("" if levels.low is None and levels.high is None else ": clipped"),
        "missing": f"{missing} of {values} values are NaN or infinite; --nan mask leaves them out" if missing else None,
        "repeated_frames": _repeats(image),
    }
    return {name: value for name, value in found.items() if value is not None}


def trained_facts(path: Path) -> dict[str, Any]:
    """What a model, a generator or a checkpoint is; its header is read, none of its weights."""
    header = read_header(path, *FORMATS)
    about, kind = header.about, header.about["kind"]
    found: dict[str, Any] = {"kind": kind, "format": about.get("format", 1), "version": about.get("version")}
    if kind == "checkpoint":
        check_keys(path, about, state.NEEDED, {"hurried": object})
        return found | {"step": about["step"], "seconds": round(about["elapsed"], 1)} | _weights(header)
    if kind == "generator":
        check_keys(path, about, generator.NEEDED, {})
        found |= {"shape": " x ".join(map(str, about["shape"])), "axes": about["axes"], "method": about["method"]}
        return (
            found | {name: about["description"].get(name) for name in ("steps", "seconds", "seed")} | _weights(header)
        )
    check_keys(path, about, model_file.NEEDED, model_file.OPTIONAL)
    with model_file.said_of(path):
        found["noise"] = in_words(from_dict(about["noise"]))
    found |= {name: about[name] for name in ("axes", "channels", "method", "estimate")} | _weights(header)
    found |= {name: about[name] for name in ("steps", "seconds", "seed")}
    return found | {"coverage": about["coverage"]} if "coverage" in about else found


def _weights(header: Header) -> dict[str, dict[str, int]]:
    """How many numbers each network has."""
    counts: dict[str, int] = {}
    for name, (_, shape) in header.tensors.items():
        part = name.partition(".")[0]
        if part not in ("calibration", "optimizer", "generator", "renewed_by"):
            counts[part] = counts.get(part, 0) + math.prod(shape)
    return {"weights": counts}


def in_a_line(value: Any) -> str:
    """A fact for the terminal, whoever wrote it."""
    if isinstance(value, dict):
        return printable(
            ", ".join(f"{name} {part:,}" if isinstance(part, int) else f"{name} {part}" for name, part in value.items())
        )
    return printable(value)


def training(model: Denoiser) -> dict[str, Any]:
    keys = ("method", "estimate", "seed", "steps")
    return {"noise": in_words(model.noise)} | {key: model.description[key] for key in keys}


def cost(
    data: Sequence[Tensor],
    noise: Noise,
    axes: str,
    preset: str,
    device: str,
    max_seconds: float | None = None,
    max_steps: int | None = None,
    nan: str = "refuse",
) -> dict[str, str]:
    """Time and memory of a training, from a few steps of it."""
    preset = choose_preset(preset, choose_device(device))
    settings = PRESETS[preset]
    trial = replace(settings, steps=6 if choose_device(device) == "cpu" else 60, log_every=1)
    model = Denoiser.train(
        list(data),
        noise,
        axes=axes,
        nan=nan,
        preset=preset,
        settings=trial,
        method="icm",
        estimate="flow",
        device=device,
        progress=False,
    )
    rate = max(row["steps_per_second"] for row in model.history["flow"])
    steps = max_steps or settings.steps
    assert steps is not None
    seconds = min((1 + MEAN_SHARE[preset] + SPREAD_SHARE) * steps / rate, max_seconds or np.inf)
    parameters = count_parameters(model.flow)
    size = sum(x.numel() for x in data) * 4 + parameters * 4 * 8
    return {
        "preset": preset,
        "network": f"{parameters / 1e6:.2f} M parameters",
        "memory": f"about {(size / 2**20 + 600):.0f} MB",  # 600: the libraries, and the layers of a batch
        "time": f"about {seconds:.0f} s of training, {rate:.1f} steps/s",
    }


def report(
    title: str,
    before: Image,
    after: Image,
    model: Denoiser | None,
    command: str,
    audit: Audit | None = None,
    std: Image | None = None,
) -> Report:
    """The page of a result; of planes too large for memory, their middle."""
    pictures, spread = (before.data, after.data), None if std is None else std.data
    made = {
        "command": command,
        "inverseflow": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    missing, _ = count_missing(before.data)
    if missing:
        made["masked"] = f"{missing} of {math.prod(before.shape)} values are missing; they are NaN in the result"
    middle = _Middle(before.data, before.axes)
    if middle.shape != before.shape:
        made["shown"] = f"the middle {' x '.join(map(str, middle.shape))} of {' x '.join(map(str, before.shape))}"
        pictures = (middle, _Middle(after.data, after.axes))
        spread = None if std is None else _Middle(std.data, std.axes)
    if model is None:
        return Report(title, *pictures, before.axes, **_image_words(before), std=spread, facts=made)
    d = model.description
    made |= {
        "estimate": str(d["estimate"]),
        "method": str(d["method"]),
        "network": f"{d['net'].get('kind')}, {count_parameters(model.flow) / 1e6:.2f} M parameters",
        "device": str(next(model.flow.parameters()).device),
        "steps": ", ".join(f"{name} {steps}" for name, steps in d["steps"].items()),
        "seconds of training": ", ".join(f"{name} {seconds:.1f}" for name, seconds in d["seconds"].items()),
        "seed": str(d["seed"]),
    }
    return Report(
        title,
        *pictures,
        before.axes,
        **_image_words(before),
        noise=in_words(model.noise),
        noise_formula=_formula(model.noise),
        noise_curve=_curve(model, after),
        noise_spectrum=_spectrum(model.noise),
        history=model.history,
        audit=audit.to_dict() if audit else None,
        std=spread,
        coverage=d.get("coverage", {}),
        facts=made,
    )


class _Middle(LazyArray):
    """The middle of every plane of an array, at most SHOWN pixels wide and high, still unread."""

    def __init__(self, data: Any, axes: str) -> None:
        self._data, self.dtype = data, data.dtype
        self.shape = tuple(min(n, SHOWN) if letter in "YX" else n for letter, n in zip(axes, data.shape, strict=True))
        self._first = [(n - shown) // 2 for n, shown in zip(data.shape, self.shape, strict=True)]

    def read_box(self, start: tuple[int, ...], stop: tuple[int, ...]) -> np.ndarray:
        box = zip(self._first, start, stop, strict=True)
        return np.asarray(self._data[tuple(slice(first + a, first + b) for first, a, b in box)])


def _image_words(image: Image) -> dict[str, Any]:
    return {
        "channel_names": image.channel_names,
        "pixel_size": dict(image.pixel_size),
        "units": dict(image.units),
    }


def _formula(noise: Noise) -> str:
    if isinstance(noise, Composition):
        return "; then ".join(_formula(stage) for stage in noise.noises)
    return (type(noise).__doc__ or "").strip().splitlines()[0]


def _curve(model: Denoiser, after: Image) -> tuple[np.ndarray, np.ndarray] | None:
    """Noise against signal where it depends on the pixel's own value alone, over the values of the result."""
    if model.channels > 1 or any(isinstance(stage, CorrelatedGaussian) for stage in stages(model.noise)):
        return None
    plane = _planes(after)[0]
    low, high = np.nanquantile(plane, [0.001, 0.999])
    signal = torch.linspace(float(low), float(high), 60)[:, None]
    return signal[:, 0].numpy(), model.noise.std(model.noise.project(signal))[:, 0].numpy()


def _spectrum(noise: Noise) -> np.ndarray | None:
    for stage in stages(noise):
        kernel = getattr(stage, "kernel", None)
        if kernel is not None and kernel.ndim == 2:
            power: np.ndarray = torch.fft.fft2(kernel, s=(64, 64)).abs().square().numpy()
            return power
    return None


def _planes(image: Image) -> list[np.ndarray]:
    """Planes (Y, X) from all over the image, at most about SCANNED values of them."""
    size = dict(zip(image.axes, image.shape, strict=True))
    loops = [letter for letter in image.axes if letter not in "YX"]
    counts = [size[letter] for letter in loops]
    number, plane = math.prod(counts), size.get("Y", 1) * size.get("X", 1)
    step = max(1, number * plane // SCANNED, number // PLANES)
    columns = slice(0, min(size.get("X", 1), SCANNED))
    rows = slice(0, max(1, SCANNED // columns.stop)) if plane > SCANNED else slice(None)
    chosen = []
    for at in range(0, number, step):
        index = np.unravel_index(at, counts) if counts else ()
        place: dict[str, Any] = dict(zip(loops, map(int, index), strict=True)) | {"Y": rows, "X": columns}
        chosen.append(np.asarray(image.data[tuple(place.get(letter, slice(None)) for letter in image.axes)]))
    return chosen


def _repeats(image: Image) -> str | None:
    """Do the frames of a series show one view? Their 8 x 8 means, which hardly have noise, then agree."""
    if "T" not in image.axes or image.shape[image.axes.index("T")] < 2:
        return None
    place: dict[str, Any] = {letter: 0 for letter in image.axes if letter not in "YX"}

    def means(t: int) -> np.ndarray:
        frame = np.asarray(image.data[tuple((place | {"T": t}).get(letter, slice(None)) for letter in image.axes)])
        y, x = (n // 8 * 8 for n in frame.shape)
        blocks: np.ndarray = frame[:y, :x].reshape(y // 8, 8, -1, 8).mean((1, 3), dtype=np.float64)
        return blocks.ravel()

    first, last = means(0), means(image.shape[image.axes.index("T")] - 1)
    if first.size < 16 or not (first.std() and last.std()):
        return None
    correlation = float(np.corrcoef(first, last)[0, 1])
    return f"{'yes, one view' if correlation > SAME_VIEW else 'no'} (first and last correlate {correlation:.3f})"
