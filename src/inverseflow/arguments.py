"""The options that several commands share, as a user sees them, and how a command is run."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


def _estimate(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


class Missing(StrEnum):
    refuse = "refuse"
    mask = "mask"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class Preset(StrEnum):
    auto = "auto"
    fast = "fast"
    balanced = "balanced"
    best = "best"


Files = Annotated[
    list[str], typer.Argument(help="Image files, folders of images, or quoted patterns like 'day1/*.tif'.")
]
ModelFile = Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")]
MadeBy = Annotated[
    Path | None, typer.Option("--model", "-m", help="The model that made it: more is checked, and shown.")
]
Noise = Annotated[
    list[str] | None,
    typer.Option(
        "--noise",
        help="What the instrument did, in data units: gaussian:sigma=10, poisson:gain=2,offset=100, or a YAML file. "
        "Given several times, one acts after the other. Without it, the noise is estimated.",
    ),
]
Repeats = Annotated[
    str | None,
    typer.Option(help="The axis whose frames show one view, e.g. T (of several files: the files); found by itself."),
]
Axes = Annotated[str | None, typer.Option(help="What the file's dimensions mean, letters of STCZYX, e.g. TZYX.")]
Channels = Annotated[str | None, typer.Option(help="Only these channels: numbers from 0, or names, e.g. 0,2 or DAPI.")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]
PresetOption = Annotated[
    Preset,
    typer.Option(help="How thorough: fast for one image on a CPU, balanced for minutes on a GPU, best for more."),
]
EstimateOption = Annotated[
    str | None,
    typer.Option(
        parser=_estimate,
        metavar="mean|flow|0..1",
        help="mean: least error (default). flow: looks like clean data, as in the paper. A number: between the two.",
    ),
]
Std = Annotated[bool, typer.Option("--std", help="Also write the standard deviation of every pixel.")]
Interval = Annotated[
    float | None,
    typer.Option(help="Also write bounds that hold this share of the true values, e.g. 0.9: _low and _high."),
]
Samples = Annotated[int, typer.Option(help="Also write this many other images that the data could come from.")]
Dim = Annotated[
    int | None, typer.Option(min=2, max=3, help="Denoise planes (2) or volumes (3); by default by the Z axis.")
]
Nan = Annotated[
    Missing,
    typer.Option(
        help="NaN and infinite values: refuse the file, or mask them: not learned from, and NaN in the result."
    ),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result on a CPU.")]
MaxTime = Annotated[str | None, typer.Option(help="At most this long in training: 90s, 10m, 2h.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Training steps; those of the mean follow.")]
Devices = Annotated[
    int, typer.Option(min=1, help="GPUs of this machine, or processes on its CPU, that train together.")
]
Nodes = Annotated[int, typer.Option(min=1, help="Machines that train together, each started by srun or torchrun.")]
Strategy = Annotated[
    str,
    typer.Option(help="ddp: each has the network and its part of every batch; fsdp: its part of the weights too."),
]
Accumulate = Annotated[
    int, typer.Option(min=1, help="Parts in which a batch goes through the network, to save memory.")
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with a run that was stopped: its training, and files that are not complete."),
]
Workers = Annotated[int, typer.Option(min=0, help="Processes of this machine that denoise together, into OME-Zarr.")]
Scheduler = Annotated[str | None, typer.Option(help="A Dask cluster that does it instead, e.g. tcp://host:8786.")]
TileSize = Annotated[int | None, typer.Option(min=8, help="Side of the tiles in pixels; by default by the memory.")]
TileOverlap = Annotated[int, typer.Option(min=0, help="Pixels that neighbouring tiles share.")]
Force = Annotated[bool, typer.Option("--force", help="Replace results that exist.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, how long and with how much memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def run(work: Callable[[], int]) -> None:
    """Do the work; whatever goes wrong is one sentence and an exit code, never a traceback."""
    import warnings

    from .errors import InverseflowError, NoiseError, UsageError
    from .interrupt import as_interrupts, exit_code

    for stream in (sys.stdout, sys.stderr):  # a name or a µ that a terminal cannot show is no reason to stop
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"inverseflow: {message}", err=True)
    try:
        with as_interrupts():
            code = work()
    except (UsageError, NoiseError) as error:
        code = _fail(error, 2)
    except InverseflowError as error:
        code = _fail(error, 1)
    except (MemoryError, RuntimeError) as error:
        from .faults import in_a_sentence

        told = in_a_sentence(error, "this", "end other programs, or take smaller images")
        if told is None:
            raise
        code = _fail(told, 1)
    except KeyboardInterrupt as stop:
        sentence = "interrupted; what was begun is not written. An interrupted training goes on with --resume."
        code = _fail(sentence, exit_code(stop))
    except OSError as error:
        code = _fail(
            f"{error.strerror or error} ({error.filename or 'no file named'}); what was begun is not written.", 1
        )
    raise typer.Exit(code)


def _fail(error: object, code: int) -> int:
    for line in (error, *getattr(error, "__notes__", ())):
        typer.echo(f"inverseflow: {line}", err=True)
    return code


def plain_options(values: dict[str, Any]) -> Any:
    """The options of a command as one object; plain words instead of enumerations."""
    from .options import Options

    plain: dict[str, Any] = {
        name: value.value if isinstance(value, StrEnum) else value for name, value in values.items()
    }
    return Options(**plain)
