"""What the commands do: files in, files out, and one sentence for whatever stands in the way."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from . import describe, imaging
from .applying import apply, asked_for, check_model, check_options, command_line
from .auditing import audit_result, exit_code
from .axes import Layout
from .blockwise import apply_in_blocks, in_blocks, kept_model
from .denoiser import Denoiser
from .engine import choose_device, distribute
from .errors import FileError, InputError, UsageError
from .finding import look_for_gaps, noise_of
from .generator import Generator
from .io import Image, expand_paths, read, refuse_unwritable, suffix_of
from .noise import Noise
from .noise.words import in_words
from .options import Options
from .outputs import (
    files_of,
    forget,
    further,
    is_complete,
    output_paths,
    page_of,
    refuse_existing,
    run_folder,
    training_kept,
)
from .report import write_report
from .settings import Settings
from .streaming import Files
from .team import current_team
from .whole import locked


def show_info(files: Sequence[str], axes: str | None, *, as_json: bool) -> int:
    rows = []
    for path in expand_paths(files):
        is_model = path.suffix.lower() == ".safetensors"
        facts = describe.trained_facts(path) if is_model else describe.facts(understand(path, axes))
        rows.append({"file": str(path), **facts})
        if not as_json:
            console = Console(highlight=False, soft_wrap=True)
            console.print(str(path), style="bold", markup=False)
            for name, value in facts.items():
                console.print(f"  {name.replace('_', ' '):16} {describe.in_a_line(value)}", markup=False)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    return 0


def train_model(options: Options) -> int:
    target = options.output or Path("model.safetensors")
    paths = expand_paths(options.files, results=False)
    refuse_existing([target], force=options.force, inputs=paths)
    team = distribute(options.devices, options.nodes, options.strategy, options.device)
    options = options if team.leads else replace(options, quiet=True, json=False)
    images = [open_image(path, options) for path in paths]
    look_for_gaps(options, paths, images)
    noise = noise_of(options, images)
    if options.dry_run:
        return plan(options, paths, [target], images, noise, None)
    with locked(target) if team.leads else nullcontext():
        learned: Denoiser | Generator
        learned = (learn_generator if options.generator else learn)(options, images, noise, target)
        if not team.leads:
            return 0
        learned.save(target, overwrite=options.force)
        forget(target)
    told: dict[str, Any] = {"model": str(target), "files": [str(path) for path in paths]}
    told |= describe.training(learned) if isinstance(learned, Denoiser) else learned.description
    options.say(f"Wrote {target}, learned from {len(paths)} file{'s'[: len(paths) > 1]}.")
    return options.finish(told)


def denoise_files(options: Options) -> int:
    paths = expand_paths(options.files, results=False)
    targets = output_paths(paths, options.output)
    check_options(options, targets)
    files = [files_of(target, asked_for(options), page=options.page) for target in targets]
    # What is there may be older where --force would have replaced it.
    stopped = options.resume and not options.force and bool(options.model or run_folder(targets[0]).exists())
    done = [stopped and is_complete(its, page=options.page) for its in files]
    to_write = [path for its, there in zip(files, done, strict=True) if not there for path in its]
    inputs = [*paths, *([options.model] if options.model else [])]
    refuse_existing(to_write, force=options.force, inputs=inputs)
    images = [open_image(path, options) for path in paths]
    for image, target in zip(images, targets, strict=True):
        refuse_unwritable(target, image, options.dtype)
    look_for_gaps(options, paths, images)
    model = Denoiser.load(options.model, device=options.device) if options.model else None
    if model is not None and options.noise:
        raise UsageError("A model knows its noise; give either --model or --noise.")
    noise = model.noise if model is not None else noise_of(options, images)
    if options.dry_run:
        return plan(options, paths, to_write, images, noise, model)
    if model is not None:
        check_model(options, model)
    blockwise = [in_blocks(image, target, options) for image, target in zip(images, targets, strict=True)]
    audits = []
    with locked(targets[0]):
        for target in targets:  # a folder that is read-only, another run: said now and not after the training
            with locked(target):
                pass
        if model is None:
            model = kept_model(targets[0], options) or learn(options, images, noise, targets[0])
        for path, image, target, cut, there in zip(paths, images, targets, blockwise, done, strict=True):
            if there:
                options.say(f"{target} was complete before.")
                continue
            with training_kept(targets[0]), locked(target):
                audits.append((apply_in_blocks if cut else apply)(model, image, path, target, options))
        forget(targets[0])
    options.finish(
        {
            "outputs": [str(t) for t in targets],
            "pages": [str(page_of(t)) for t in targets if options.page],
            "further": [str(path) for its in files for path in its[1 + options.page :] if path.exists()],
            "audits": [found and found.to_dict() for found in audits],
            **describe.training(model),
        }
    )
    return exit_code(audits)


def make_report(
    noisy: Path, denoised: Path, model: Path | None, output: Path | None, axes: str | None, *, force: bool
) -> int:
    before, after = read(noisy, axes=axes), read(denoised, axes=axes)
    loaded = Denoiser.load(model, device="cpu") if model else None
    found = audit_result(before, after, loaded, Options([], quiet=True)) if loaded else None
    errors = further(denoised, ["std"])["std"]
    std = read(errors, axes=axes) if errors.exists() else None
    target = output or page_of(denoised)
    refuse_existing([target], force=force, inputs=[path for path in (noisy, denoised, model) if path])
    page = describe.report(noisy.name, before, after, loaded, command_line(), found, std)
    write_report(target, page, overwrite=force)
    Console(highlight=False, soft_wrap=True).print(f"Wrote {target}.", markup=False)
    return 0


def learn(options: Options, images: Sequence[Image], noise: Noise, target: Path) -> Denoiser:
    """Train one model on all the images."""
    return Denoiser.train(
        **material(options, images, noise, target),
        estimate="flow" if options.estimate == "flow" else "mean",
        samples=bool(options.samples),
        max_seconds=seconds_of(options.max_time),
        max_steps=options.steps,
        accumulate=options.accumulate,
        source=files_on_disk(options, images),
    )


def files_on_disk(options: Options, images: Sequence[Image]) -> Files | None:
    """More than memory holds is read while the training goes on, if the files can be read in parts."""
    spatial, _ = imaging.choose_dimensions(images[0], options.dim)
    if sum(math.prod(image.shape) for image in images) <= imaging.TRAIN_PIXELS:
        return None
    paths = expand_paths(options.files, results=False)
    if options.nan == "mask":
        options.say("Values are masked, so a part of the files is learned from.")
        return None
    whole = [path.name for path in paths if suffix_of(path) in (".png", ".jpg", ".jpeg", ".npz")]
    if whole:
        options.say(f"{whole[0]} cannot be read in parts, so a part of the files is learned from; TIFF and Zarr can.")
        return None
    names, axes = tuple(str(path.resolve()) for path in paths), tuple(image.axes for image in images)
    return Files(names, axes, spatial, imaging.chosen_channels(images[0]))


def learn_generator(options: Options, images: Sequence[Image], noise: Noise, target: Path) -> Generator:
    """Train a denoiser for its map, and a generator on what the map recovers."""
    given = material(options, images, noise, target)
    settings = Settings(steps=2 * options.steps) if options.steps else None
    return Generator.train(given.pop("x1"), given.pop("noise"), settings=settings, **given)


def material(options: Options, images: Sequence[Image], noise: Noise, target: Path) -> dict[str, Any]:
    """What any training starts from; what it needs to go on after an interruption lies beside the target."""
    spatial, why = imaging.choose_dimensions(images[0], options.dim)
    data = imaging.training_samples(imaging.Samples(image, spatial, options.nan) for image in images)
    folder, team = run_folder(target), current_team()
    interrupted = folder.exists() and not options.resume
    team.wait()  # nobody touches it before all have looked
    if interrupted and not options.force:
        raise FileError(f"{folder} holds an interrupted training; go on with --resume, or start again with --force.")
    if interrupted and team.leads:
        shutil.rmtree(folder)
    team.wait()
    options.say(
        f"Learning from {len(data)} sample{'s'[: len(data) > 1]} of {spatial} ({why}).\nNoise: {in_words(noise)}."
    )
    return {
        "x1": data,
        "noise": noise,
        "axes": f"C{spatial}",
        "nan": options.nan,
        "preset": options.preset,
        "seed": options.seed,
        "device": options.device,
        "folder": folder,
        "resume": options.resume,
        "progress": options.bars,
    }


def plan(
    options: Options,
    paths: Sequence[Path],
    targets: Sequence[Path],
    images: Sequence[Image],
    noise: Noise,
    model: Denoiser | None,
) -> int:
    """What would be done. The time is measured on a few training steps, of which nothing is kept."""
    lines: dict[str, Any] = {"read": [str(p) for p in paths], "write": [str(t) for t in targets]}
    spatial, why = imaging.choose_dimensions(images[0], options.dim)
    if model is not None:
        spatial, why = Layout(model.axes, ()).spatial, "as the model was trained"
    lines |= {
        "denoise": f"{spatial} ({why})",
        "noise": in_words(noise),
        "device": choose_device(options.device),
    }
    if model is None:
        data = imaging.training_samples(imaging.Samples(image, spatial, options.nan) for image in images)
        lines |= describe.cost(
            data,
            noise,
            f"C{spatial}",
            options.preset,
            options.device,
            seconds_of(options.max_time),
            options.steps,
            options.nan,
        )
    if options.json:
        return options.finish({"plan": lines})
    for name, value in lines.items():
        options.say(f"{name:9} {', '.join(value) if isinstance(value, list) else value}")
    options.say("Nothing was done.")
    return 0


def understand(path: Path, axes: str | None, dim: int | None = None) -> Image:
    """Read a file. What it does not say, the command line must."""
    try:
        image = read(path, axes=axes)
        imaging.choose_dimensions(image, dim)
    except InputError as error:
        raise UsageError(str(error)) from None
    return image


def open_image(path: Path, options: Options) -> Image:
    """The image with the channels that are wanted; its data stay in the file."""
    image = understand(path, options.axes, options.dim)
    if options.channels is None:
        return image
    names = {name: number for number, name in enumerate(image.channel_names)}
    chosen = []
    for word in (part.strip() for part in options.channels.split(",")):
        if word not in names and not word.isdigit():
            known = ", ".join(names) or "not named in the file, so count them from 0"
            raise UsageError(f"There is no channel {word!r}; the channels are {known}.")
        chosen.append(names[word] if word in names else int(word))
    return imaging.select_channels(image, chosen)


def seconds_of(text: str | None) -> float | None:
    if text is None:
        return None
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:].lower())
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"--max-time {text} is not a time; write it as 90s, 10m or 2h.")
    return seconds
