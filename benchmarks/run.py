"""Rows of the tables: train, score, store. A row is a file of benchmarks/rows and one training.

    python -m benchmarks.run gaussian25 gaussian25_supervised --data ../shared/data --seconds 300

PSNR as in the paper: fixed range, nothing clipped, mean over images. Each row's figures are written as it ends.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result
from benchmarks.datasets import Task, load
from inverseflow import baselines
from inverseflow.engine import choose_device
from inverseflow.metrics import psnr
from inverseflow.nets import count_parameters
from inverseflow.noise.words import in_words
from inverseflow.process import noise_rms
from inverseflow.recipe import as_data, choose_preset, default_net, default_patch, default_settings
from inverseflow.samples import Scaling, representative

ROWS = Path(__file__).parent / "rows"
KEYS = {"data", "noise", "assumed", "method", "colour", "sample", "net", "settings", "mean_settings", "patch_size"}
SUPERVISED: dict[str, Callable[..., Any]] = {
    "supervised": baselines.Supervised,
    "supervised_fresh": partial(baselines.Supervised, fresh=True),
}
RIVALS: dict[str, Callable[..., Any]] = {
    "noise2void": baselines.Noise2Void,
    "noise2self": baselines.Noise2Self,
    "noise2score": baselines.Noise2Score,
    "sure": baselines.SURE,
}
OURS = ("icm", "ifm")
CLASSICAL = ("bm3d", "nlm", "wavelet", "blur")
PASSES = {"icm": 5, "mean": 3, "sure": 6, "others": 3}
"""Of the network in a training step, a backward pass counted as two. ("ifm" has as many steps as "icm" and "mean" have
together: fewer passes, and its sweeps.)
"""
ESTIMATES = {"map": "flow", "mean": "mean"}
"""Of ours, by their names in the tables. A rival has one, which `Denoiser` calls "flow" and the tables call "mean"."""


@dataclass(frozen=True)
class Options:
    """What the command says about training; None leaves it to the row, and that to the library."""

    seconds: float | None = None
    mean_seconds: float | None = None
    steps: int | None = None
    preset: str = "auto"
    patch_size: int | None = None
    seed: int = 0
    device: str = "auto"
    override: dict[str, Any] = field(default_factory=dict)


def read_row(name: str) -> dict[str, Any]:
    path = ROWS / f"{name}.yaml"
    if not path.exists():
        raise SystemExit(f"There is no row {name!r}; benchmarks/rows has {', '.join(every_row())}.")
    row: dict[str, Any] = yaml.safe_load(path.read_text())
    if unknown := set(row) - KEYS:
        raise SystemExit(f"{path.name} has the unknown keys {', '.join(sorted(unknown))}.")
    return row


def every_row() -> list[str]:
    return sorted(path.name.removesuffix(".yaml") for path in ROWS.glob("*.yaml"))


def run(name: str, data: Path, options: Options) -> dict[str, Any]:
    """The figures of a row, without the conditions they were measured in."""
    row = read_row(name) | options.override
    task = load(row, data)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        torch.compiler.reset()  # else the networks of earlier rows count as recompilations, and a limit ends compiling
    started = time.perf_counter()
    if row["method"] in CLASSICAL:
        results = {test: {"mean": _filter(row["method"], task, *pair)} for test, pair in task.tests.items()}
        about: dict[str, Any] = {"seconds": {"in_all": round(time.perf_counter() - started, 1)}}
    else:
        model, about = train(row, task, options)
        about["seconds"]["in_all"] = round(time.perf_counter() - started, 1)
        estimates = ESTIMATES if row["method"] in OURS else {"mean": "flow"}
        results = {
            test: {title: model.denoise(noisy, estimate=which) for title, which in estimates.items()}
            for test, (noisy, _) in task.tests.items()
        }
    scores = {
        test: {title: score(result, truth, task.peak) for title, result in ({"input": noisy} | results[test]).items()}
        for test, (noisy, truth) in task.tests.items()
    }
    told = {"noise_told": in_words(task.noise), "peak": task.peak}
    return {"row": name, **row, **told, "scores": scores, **about, "peak_memory_gb": _peak_memory()}


def train(row: dict[str, Any], task: Task, options: Options) -> tuple[ivf.Denoiser, dict[str, Any]]:
    """A denoiser by the row's method, and what is to be told about its training."""
    method, device = row["method"], choose_device(options.device)
    preset = choose_preset(options.preset, device)
    samples = list(task.noisy)
    net = ivf.NetSpec(**row["net"]) if "net" in row else default_net(samples, task.noise, preset)
    if row.get("colour"):  # the colours of a photograph say much about each other
        net = ivf.NetSpec(net.kind, **{key: value for key, value in net.arguments.items() if key != "separate"})
    first, second = settings(row, samples, preset, options)
    size = options.patch_size or row.get("patch_size") or default_patch(samples, preset)
    common: dict[str, Any] = {
        "net": net,
        "settings": first,
        "seed": options.seed,
        "device": device,
        "patch_size": size,
    }
    if method in SUPERVISED:
        model = train_on_pairs(task, SUPERVISED[method], **common)
    elif method in RIVALS:
        model = ivf.Denoiser.train(
            task.noisy, task.noise, method=RIVALS[method], estimate="flow", progress=False, **common
        )
    else:
        model = ivf.Denoiser.train(
            task.noisy, task.noise, method=method, mean_settings=second, std=False, progress=False, **common
        )
    about = {key: model.description[key] for key in ("net", "noise_rms", "steps", "seconds")}
    about |= {"parameters": count_parameters(model.flow), "seed": options.seed, "preset": preset, "patch_size": size}
    used = {"flow": first, "mean": second}
    return model, about | {"settings": {stage: asdict(used[stage]) for stage in about["steps"]}}


