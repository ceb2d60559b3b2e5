"""The command and its parts (info, noise, train, denoise, audit, report), as they are asked for; others do the work.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but the audit says do not trust it, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__

app = typer.Typer(
    name="inverseflow",
    help="Denoise images without any clean example: give the noisy file and what you know of its noise.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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


class Estimate(StrEnum):
    mean = "mean"
    flow = "flow"


Files = Annotated[
    list[str], typer.Argument(help="Image files, folders of images, or quoted patterns like 'day1/*.tif'.")
]
Noise = Annotated[
    list[str] | None,
    typer.Option(
        "--noise",
        help="What the instrument did, in data units: gaussian:sigma=10, poisson:gain=2,offset=100, or a YAML file. "
        "Given several times, one acts after the other. Without it, the noise is estimated.",
    ),
]
Repeats = Annotated[str | None, typer.Option(help="The axis whose frames show one view, e.g. T; found by itself.")]
Axes = Annotated[str | None, typer.Option(help="What the file's dimensions mean, letters of STCZYX, e.g. TZYX.")]
Channels = Annotated[str | None, typer.Option(help="Only these channels: numbers from 0, or names, e.g. 0,2 or DAPI.")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute.")]
PresetOption = Annotated[
    Preset,
    typer.Option(help="How thorough: fast for one image on a CPU, balanced for minutes on a GPU, best for more."),
]
EstimateOption = Annotated[
    Estimate | None, typer.Option(help="mean: least error (default). flow: looks like clean data, as in the paper.")
]
Dim = Annotated[
    int | None, typer.Option(min=2, max=3, help="Denoise planes (2) or volumes (3); by default by the Z axis.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result on a CPU.")]
MaxTime = Annotated[str | None, typer.Option(help="At most this long in training: 90s, 10m, 2h.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Training steps; half as many follow for the mean.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")]
TileSize = Annotated[int | None, typer.Option(min=8, help="Side of the tiles in pixels; by default by the memory.")]
TileOverlap = Annotated[int, typer.Option(min=0, help="Pixels that neighbouring tiles share.")]
Force = Annotated[bool, typer.Option("--force", help="Replace results that exist.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, how long and with how much memory.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"inverseflow {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Denoise images without any clean example."""


def run(work: Callable[[], int]) -> None:
    """Do the work; whatever goes wrong is one sentence and an exit code, never a traceback."""
    import warnings

    from .errors import InverseflowError, NoiseError, UsageError

    warnings.showwarning = lambda message, *_, **__: typer.echo(f"inverseflow: {message}", err=True)
    try:
        code = work()
    except (UsageError, NoiseError) as error:
        code = _fail(error, 2)
    except InverseflowError as error:
        code = _fail(error, 1)
    except KeyboardInterrupt:
        code = _fail("interrupted; what was begun is not written. An interrupted training goes on with --resume.", 130)
    except OSError as error:
        code = _fail(
            f"{error.strerror or error} ({error.filename or 'no file named'}); what was begun is not written.", 1
        )
    raise typer.Exit(code)


def _fail(error: object, code: int) -> int:
    typer.echo(f"inverseflow: {error}", err=True)
    return code


def _options(values: dict[str, Any]) -> Any:
    """The options of a command as one object; plain words instead of enumerations."""
    from .options import Options

    plain: dict[str, Any] = {
        name: value.value if isinstance(value, StrEnum) else value for name, value in values.items()
    }
    return Options(**plain)


@app.command()
def info(files: Files, axes: Axes = None, json: Json = False) -> None:
    """How a file is understood, before any computing: shape, axes, sizes, values."""

    def work() -> int:
        from .commands import show_info

        return show_info(files, axes, as_json=json)

    run(work)


@app.command()
def train(
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")] = Path(
        "model.safetensors"
    ),
    noise: Noise = None,
    repeats: Repeats = None,
    axes: Axes = None,
    channels: Channels = None,
    dim: Dim = None,
    preset: PresetOption = Preset.auto,
    estimate: EstimateOption = None,
    device: DeviceOption = Device.auto,
    seed: Seed = 0,
    max_time: MaxTime = None,
    steps: Steps = None,
    resume: Resume = False,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn one model from noisy images, many files if you like, for others of their kind."""
    options = dict(locals())

    def work() -> int:
        from .commands import train_model

        return train_model(_options(options))

    run(work)


@app.command()
def denoise(
    files: Files,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file, or a folder; by default beside the input.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A trained model; without it, trains one.")
    ] = None,
    noise: Noise = None,
    repeats: Repeats = None,
    axes: Axes = None,
    channels: Channels = None,
    dim: Dim = None,
    preset: PresetOption = Preset.auto,
    estimate: EstimateOption = None,
    dtype: Annotated[str | None, typer.Option(help="float32 (default), or same: rounded to the input's type.")] = None,
    device: DeviceOption = Device.auto,
    seed: Seed = 0,
    max_time: MaxTime = None,
    steps: Steps = None,
    resume: Resume = False,
    tile_size: TileSize = None,
    tile_overlap: TileOverlap = 64,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the HTML page beside the result.")] = True,
    audit: Annotated[bool, typer.Option("--audit/--no-audit", help="Say whether the result may be trusted.")] = True,
    force: Force = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Denoise images: writes cells_denoised.ome.tif and cells_denoised.html beside cells.ome.tif."""
    options = dict(locals())

    def work() -> int:
        from .commands import denoise_files

        return denoise_files(_options(options))

    run(work)


@app.command("noise")
def find(
    files: Files,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it as YAML, for --noise.")] = None,
    repeats: Repeats = None,
    family: Annotated[
        str, typer.Option(help="auto, gaussian, poisson, poissongaussian, gamma, signaldependent or correlated.")
    ] = "auto",
    dark: Annotated[Path | None, typer.Option(help="Frames without light (T, Y, X).")] = None,
    flat: Annotated[Path | None, typer.Option(help="Frames of even light (T, Y, X).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw what was measured.")] = None,
    axes: Axes = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What is the noise of these images? Learned from the images alone; repeated frames tell most."""
    options = {k: v for k, v in locals().items() if k not in ("family", "dark", "flat", "plot")}

    def work() -> int:
        from .finding import find_noise

        return find_noise(_options(options), family, plot, dark, flat)

    run(work)


@app.command("audit")
def judge(
    noisy: Annotated[Path, typer.Argument(help="The noisy image.")],
    denoised: Annotated[Path, typer.Argument(help="The denoised image, by any tool.")],
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="The model that made it: more is checked.")
    ] = None,
    noise: Noise = None,
    repeats: Repeats = None,
    axes: Axes = None,
    estimate: EstimateOption = None,
    device: DeviceOption = Device.auto,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """May a result be trusted? Pass, doubtful, or fail (exit code 3), without ground truth."""
    options = {k: v for k, v in locals().items() if k not in ("noisy", "denoised")} | {"files": []}

    def work() -> int:
        from .auditing import audit_files

        return audit_files(noisy, denoised, _options(options))

    run(work)


@app.command()
def report(
    noisy: Annotated[Path, typer.Argument(help="The noisy image.")],
    denoised: Annotated[Path, typer.Argument(help="The denoised image.")],
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="The model, for its noise and training curve.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; else beside the result.")] = None,
    axes: Axes = None,
    force: Force = False,
) -> None:
    """Make the HTML page of a result again."""

    def work() -> int:
        from .commands import make_report

        return make_report(noisy, denoised, model, output, axes, force=force)

    run(work)


def main() -> None:
    app()
