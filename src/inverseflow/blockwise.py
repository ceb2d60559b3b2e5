"""A trained model applied to an image file block by block, alone or by a cluster; see `blocks`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import blocks, cluster, describe
from .applying import asked_for, command_line, shows_errors, tell_written
from .audit import Audit
from .auditing import audit_result
from .calibration import check_level
from .denoiser import Denoiser
from .errors import UsageError
from .imaging import chosen_channels, samples_for
from .io import Image, read, suffix_of
from .io.lazy import Reordered
from .io.omezarr import order_of
from .logs import bar
from .options import Options
from .outputs import further, page_of
from .report import write_report
from .whole import hidden, locked, publish, write_whole

ASKED = "asked.json"
OF_TRAINING = (
    "files",
    "noise",
    "repeats",
    "axes",
    "channels",
    "dim",
    "preset",
    "estimate",
    "seed",
    "steps",
    "max_time",
    "nan",
)


def in_blocks(image: Image, target: Path, options: Options) -> bool:
    """From OME-Zarr to OME-Zarr, or by several workers. Draws need all of an image's rows, so they go another way."""
    zarr, many = suffix_of(target) in (".zarr", ".ome.zarr"), bool(options.workers or options.scheduler)
    if many and not zarr:
        raise UsageError(f"Several workers write OME-Zarr, not {target.name}; name the output with -o out.ome.zarr.")
    if many and options.samples:
        raise UsageError("Samples are drawn by one process; leave --workers and --scheduler out.")
    return zarr and not options.samples and (many or image.kind == "ome-zarr")


def folder_of(target: Path) -> Path:
    """Where a run keeps its blocks until all are there."""
    return hidden(target, "blocks")


def kept_model(target: Path, options: Options) -> Denoiser | None:
    """The model of a run of the same command that was stopped after its training."""
    folder = folder_of(target)
    asked = folder / ASKED
    if options.model or not asked.exists() or json.loads(asked.read_text()) != _asked(options):
        return None
    options.say(f"Going on with the run that was stopped: its model is in {folder}.")
    return Denoiser.load(folder / blocks.MODEL, device=options.device)


def _asked(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in OF_TRAINING}


def apply_in_blocks(model: Denoiser, image: Image, path: Path, target: Path, options: Options) -> Audit | None:
    started = time.monotonic()
    quantiles = check_level(options.interval) if options.interval else ()
    wanted = further(target, asked_for(options))
    std = bool(options.std or quantiles or shows_errors(model, image, options))
    names = ["image", *["std"] * std, *["low", "high"][: len(quantiles)]]
    dtypes = {name: options.dtype if name == "image" else None for name in names}
    folder = folder_of(target)
    folder.mkdir(parents=True, exist_ok=True)
    kept = options.model.resolve() if options.model else _keep(model, folder, options)
    job = blocks.Job(
        folder=str(folder.resolve()),
        source=str(path.resolve()),
        axes=image.axes,
        channels=chosen_channels(image),
        stamp=blocks.last_changed(path),
        model=str(kept),
        weights=blocks.digest(kept),
        order=order_of(image),
        outputs=tuple(names),
        estimate=options.estimate,
        std=std,
        quantiles=tuple(quantiles),
        tile_size=options.tile_size,
        overlap=options.tile_overlap,
        device=options.device,
        nan=options.nan,
    )
    samples = samples_for(model, image)
    blocks.begin(job, image, dtypes, force=options.force)
    try:
        _work(job, blocks.blocks(job, samples.spatial), path.name, options)
    except KeyboardInterrupt:
        options.say(f"What is done stays in {folder}; the same command goes on with the rest.")
        raise
    blocks.finish(job, image, dtypes)
    found = None
    if options.audit:
        found = audit_result(image, _stored(folder / "image", image), model, options)
        if found is not None and found.verdict == "fail" and not options.force:
            if wanted:
                options.say("The audit failed, so no error bars are written; --force writes them all the same.")
            wanted, std = {}, False
    written = []
    for name, where in {"image": target, **wanted}.items():
        with locked(where):
            publish(folder / name, where, overwrite=options.force)
        written.append(where)
    if options.page:
        error = _stored(wanted.get("std", folder / "std"), image) if std else None
        page = describe.report(path.name, image, _stored(target, image), model, command_line(), found, std=error)
        write_report(page_of(target), page, overwrite=options.force)
        written.append(page_of(target))
    shutil.rmtree(folder)
    tell_written(written, model, time.monotonic() - started, options)
    return found


def _stored(path: Path, image: Image) -> Image:
    """A result with the axes of its image: OME-Zarr has an order of its own."""
    found = read(path)
    return image.replace(Reordered(found.data, [found.axes.index(letter) for letter in image.axes]))


def _keep(model: Denoiser, folder: Path, options: Options) -> Path:
    """The model where workers find it, and what it was made for."""
    place, asked = (folder / blocks.MODEL).resolve(), folder / ASKED
    if not asked.exists() or json.loads(asked.read_text()) != _asked(options):
        model.save(place, overwrite=True)
        write_whole(asked, json.dumps(_asked(options)).encode(), overwrite=True)
    return place


def _work(job: blocks.Job, levels: Sequence[Sequence[blocks.Block]], title: str, options: Options) -> None:
    todo = [blocks.missing(job, level) for level in levels]
    all_of_them, left = sum(map(len, levels)), sum(map(len, todo))
    if left < all_of_them:
        options.say(f"{all_of_them - left} of {all_of_them} blocks were done before.")
    if not left:
        return
    done, first = all_of_them - left, (0, 0.0)
    with bar(title, enabled=options.bars) as update:

        def report() -> None:
            nonlocal done, first
            done, now = done + 1, time.monotonic()
            first = first if first[0] else (done, now)  # workers take a while to be there
            rate = f", {(done - first[0]) / max(now - first[1], 1e-9):.2g} a second" if done > first[0] else ""
            update(done / all_of_them, f"{done} of {all_of_them} blocks{rate}")

        if not options.workers and not options.scheduler:
            _alone(job, todo, report)
            return
        with cluster.workers(options.workers or 1, options.scheduler, options.say) as client:
            for level in todo:
                cluster.do_blocks(client, job, level, report)


def _alone(job: blocks.Job, todo: Sequence[Sequence[blocks.Block]], report: Callable[[], None]) -> None:
    for level in todo:
        for block in level:
            blocks.do_block(job, block)
            report()