def settings(
    row: dict[str, Any], samples: list[Tensor], preset: str, options: Options
) -> tuple[ivf.Settings, ivf.Settings]:
    """Of the two stages. A method with one stage takes all the computing; with seconds, the clock alone decides."""
    free = row["method"] == "ifm"
    stages = default_settings(None, None, samples, preset, options.seconds, options.steps, free_mean=free)
    first, second = (replace(stage, **row.get("settings", {})) for stage in stages)
    second = replace(second, **row.get("mean_settings", {}))
    one_stage = row["method"] != "icm"
    if options.seconds is None:
        if one_stage and not free and options.steps is None and first.steps and second.steps:
            passes = PASSES["icm"] * first.steps + PASSES["mean"] * second.steps
            first = replace(first, steps=round(passes / PASSES.get(row["method"], PASSES["others"])))
        return first, second
    mean_seconds = 0 if one_stage else options.mean_seconds or second.seconds or 0
    steps = {"steps": options.steps}
    first = replace(first, seconds=options.seconds - mean_seconds, **steps)
    return first, replace(second, seconds=mean_seconds or None, **(steps if mean_seconds else {}))


def train_on_pairs(
    task: Task,
    method: Callable[..., Any],
    *,
    net: ivf.NetSpec,
    settings: ivf.Settings,
    seed: int,
    device: str,
    patch_size: int,
) -> ivf.Denoiser:
    """What `Denoiser.train` does, for a method that is shown clean images: crops of both, one above the other."""
    assert task.clean is not None, "supervised rows need simulated noise"
    scaling = Scaling.of(list(task.noisy))
    pairs = [scaling.apply(pair).flatten(0, 1) for pair in torch.stack([task.noisy, task.clean], dim=1)]
    inner = scaling.carry(task.noise).to(device)
    some, _ = representative([scaling.apply(image[None])[0] for image in task.noisy])
    chosen = method(ivf.Bridge(inner))
    rms = noise_rms(inner, some.to(device))
    fitted = ivf.fit(
        chosen.prepare(net.build(seed), rms),
        chosen.loss,
        as_data(pairs, task.noise, patch_size=patch_size, augment=True),
        settings,
        seed=seed,
        device=device,
        phase=chosen.phase,
        progress=False,
        title="supervised",
    )
    description = {
        "method": "supervised",
        "net": net.to_dict(),
        "noise_rms": rms,
        "estimate": "flow",
        "seed": seed,
        "steps": {"flow": fitted.steps},
        "seconds": {"flow": round(fitted.seconds, 2)},
    }
    history = {"flow": fitted.history}
    channels = task.noisy.shape[1]
    return ivf.Denoiser(chosen, fitted.model, None, task.noise, scaling, "SCYX", channels, description, history)


def score(result: Tensor, truth: Tensor, peak: float) -> dict[str, float]:
    """Mean over the images of (B, C, Y, X)."""
    ratios = [psnr(a, b, peak) for a, b in zip(result, truth, strict=True)]
    similar = [
        float(structural_similarity_index_measure(a[None], b[None], data_range=peak))
        for a, b in zip(result, truth, strict=True)
    ]
    return {"psnr": round(float(np.mean(ratios)), 3), "ssim": round(float(np.mean(similar)), 4)}


def _filter(method: str, task: Task, noisy: Tensor, truth: Tensor) -> Tensor:
    """A classical filter, image by image."""
    from benchmarks import classical

    def one(image: np.ndarray, clean: np.ndarray) -> np.ndarray:
        if method == "bm3d":
            return classical.bm3d(image, task.noise)
        if method == "blur":
            return classical.blur_oracle(image, clean)
        function = {"nlm": classical.nlm_tuned, "wavelet": classical.wavelet_tuned}[method]
        return function(image, peak=task.peak)

    images, cleans = (x[:, 0].double().numpy() for x in (noisy, truth))
    return torch.from_numpy(np.stack([one(a, b) for a, b in zip(images, cleans, strict=True)]))[:, None].float()


def _peak_memory() -> float:
    """Of the device for this row, or of this process so far on a CPU."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def in_one_line(figures: dict[str, Any]) -> str:
    tests = [
        f"{test} " + " ".join(f"{title} {values['psnr']:.2f}" for title, values in scores.items())
        for test, scores in figures["scores"].items()
    ]
    return f"{figures['row']}: {'; '.join(tests)}; {figures['seconds']['in_all']:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", help="names of files in benchmarks/rows")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the data sets, or their archive")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where ROW.json goes")
    parser.add_argument("--seconds", type=float, help="of training, all stages of a row together")
    parser.add_argument("--mean-seconds", type=float, help="of those, for the posterior mean")
    parser.add_argument("--steps", type=int, help="of the first stage, at most")
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--patch-size", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--override", type=json.loads, default={}, help="JSON that replaces keys of the rows")
    given = vars(parser.parse_args())
    names, data, folder = given.pop("rows"), given.pop("data"), given.pop("results")
    for name in names:
        read_row(name)  # a wrong name is told before hours of training
    failed = 0
    for name in names:
        try:
            figures = run(name, data, Options(**given))
        except ivf.InverseflowError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
            continue
        write_result(folder / f"{name}.json", figures)
        print(in_one_line(figures), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
