"""The noise that a command works with: as the user says, or as the images show."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from .errors import InputError, UsageError
from .estimate import NoiseEstimate, estimate_noise
from .imaging import TRAIN_PIXELS, choose_dimensions
from .io import Image, expand_paths, read
from .masking import count_missing, refuse_missing
from .noise import CorrelatedGaussian, Noise
from .noise.base import stages
from .noise.file import one_after_the_other
from .options import Options
from .outputs import refuse_existing
from .whole import write_whole

TOO_LITTLE = 0.9  # of the estimated sd; below it a user is told


def look_for_gaps(options: Options, paths: Sequence[Path], images: Sequence[Image]) -> None:
    """Say what is masked; refuse a large file before hours of work and not after them."""
    for path, image in zip(paths, images, strict=True):
        if options.nan == "mask":
            missing, _ = count_missing(image.data)
            options.say(f"{path.name}: {missing} of {math.prod(image.shape)} values are missing and masked.")
        elif math.prod(image.shape) > TRAIN_PIXELS:
            refuse_missing(image.data, image.axes, path.name)


def noise_of(options: Options, images: Sequence[Image]) -> Noise:
    """What --noise says, checked against the images; without it, what they show."""
    if options.noise:
        noise = one_after_the_other(options.noise)
        noise.check_channels(channels_of(images))
        warn_if_too_little(noise, options, images)
        return noise
    try:
        found = estimate_noise(list(images), repeats=options.repeats, dims=_dims(options, images))
    except InputError as error:
        raise UsageError(f"{error} Or say what the noise is, for example --noise gaussian:sigma=10.") from None
    options.say(f"Found {found}.")
    for sentence in found.warnings:
        options.say(f"  {sentence}")
    return found.noise


def warn_if_too_little(noise: Noise, options: Options, images: Sequence[Image]) -> None:
    """Too little noise costs far more than too much: 20 % less 3.4 dB, 20 % more 0.07 dB."""
    if any(isinstance(stage, CorrelatedGaussian) for stage in stages(noise)):
        return
    try:
        found = estimate_noise(list(images), repeats=options.repeats, dims=2)  # the sd is the same in volumes
        share = min(_shares(noise, found, channels_of(images)))
    except (InputError, RuntimeError):  # nothing to compare with, or a noise for other shapes
        return
    if share < TOO_LITTLE:
        options.say(
            f"Warning: this is {100 * (1 - share):.0f} % less noise than the images show ({found}); too little leaves "
            "noise in the result, too much costs little."
        )


def _shares(noise: Noise, found: NoiseEstimate, channels: int) -> list[float]:
    """What the noise says over what was found, for each channel that shows noise."""
    curves = zip(found.channels, *(np.atleast_2d(part) for part in found.std_curve), strict=True)
    return [
        float((noise.std(noise.project(at))[:, channel] / torch.from_numpy(sd)).median())
        for channel, levels, sd in curves
        for at in [torch.from_numpy(levels)[:, None].repeat(1, channels)]
    ]


def channels_of(images: Sequence[Image]) -> int:
    return images[0].shape[images[0].axes.index("C")] if "C" in images[0].axes else 1


def find_noise(options: Options, family: str, plot: Path | None, dark: Path | None, flat: Path | None) -> int:
    """`inverseflow noise`: what is my noise?"""
    if options.output and options.output.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"--noise reads a noise from YAML, so give -o a name like noise.yaml, not {options.output}.")
    targets = [path for path in (options.output, plot) if path]
    paths = expand_paths(options.files, results=False)
    refuse_existing(targets, force=options.force, inputs=paths)
    if plot:
        check_format(plot)
    images = [read(path, axes=options.axes) for path in paths]
    frames = [np.asarray(read(path, axes="TYX")) if path else None for path in (dark, flat)]
    found = estimate_noise(
        images,
        repeats=options.repeats,
        family=family,
        dims=_dims(options, images),
        dark=frames[0],
        flat=frames[1],
        seed=options.seed,
    )
    options.say(str(found))
    for line in found.table():
        options.say(line)
    for sentence in found.warnings:
        options.say(f"  {sentence}")
    if options.output:
        found.to_yaml(options.output, overwrite=options.force)
        options.say(f"Wrote {options.output}; use it with --noise {options.output}.")
    if plot:
        drawn = io.BytesIO()
        found.plot().savefig(drawn, dpi=120, format=plot.suffix[1:])
        write_whole(plot, drawn.getvalue(), overwrite=options.force)
        options.say(f"Wrote {plot}.")
    return options.finish(summary(found))


def check_format(plot: Path) -> None:
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if plot.suffix[1:].lower() not in known:
        raise UsageError(f"{plot} has no suffix of a picture; take one of {', '.join(sorted(known))}.")


def _dims(options: Options, images: Sequence[Image]) -> int:
    """As many axes as the denoiser of these images will see together."""
    return len(choose_dimensions(images[0], options.dim)[0])


def summary(found: NoiseEstimate) -> dict[str, object]:
    return {
        "noise": found.noise.to_dict(),
        "family": found.family,
        "method": found.method,
        "scores": dict(found.scores),
        "lag1": found.lag1,
        "channels": found.channels,
        "std_curve": [part.tolist() for part in found.std_curve],
        "interval": [part.tolist() for part in found.interval],
        "warnings": list(found.warnings),
    }
