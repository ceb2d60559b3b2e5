"""A trained model applied to an image file: the result, its error bars and draws, the audit and the page."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import describe, imaging
from .audit import Audit
from .auditing import audit_result
from .calibration import check_level
from .denoiser import Denoiser
from .errors import UsageError
from .io import Image, write
from .logs import bar
from .options import DTYPES, Options
from .outputs import further, page_of
from .report import write_report
from .trained import check_estimate


def apply(model: Denoiser, image: Image, path: Path, target: Path, options: Options) -> Audit | None:
    started = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    quantiles = check_level(options.interval) if options.interval else ()
    std = bool(options.std or quantiles or shows_errors(model, image, options))
    tiles: dict[str, Any] = {
        "tile_size": options.tile_size,
        "tile_overlap": options.tile_overlap,
        "nan": options.nan,
    }
    with ExitStack() as stack:
        shape = image.shape
        places = [stack.enter_context(imaging.scratch(shape, target.parent)) for _ in range(1 + std + len(quantiles))]
        with bar(path.name, enabled=options.bars) as update:
            result, *errors = imaging.denoise_image(
                model, image, places, estimate=options.estimate, std=std, quantiles=quantiles, report=update, **tiles
            )
        write(target, result, dtype=options.dtype, overwrite=options.force)
        written = [target]
        found = audit_result(image, result, model, options) if options.audit else None
        wanted = further(target, asked_for(options))
        if wanted and found is not None and found.verdict == "fail" and not options.force:
            options.say("The audit failed, so no error bars or samples are written; --force writes them all the same.")
            wanted, errors = {}, []
        for tag, error in zip(("std", "low", "high"), errors, strict=False):
            if tag in wanted:
                write(wanted[tag], error, overwrite=options.force)
                written.append(wanted[tag])
        for number, tag in enumerate(tag for tag in wanted if tag.startswith("sample")):
            with (
                imaging.scratch(shape, target.parent) as place,
                bar(f"{path.name} {tag}", enabled=options.bars) as update,
            ):
                drawn = imaging.sample_image(model, image, place, 1000 * options.seed + number, report=update, **tiles)
                write(wanted[tag], drawn, dtype=options.dtype, overwrite=options.force)
            written.append(wanted[tag])
        if options.page:
            page = describe.report(
                path.name, image, result, model, command_line(), found, std=errors[0] if errors else None
            )
            write_report(page_of(target), page, overwrite=options.force)
            written.append(page_of(target))
    tell_written(written, model, time.monotonic() - started, options)
    return found


def shows_errors(model: Denoiser, image: Image, options: Options) -> bool:
    """Does the page show error bars that nobody asked for? Not if they would cost another file of scratch space."""
    small = 4 * math.prod(image.shape) <= imaging.IN_MEMORY
    return options.page and small and options.estimate in (None, "mean") and model.uncertainty.spread is not None


def tell_written(written: Sequence[Path], model: Denoiser, seconds: float, options: Options) -> None:
    names = [str(written[0]), *(path.name for path in written[1:])]
    together = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    options.say(f"Wrote {together} ({seconds:.1f} s).")
    if options.interval and any(path.stem.split(".")[0].endswith("_low") for path in written):
        held = ", ".join(f"{100 * float(level):g} %: {100 * share:.1f} %" for level, share in _coverage(model).items())
        options.say(f"Intervals held of simulated values that were never trained on: {held}.")


def _coverage(model: Denoiser) -> dict[str, float]:
    found = model.uncertainty.calibration
    return found.coverage if found else {}


def asked_for(options: Options) -> list[str]:
    """The tags of the files beside a result."""
    if options.samples < 0:
        raise UsageError(f"--samples {options.samples} is no number of samples; give one above 0.")
    bounds = ["low", "high"] if options.interval is not None else []
    return ["std"] * options.std + bounds + [f"sample{number + 1}" for number in range(options.samples)]


def check_options(options: Options, targets: Sequence[Path]) -> None:
    """What would only be noticed after the training."""
    if options.interval is not None:
        check_level(options.interval)
    if options.estimate is not None:
        check_estimate(options.estimate)
    if options.estimate == "flow" and asked_for(options):
        raise UsageError("Error bars and samples belong to the estimate mean; leave --estimate flow out.")
    if options.dtype not in DTYPES:
        raise UsageError(f"--dtype must be {', '.join(name for name in DTYPES if name)}, not {options.dtype}.")
    pictures = [target.name for target in targets if target.suffix.lower() in (".png", ".jpg", ".jpeg")]
    if pictures and (options.dtype or "").startswith("float"):
        raise UsageError(f"{pictures[0]} cannot hold {options.dtype}; write a .tif file, or leave --dtype out.")
    whole_numbers = pictures[0] if pictures else options.dtype or ""
    if options.nan == "mask" and (pictures or whole_numbers.startswith("uint")):
        raise UsageError(f"{whole_numbers} cannot hold the NaN of --nan mask; write a .tif file of float32.")
    if options.tile_size and options.tile_size < 3 * options.tile_overlap:
        raise UsageError(
            f"--tile-size {options.tile_size} leaves nothing beside an overlap of {options.tile_overlap}; take at "
            f"least {3 * options.tile_overlap}, or a smaller --tile-overlap."
        )


def check_model(options: Options, model: Denoiser) -> None:
    """Can the model do what is asked for? Said before anything is computed."""
    model.function(options.estimate, std=options.std or options.interval is not None)
    if options.samples:
        model.sampler()


def command_line() -> str:
    return shlex.join(["inverseflow", *sys.argv[1:]])
