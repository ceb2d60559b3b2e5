"""What does it cost not to know the noise? The same training with the true and with the estimated noise.

    python -m benchmarks.estimated_noise --data ../shared/data [--workers 2]

20 noisy BSDS500 training crops, the fast preset to its last step, scored on 50 test crops. The noise is estimated on
the 20 noisy crops together, and on the first of them alone.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
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


def measure(name: str, known: str, data: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    truth = NOISES[name]
    task = datasets.load({"data": "photographs", "noise": "gaussian:sigma=0.1"}, data)
    assert task.clean is not None
    top, left = ((n - SIZE) // 2 for n in task.clean.shape[-2:])
    clean = task.clean[: 2 * TRAIN : 2, :, top : top + SIZE, left : left + SIZE]
    test = task.tests["bsds500"][1][:: 200 // TEST]
    generator = torch.Generator().manual_seed(0)
    noisy, noisy_test = (truth.sample(x, generator=generator) for x in (clean, test))
    noise = truth
    if known != "true":
        seen = noisy[:, 0] if known == "estimated" else noisy[:1, 0]
        noise = ivf.estimate_noise(seen.double().numpy(), axes="SYX").noise
    model = ivf.Denoiser.train(noisy, noise, settings=PRESETS["fast"], preset="fast", progress=False)
    result = model.denoise(noisy_test)
    score = sum(psnr(a, b) for a, b in zip(result, test, strict=True)) / len(test)
    return {"noise": name, "known": known, "used": in_words(noise), "psnr": round(score, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "estimated_noise.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        for job in [pool.submit(measure, n, k, arguments.data) for k in KNOWN for n in NOISES]:
            rows.append(job.result())
            best = next(row["psnr"] for row in rows if row["noise"] == rows[-1]["noise"])
            rows[-1]["loss"] = round(best - rows[-1]["psnr"], 3)
            print(rows[-1], flush=True)
            write_result(arguments.output, {"rows": rows})


if __name__ == "__main__":
    main()
