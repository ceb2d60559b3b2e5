"""Where results go. Nothing that exists is written over unless asked for."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .disk import writing
from .errors import FileError, InverseflowError, UsageError
from .io import beside, suffix_of
from .io.omezarr import is_zarr
from .whole import exists, hidden


def output_paths(paths: Sequence[Path], output: Path | None) -> list[Path]:
    """Beside each input, in the folder asked for, or the one file asked for."""
    if output is None:
        return [beside(path, "_denoised") for path in paths]
    if suffix_of(output) and (is_zarr(output) or not output.is_dir()):  # an OME-Zarr image is a folder too
        if len(paths) > 1:
            raise UsageError(f"{len(paths)} files cannot all become {output}; give a folder with -o.")
        return [output]
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file without a suffix that is known; give a folder or a name like out.tif.")
    return [output / beside(path, "_denoised").name for path in paths]


def refuse_existing(targets: Sequence[Path], *, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Said before anything is computed. An input is never replaced, whatever name, link or mount leads to it."""
    twice = [path for path, count in Counter(targets).items() if count > 1]
    if twice:
        raise UsageError(f"Two results would both become {twice[0]}; give them two names, or two folders with -o.")
    resolved = [path.resolve() for path in inputs if path.exists()]
    read = {_identity(place) for path in resolved for place in (path, *path.parents)}  # a Zarr image is a folder
    for target in targets:
        with writing(target):
            there, is_input = exists(target), target.exists() and _identity(target) in read
        if is_input:
            raise UsageError(f"{target} is an input, which is never written over; choose another name with -o.")
        if there and not force:
            raise FileError(f"{target} exists; choose another name with -o, or replace it with --force.")


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def further(target: Path, tags: Sequence[str]) -> dict[str, Path]:
    """The files beside a result that hold its error bars and draws, by what they hold: std, low, high, sample1, ...

    A picture file has 256 grey levels, of which error bars would use a few: they go into a TIFF file.
    """
    found = {tag: beside(target, f"_{tag}") for tag in tags}
    picture = suffix_of(target) in (".png", ".jpg", ".jpeg")
    return {tag: path.with_suffix(".tif") if picture and tag == "std" else path for tag, path in found.items()}


def page_of(target: Path) -> Path:
    """The HTML page beside a result."""
    return target.with_name(target.name[: len(target.name) - len(suffix_of(target))] + ".html")


def files_of(target: Path, tags: Sequence[str], *, page: bool) -> list[Path]:
    """All that is written for one input."""
    return [target, *([page_of(target)] if page else []), *further(target, tags).values()]


def is_complete(files: Sequence[Path], *, page: bool) -> bool:
    """Had a run that was stopped later written all of these? The page is the last; error bars may be held back."""
    return all(map(exists, files[:2] if page else files))


def run_folder(target: Path) -> Path:
    """Where a training keeps what it needs to go on after an interruption."""
    return hidden(target, "training")


@contextmanager
def training_kept(target: Path) -> Iterator[None]:
    """Whatever fails after a training says where it is."""
    try:
        yield
    except InverseflowError as error:
        if run_folder(target).exists():
            error.add_note(f"The training is kept in {run_folder(target)}: --resume goes on after it.")
        raise


def forget(target: Path) -> None:
    """The training is used: nobody needs its checkpoints."""
    shutil.rmtree(run_folder(target), ignore_errors=True)
