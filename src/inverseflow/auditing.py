"""The audit of image files: which parts are judged, and how the verdict is told."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .audit import SAMPLES, Audit, audit, middle
from .axes import Layout
from .denoiser import Denoiser
from .errors import InputError, UsageError
from .finding import noise_of
from .imaging import Samples, choose_dimensions
from .io import Image, read
from .noise import Noise
from .options import Options

FAILED = 3
"""The exit code of a result that is there and should not be trusted."""


def middles(image: Image, spatial: str) -> Tensor:
    """(B, C, *S): the middle of a few samples, evenly spread."""
    samples = Samples(image, spatial, "mask")
    chosen = samples.spread(min(SAMPLES, len(samples)))
    return torch.stack([samples.read(index, middle(samples.shape)) for index in chosen])


def audit_image(
    noisy: Image,
    clean: Image,
    by: Denoiser | Noise,
    *,
    dim: int | None = None,
    estimate: str | float | None = None,
    seed: int = 0,
) -> Audit:
    """Judge a denoised image by its middle."""
    if noisy.axes != clean.axes or noisy.shape != clean.shape:
        both = f"{noisy.shape} {noisy.axes} and {clean.shape} {clean.axes}"
        raise InputError(f"The audit compares a noisy and a denoised image of one shape, not {both}; see --axes.")
    spatial = choose_dimensions(noisy, dim)[0] if isinstance(by, Noise) else Layout(by.axes, ()).spatial
    before, after = (middles(image, spatial) for image in (noisy, clean))
    return audit(before, after, by, axes=f"SC{spatial}", estimate=estimate, seed=seed)


def audit_result(noisy: Image, clean: Image, model: Denoiser, options: Options) -> Audit | None:
    """The audit after denoising; None, with the reason, where there is too little to judge."""
    try:
        found = audit_image(noisy, clean, model, estimate=options.estimate, seed=options.seed)
    except InputError as error:
        options.say(f"No audit: {error}")
        return None
    tell(found, options)
    return found


def audit_files(noisy: Path, clean: Path, options: Options) -> int:
    """`inverseflow audit`: may this result be trusted? Also for results of other tools."""
    if options.model and options.noise:
        raise UsageError("A model knows its noise; give either --model or --noise.")
    if options.model and options.dim:
        raise UsageError("A model knows whether it denoises planes or volumes; leave --dim out.")
    before, after = (read(path, axes=options.axes) for path in (noisy, clean))
    by = Denoiser.load(options.model, device=options.device) if options.model else noise_of(options, [before])
    found = audit_image(before, after, by, dim=options.dim, estimate=options.estimate, seed=options.seed)
    tell(found, options)
    for check in found.checks:
        options.say(f"  {check.verdict:9} {check.name:28} {check.value:7.3f}  (doubtful from {check.limits[0]:g})")
    options.finish({"noisy": str(noisy), "clean": str(clean), **found.to_dict()})
    return exit_code([found])


def tell(found: Audit, options: Options) -> None:
    options.say(f"Audit: {found.verdict}.")
    for reason in found.reasons[:3]:
        options.say(f"  {reason}")


def exit_code(audits: list[Audit | None]) -> int:
    return FAILED if any(found is not None and found.verdict == "fail" for found in audits) else 0
