"""The command and its parts (info, noise, train, denoise, cells, ...), as they are asked for; others do the work.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but the audit says do not trust it, 130 interrupted (143 SIGTERM).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .arguments import (
    Accumulate,
    Axes,
    Channels,
    Device,
    DeviceOption,
    Devices,
    Dim,
    DryRun,
    EstimateOption,
    Files,
    Force,
    Interval,
    Json,
    MadeBy,
    MaxTime,
    Missing,
    ModelFile,
    Nan,
    Nodes,
    Noise,
    Preset,
    PresetOption,
    Quiet,
    Repeats,
    Resume,
    Samples,
    Scheduler,
    Seed,
    Std,
    Steps,
    Strategy,
    TileOverlap,
    TileSize,
    Workers,
    plain_options,
    run,
)

app = typer.Typer(
    name="inverseflow",
    help="Denoise images without any clean example: give the noisy file and what you know of its noise.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


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
    output: ModelFile = Path("model.safetensors"),
    noise: Noise = None,
    repeats: Repeats = None,
    axes: Axes = None,
    channels: Channels = None,
    dim: Dim = None,
    nan: Nan = Missing.refuse,
    preset: PresetOption = Preset.auto,
    estimate: EstimateOption = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="Also learn what denoise --samples needs; takes about as long again.")
    ] = False,
    generator: Annotated[
        bool, typer.Option("--generator", help="Learn to draw new clean images instead, for inverseflow generate.")
    ] = False,
    device: DeviceOption = Device.auto,
    seed: Seed = 0,
    max_time: MaxTime = None,
    steps: Steps = None,
    devices: Devices = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "ddp",
    accumulate: Accumulate = 1,
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

        return train_model(plain_options(options))

    run(work)


@app.command()
def denoise(
    files: Files,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file, or a folder; by default beside the input.")
    ] = None,
    model: Annotated[Path | None, typer.Option("--model", "-m", help="A trained model; else trains one.")] = None,
    noise: Noise = None,
    repeats: Repeats = None,
    axes: Axes = None,
    channels: Channels = None,
    dim: Dim = None,
    nan: Nan = Missing.refuse,
    preset: PresetOption = Preset.auto,
    estimate: EstimateOption = None,
    std: Std = False,
    interval: Interval = None,
    samples: Samples = 0,
    dtype: Annotated[str | None, typer.Option(help="float32 (default), or same: rounded to the input's type.")] = None,
    device: DeviceOption = Device.auto,
    seed: Seed = 0,
    max_time: MaxTime = None,
    steps: Steps = None,
    resume: Resume = False,
    workers: Workers = 0,
    scheduler: Scheduler = None,
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

        return denoise_files(plain_options(options))

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
    dim: Dim = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What is the noise of these images? Learned from the images alone; repeated frames tell most."""
    options = {k: v for k, v in locals().items() if k not in ("family", "dark", "flat", "plot")}

    def work() -> int:
        from .finding import find_noise

        return find_noise(plain_options(options), family, plot, dark, flat)

    run(work)


@app.command("audit")
def judge(
    noisy: Annotated[Path, typer.Argument(help="The noisy image.")],
    denoised: Annotated[Path, typer.Argument(help="The denoised image, by any tool.")],
    model: MadeBy = None,
    noise: Noise = None,
    repeats: Repeats = None,
    axes: Axes = None,
    dim: Dim = None,
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

        return audit_files(noisy, denoised, plain_options(options))

    run(work)


@app.command()
def cells(
    source: Annotated[Path, typer.Argument(help="Cells: .h5ad, .loom, 10x .h5, or a folder with matrix.mtx.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .h5ad file; else beside it.")] = None,
    use_rep: Annotated[str, typer.Option(help="The components in .obsm; X_pca is made if it is not there.")] = "X_pca",
    counts_layer: Annotated[str, typer.Option(help="The layer with the raw counts.")] = "counts",
    n_comps: Annotated[int, typer.Option(min=1, help="How many components.")] = 20,
    noise: Annotated[float | None, typer.Option(help="Their noise; without it, found from the counts.")] = None,
    device: DeviceOption = Device.auto,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Denoise single cells: writes cells_denoised.h5ad with clearer components beside cells.h5ad."""

    def work() -> int:
        from .cells_command import denoise_cells

        return denoise_cells(
            source, output, use_rep, counts_layer, n_comps, noise, seed, device.value, force=force, quiet=quiet
        )

    run(work)


@app.command()
def generate(
    model: Annotated[Path, typer.Argument(help="A generator, made by inverseflow train --generator.")],
    count: Annotated[int, typer.Option("--number", "-n", help="How many images.")] = 16,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write into.")] = Path("generated"),
    size: Annotated[int | None, typer.Option(min=8, help="Their side in pixels; by default as trained.")] = None,
    seed: Seed = 0,
    device: DeviceOption = Device.auto,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Draw new clean images, like those under the noise that was trained on."""

    def work() -> int:
        from .generate_command import generate_images

        return generate_images(model, count, output, size, seed, device.value, force=force, quiet=quiet)

    run(work)


@app.command()
def report(
    noisy: Annotated[Path, typer.Argument(help="The noisy image.")],
    denoised: Annotated[Path, typer.Argument(help="The denoised image.")],
    model: MadeBy = None,
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
