"""How often is the audit wrong? Denoisers trained with right and with wrong assumptions, judged image by image.

    python -m benchmarks.audit_rates --data ../shared/data [--models DIR] [--workers 2] [--raw FILE]

Every denoiser learns from 40 noisy BSDS500 training crops (the fast preset) and is judged on 20 of them and on 20 test
images; some of the right ones are told 4 % more noise than there is, as our estimates lean, and some learn from one
image alone, told its noise or, as `inverseflow denoise` does it, with the noise that is estimated from that image. An
estimate whose standard deviation is more than 10 % off (root mean square over the pixels) is neither right nor wrong.
Images of even number calibrate the limits on the right cases (`calibrate`). Images of odd number give the rates: a
right case that is not passed is a false alarm, a wrong case that is passed a miss.
Wrong: the noise 20 % too small or 40 % too large, white noise assumed on correlated, Gaussian on Poisson, results
blurred by 1.5 pixels, 30 steps of training. Without the denoiser the clean images themselves are right cases too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

import inverseflow as ivf
from benchmarks import datasets
from benchmarks.common import RESULTS, write_result
from inverseflow.audit import figures, judge
from inverseflow.noise import CorrelatedGaussian, CorrelatedSignal, Gaussian, Noise, Poisson, PoissonGaussian

S = 25 / 255
TRAIN, OWN, NEW, SIZE = 40, 20, 20, 256
SINGLE, ESTIMATED = range(0, OWN + NEW, 13), range(0, OWN + NEW, 5)  # images that a denoiser learns from alone
OFF = 0.1  # of the noise: an estimate beyond it is no right case any more
OF_THE_NOISE = (
    "too little noise declared",
    "too much noise declared",
    "other curve declared",
    "other correlation declared",
)
SHORT, BLUR, SMALLEST_LIMIT, EACH, ALL = 30, 1.5, 0.03, 0.97, 0.95
NEITHER = "more than 10 % off"


def correlated(factor: float = 1.0) -> Noise:
    return CorrelatedGaussian.cosine(factor * S, 2.0)


def growing() -> Noise:
    """Correlated noise as a wide-field camera has it, a little more in the light."""
    return CorrelatedSignal(0.6 * S, CorrelatedGaussian.cosine(1.0, 2.0).kernel, gain=0.0035)


CASES: dict[str, tuple[Noise, Noise | None]] = {
    "gaussian 25, right": (Gaussian(S), Gaussian(S)),
    "gaussian 10, right": (Gaussian(10 / 255), Gaussian(10 / 255)),
    "gaussian 50, right": (Gaussian(2 * S), Gaussian(2 * S)),
    "poisson, right": (Poisson(0.01), Poisson(0.01)),
    "poisson-gaussian, right": (PoissonGaussian(0.01, 10 / 255), PoissonGaussian(0.01, 10 / 255)),
    "correlated, right": (correlated(), correlated()),
    "gaussian 25 with 4 % more, right": (Gaussian(S), Gaussian(1.04 * S)),
    "poisson with 4 % more, right": (Poisson(0.01), Poisson(0.01 * 1.04**2)),
    "correlated with 4 % more, right": (correlated(), correlated(1.04)),
    "gaussian 25 from one image, right": (Gaussian(S), Gaussian(S)),
    "poisson from one image, right": (Poisson(0.01), Poisson(0.01)),
    "correlated from one image, right": (correlated(), correlated()),
    "gaussian 25 as estimated, right": (Gaussian(S), None),
    "poisson as estimated, right": (Poisson(0.01), None),
    "poisson-gaussian as estimated, right": (PoissonGaussian(0.01, 10 / 255), None),
    "correlated as estimated, right": (correlated(), None),
    "correlated, more in the light, as estimated, right": (growing(), None),
    "gaussian 25, -20 %": (Gaussian(S), Gaussian(0.8 * S)),
    "gaussian 25, +40 %": (Gaussian(S), Gaussian(1.4 * S)),
    "poisson, -20 %": (Poisson(0.01), Poisson(0.0064)),
    "poisson, +40 %": (Poisson(0.01), Poisson(0.0196)),
    "correlated, -20 %": (correlated(), correlated(0.8)),
    "correlated, +40 %": (correlated(), correlated(1.4)),
    "correlated, white assumed": (correlated(), Gaussian(S)),
    "poisson, gaussian assumed": (Poisson(0.01), Gaussian(0.0663)),
    "poisson-gaussian, gaussian assumed": (PoissonGaussian(0.01, 10 / 255), Gaussian(0.077)),
    "gaussian 25, under-trained": (Gaussian(S), Gaussian(S)),
    "poisson, under-trained": (Poisson(0.01), Poisson(0.01)),
    "correlated, under-trained": (correlated(), correlated()),
}


def images(data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Training crops, every other image, and test crops, every tenth."""
    task = datasets.load({"data": "photographs", "noise": f"gaussian:sigma={S}"}, data)
    assert task.clean is not None
    top, left = ((n - SIZE) // 2 for n in task.clean.shape[-2:])
    own = task.clean[: 2 * TRAIN : 2, :, top : top + SIZE, left : left + SIZE]
    return own, task.tests["bsds500"][1][:: 200 // NEW]


def noisy_images(data: Path, noise: Noise) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    own, new = images(data)
    return noise.sample(own, generator=generator), noise.sample(new, generator=generator)


def train(case: str, number: int | None, data: Path, folder: Path) -> str:
    """One model for 40 images, or one for the image of this number alone."""
    torch.set_num_threads(1)
    true, assumed = CASES[case]
    noisy, new = noisy_images(data, true)
    if number is not None:
        noisy = judged(noisy, new)[number : number + 1]
    assumed = assumed or ivf.estimate_noise(noisy.numpy(), axes="SCYX").noise
    steps = SHORT if "under-trained" in case else None
    model = ivf.Denoiser.train(noisy, assumed, preset="fast", max_steps=steps, std=False, progress=False)
    model.save(file_of(case, number, folder), overwrite=True)
    return case


def file_of(case: str, number: int | None, folder: Path) -> Path:
    return folder / f"{case}{'' if number is None else f' {number}'}.safetensors"


def judged(own: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return torch.cat([own[: 2 * OWN : 2], new])


def alone(case: str) -> list[int]:
    """The images that have a model of their own."""
    return [*ESTIMATED] if "as estimated" in case else [*SINGLE] if "one image" in case else []


def off(assumed: Noise, true: Noise, clean: torch.Tensor) -> float:
    """Root mean square of log(assumed / true) standard deviation."""
    ratio = assumed.std(assumed.project(clean)).clamp(min=1e-3 * S) / true.std(clean).clamp(min=1e-3 * S)
    return float(ratio.log().square().mean().sqrt())


def collect(case: str, data: Path, folder: Path, blurred: bool) -> list[dict[str, Any]]:
    """The figures of every image of a case, with the denoiser and without it."""
    torch.set_num_threads(1)
    true, _ = CASES[case]
    cleans, rows = judged(*images(data)), []
    for number, x1 in enumerate(judged(*noisy_images(data, true))):
        if alone(case) and number not in alone(case):
            continue
        model = ivf.Denoiser.load(file_of(case, number if alone(case) else None, folder), device="cpu")
        mean, flow = model.function("mean"), model.function("flow")
        if blurred:
            mean, flow = smoothed(mean), smoothed(flow)
        generator = torch.Generator().manual_seed(number)
        noisy = x1[None]
        clean = mean(noisy)
        figure = figures(noisy, clean, model.noise, denoise=mean, plausible=flow(noisy), generator=generator)
        without = figures(noisy, clean, model.noise, generator=generator)
        name = case.replace("right", "over-smoothed") if blurred else case
        if "as estimated" in case and off(model.noise, true, cleans[number][None]) > OFF:
            name = case.replace("right", NEITHER)
        rows.append({"case": name, "image": number, "with": figure, "alone": without})
    return rows


def truths(case: str, data: Path) -> list[dict[str, Any]]:
    """The clean images themselves, which another tool may come near."""
    torch.set_num_threads(1)
    true, rows = CASES[case][0], []
    for number, pair in enumerate(zip(judged(*noisy_images(data, true)), judged(*images(data)), strict=True)):
        noisy, clean = (image[None] for image in pair)
        figure = figures(noisy, clean, true, generator=torch.Generator().manual_seed(number))
        rows.append({"case": case.replace("right", "the truth, right"), "image": number, "alone": figure})
    return rows


def smoothed(function: Any) -> Any:
    return lambda x: torch.from_numpy(gaussian_filter(function(x).numpy(), (0, 0, BLUR, BLUR)))


def calibrate(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """97 % of the right cases stay below each limit; then all limits grow alike until 95 % stay below all of them.
    Every kind of case weighs the same, however many images it has. Figures that compare the declared noise with the
    noise that is seen have limits of at least `OFF`: what is less off than that is right.
    """
    chosen = [row for row in rows if kind in row and row["case"].endswith("right") and row["image"] % 2 == 0]
    many = Counter(row["case"] for row in chosen)
    right, weights = [row[kind] for row in chosen], [1 / many[row["case"]] for row in chosen]

    def most(values: list[float], share: float) -> float:
        return float(np.quantile(values, share, weights=weights, method="inverted_cdf"))

    names = {name: None for row in right for name in row}
    base = {name: max(SMALLEST_LIMIT, most([row.get(name, -np.inf) for row in right], EACH)) for name in names}
    worst = [max(value / base[name] for name, value in row.items()) for row in right]
    factor = max(1.0, most(worst, ALL))
    least = dict.fromkeys(OF_THE_NOISE, OFF)
    return {name: max(least.get(name, 0.0), round(factor * limit, 3)) for name, limit in base.items()}


def rates(rows: list[dict[str, Any]], kind: str, limits: dict[str, float]) -> dict[str, Any]:
    """Shares of verdicts by case over the images of odd number, and the two rates over all of them."""
    table: dict[str, Any] = {}
    rows = [row for row in rows if kind in row]
    for case in {row["case"]: None for row in rows}:
        verdicts = [judge(row[kind], limits).verdict for row in rows if row["case"] == case and row["image"] % 2 == 1]
        if verdicts:
            table[case] = {verdict: round(verdicts.count(verdict) / len(verdicts), 3) for verdict in set(verdicts)}
    right = [verdicts.get("pass", 0.0) for case, verdicts in table.items() if case.endswith("right")]
    wrong = [verdicts.get("pass", 0.0) for case, verdicts in table.items() if not case.endswith(("right", NEITHER))]
    failed = [t.get("fail", 0.0) for c, t in table.items() if c.endswith("right")]
    return {
        "cases": sum(row["image"] % 2 for row in rows if not row["case"].endswith(NEITHER)),
        "false_alarms": round(1 - float(np.mean(right)), 3),
        "of_them_failed": round(float(np.mean(failed)), 3),
        "misses": round(float(np.mean(wrong)), 3),
        "verdicts": table,
    }


def collect_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    arguments.models.mkdir(parents=True, exist_ok=True)
    started, spawn = time.perf_counter(), get_context("spawn")
    models = [(case, number) for case in CASES for number in alone(case) or [None]]
    missing = [(case, n) for case, n in models if not file_of(case, n, arguments.models).exists()]
    with ProcessPoolExecutor(arguments.trainers, spawn) as pool:
        for job in [pool.submit(train, *one, arguments.data, arguments.models) for one in missing]:
            print(f"{time.perf_counter() - started:5.0f} s  trained {job.result()}", flush=True)
    rows: list[dict[str, Any]] = []
    plain = [
        case for case in CASES if case.endswith("right") and not any(w in case for w in (" with ", " from ", " as "))
    ]
    wanted = [(case, False) for case in CASES] + [(case, True) for case in plain]
    with ProcessPoolExecutor(arguments.workers, spawn) as pool:
        jobs = [pool.submit(collect, c, arguments.data, arguments.models, b) for c, b in wanted]
        for job in [*jobs, *(pool.submit(truths, case, arguments.data) for case in plain)]:
            rows += job.result()
            print(f"{time.perf_counter() - started:5.0f} s  judged {rows[-1]['case']}", flush=True)
    if arguments.raw:
        arguments.raw.write_text(json.dumps(rows))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--models", type=Path, default=Path("out/audit_models"), help="kept, and used when they exist")
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--raw", type=Path, help="the figures of every image: read, or written if missing")
    parser.add_argument("--output", type=Path, default=RESULTS / "audit_rates.json")
    arguments = parser.parse_args()
    known = arguments.raw and arguments.raw.exists()
    rows = json.loads(arguments.raw.read_text()) if known else collect_all(arguments)
    result: dict[str, Any] = {}
    for kind in ("with", "alone"):
        limits = calibrate(rows, kind)
        result[kind] = {"limits": limits, **rates(rows, kind, limits)}
        print(kind, json.dumps(result[kind], indent=1))
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
