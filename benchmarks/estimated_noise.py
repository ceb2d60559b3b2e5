"""What does it cost not to know the noise? The same training with the true and with the estimated noise.

    python -m benchmarks.estimated_noise [--data ../shared/data] [--seeds 2] [--steps 1000] [--workers 2]

20 noisy BSDS500 training crops, the fast preset to its last step (or --steps, with half as many for the mean), scored
on 50 test crops. The noise is estimated on the 20 noisy crops together, and on the first of them alone. A seed draws
other noise and trains from other weights; both sides of a comparison share it. What the output holds of the same
number of steps is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import inverseflow as ivf
from benchmarks import datasets
from benchmarks.common import RESULTS, write_result
from inverseflow.metrics import psnr
from inverseflow.noise.words import in_words
from inverseflow.recipe import PRESETS

NOISES: dict[str, ivf.Noise] = {
    "gaussian 25": ivf.Gaussian(25 / 255),
    "poisson 0.01 + gaussian 10": ivf.PoissonGaussian(0.01, 10 / 255),
    "correlated 25": ivf.CorrelatedGaussian.cosine(25 / 255, 2.0),
}
KNOWN = ("true", "estimated", "estimated from one image")
TRAIN, TEST, SIZE = 20, 50, 256


def measure(name: str, known: str, seed: int, steps: int, data: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    truth = NOISES[name]
    task = datasets.load({"data": "photographs", "noise": "gaussian:sigma=0.1"}, data)
    assert task.clean is not None
    top, left = ((n - SIZE) // 2 for n in task.clean.shape[-2:])
    clean = task.clean[: 2 * TRAIN : 2, :, top : top + SIZE, left : left + SIZE]
    test = task.tests["bsds500"][1][:: 200 // TEST]
    generator = torch.Generator().manual_seed(seed)
    noisy, noisy_test = (truth.sample(x, generator=generator) for x in (clean, test))
    noise = truth
    if known != "true":
        seen = noisy[:, 0] if known == "estimated" else noisy[:1, 0]
        noise = ivf.estimate_noise(seen.double().numpy(), axes="SYX").noise
    settings = replace(PRESETS["fast"], steps=steps)
    model = ivf.Denoiser.train(noisy, noise, settings=settings, preset="fast", seed=seed, std=False, progress=False)
    result = model.denoise(noisy_test)
    score = sum(psnr(a, b) for a, b in zip(result, test, strict=True)) / len(test)
    return {"noise": name, "known": known, "seed": seed, "used": in_words(noise), "psnr": round(score, 3)}


def losses(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What every seed loses against the true noise, and the mean over the seeds."""
    score = {(row["noise"], row["known"], row["seed"]): row["psnr"] for row in rows}
    found: list[dict[str, Any]] = []
    for name in NOISES:
        for known in KNOWN[1:]:
            seeds = [seed for noise, how, seed in score if (noise, how) == (name, known)]
            lost = [round(score[name, "true", seed] - score[name, known, seed], 3) for seed in seeds]
            if lost:
                mean = round(sum(lost) / len(lost), 3)
                found.append({"noise": name, "known": known, "lost_db": mean, "by_seed": lost})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=PRESETS["fast"].steps)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "estimated_noise.json")
    arguments = parser.parse_args()
    asked = [(noise, known, seed) for seed in range(arguments.seeds) for noise in NOISES for known in KNOWN[:2]]
    asked += [(noise, KNOWN[2], seed) for seed in range(arguments.seeds) for noise in NOISES]
    stored = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    rows: list[dict[str, Any]] = stored["rows"] if stored.get("steps") == arguments.steps else []
    done = {(row["noise"], row["known"], row["seed"]) for row in rows}
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        for job in [pool.submit(measure, *row, arguments.steps, arguments.data) for row in asked if row not in done]:
            rows.append(job.result())
            print(rows[-1], flush=True)
            write_result(arguments.output, {"steps": arguments.steps, "lost": losses(rows), "rows": rows})


if __name__ == "__main__":
    main()
