"""8 gaussians (the paper's Figure 2, bottom): IFM and ICM learn from 8000 noisy points alone; scored on 1600 others.

    python examples/eight_gaussians.py --output out/eight_gaussians

Beside them stands a reader who is told which of the 8 places every training point comes from, and matches mean and
covariance of each place: what 8000 points can tell about a distribution that is allowed to have spread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import inverseflow as ivf
from common import eight_gaussians, output_folder, write_json
from inverseflow.methods import Batch, Moment
from inverseflow.metrics import energy_distance, rmse

SIGMA = 0.15
COMMON = {"batch_size": 512, "lr": 2e-3, "clip": None}
METHODS = {
    # a coarse grid: the noise is a fifth of the signal, where even N = 6 loses only 1 % of it
    "icm": (
        lambda process: ivf.InverseConsistency(process, grid=ivf.GrowingGrid(5, 10)),
        ivf.Settings(steps=4000, **COMMON),
    ),
    # The nearer the estimate comes to points without spread, the more loosely it holds their places, and noisy steps
    # let them drift apart; estimates of a network averaged over 100 steps do not.
    "ifm": (
        lambda process: ivf.InverseFlowMatching(process, averaged=True),
        ivf.Settings(steps=6000, ema=0.99, **COMMON),
    ),
}


def draw(path: Path, noisy: Tensor, results: dict[str, Tensor]) -> None:
    figure, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 4.2), layout="constrained")
    for axis, (title, points) in zip(axes, results.items(), strict=True):
        for a, b in zip(noisy[:300], points[:300], strict=True):
            axis.plot([a[0], b[0]], [a[1], b[1]], color="0.8", linewidth=0.6, zorder=0)
        axis.scatter(*noisy[:300].T, s=4, color="black", label="noisy")
        axis.scatter(*points[:300].T, s=4, color="tab:blue", label="denoised")
        axis.set(title=title, aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
    axes[0].legend(loc="center")
    figure.savefig(path, dpi=120)


def told_the_places(train: Tensor, places: Tensor, noisy: Tensor) -> Tensor:
    """The map of someone who knows the place of every training point: for each, the flow between two Gaussians.

    The covariance S of a place's points has the noise in it: its clean covariance is the positive part of S - sigma^2.
    """
    centres = torch.unique(places, dim=0)
    of = [torch.cdist(points, centres).argmin(1) for points in (places, noisy)]
    result = torch.empty_like(noisy)
    for number in range(len(centres)):
        here = train[of[0] == number]
        mean = here.mean(0)
        variance, axes = torch.linalg.eigh(torch.cov(here.T))
        keep = ((variance - SIGMA**2).clamp(min=0) / variance).sqrt()
        result[of[1] == number] = mean + (noisy[of[1] == number] - mean) @ (axes * keep) @ axes.T
    return result


def seconds_per_call(calls: dict[str, object], rounds: int) -> dict[str, float]:
    """Median seconds of each call, the calls taking turns so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: sorted(values)[rounds // 2] for name, values in times.items()}


def training_step(model: ivf.Denoiser, batch: Tensor):
    """One gradient step's work: the loss and its derivative."""
    generator = torch.Generator().manual_seed(0)
    net = model.flow.requires_grad_(True)

    def call() -> None:
        model.method.loss(net, Batch(batch, torch.arange(len(batch))), Moment(1.0, generator)).mean().backward()

    return call


def main() -> None:
    arguments = output_folder(__doc__, steps=0, seed=0)
    generator = torch.Generator().manual_seed(arguments.seed)
    places, train = eight_gaussians(8000, SIGMA, generator)
    truth, noisy = eight_gaussians(1600, SIGMA, generator)

    def score(points: Tensor) -> dict[str, float]:
        error, distance = rmse(points, truth), energy_distance(points, truth)
        return {
            "rmse": error,
            "rmse_over_noisy": error / rmse(noisy, truth),
            "energy_distance": distance,
            "energy_distance_over_noisy": distance / energy_distance(noisy, truth),
        }

    figures: dict[str, object] = {
        "noisy": score(noisy),
        "told_the_places": score(told_the_places(train, places, noisy)),
    }
    results, models = {}, {}
    for name, (method, usual) in METHODS.items():
        settings = replace(usual, steps=arguments.steps or usual.steps)
        models[name] = model = ivf.Denoiser.train(
            train, ivf.Gaussian(SIGMA), method=method, settings=settings, std=False, seed=arguments.seed, device="cpu"
        )
        for estimate in ("flow", "mean"):
            points = results[f"{name.upper()}, {estimate}"] = model.denoise(noisy, estimate=estimate)
            figures[f"{name}_{estimate}"] = score(points)
        figures[f"{name}_training_seconds"] = model.description["seconds"]
    rounds = 3 if arguments.steps else 60  # a short run is for a look
    step = seconds_per_call({k: training_step(m, train[:512]) for k, m in models.items()}, rounds)
    denoise = seconds_per_call({k: lambda m=m: m.denoise(noisy, estimate="flow") for k, m in models.items()}, rounds)
    figures["seconds_per_training_step"], figures["seconds_to_denoise_1600"] = step, denoise
    figures["icm_faster_per_step"], figures["icm_faster_to_denoise"] = (
        step["ifm"] / step["icm"],
        denoise["ifm"] / denoise["icm"],
    )
    draw(arguments.output / "eight_gaussians.png", noisy, results)
    write_json(arguments.output / "eight_gaussians.json", figures)


if __name__ == "__main__":
    main()
