"""BSDS500: train on one noisy copy of each of the 200 training images, score on the test set and on Set12 (256 x 256
centre crops).

    python -m benchmarks.photographs --data DIR --noise gaussian:sigma=0.098 --seconds 100

DIR holds photographs.npz, which `python -m benchmarks.photographs --pack ../shared/data --data DIR` makes. PSNR as in
the paper: range 1, nothing clipped, mean over images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import inverseflow as ivf
from benchmarks.common import RESULTS, write_result
from inverseflow.metrics import psnr
from inverseflow.noise import as_noise

SETS = ("bsds500", "set12")


def pack(source: Path, target: Path) -> None:
    """Grey training images, padded to one shape with their sizes, and the centre crops of the test sets."""
    from skimage.io import imread

    def grey(path: Path) -> np.ndarray:
        image = imread(path).astype(np.float64)
        return np.round(image @ [0.299, 0.587, 0.114] if image.ndim == 3 else image).astype(np.uint8)

    def centre(image: np.ndarray) -> np.ndarray:
        top, left = (image.shape[0] - 256) // 2, (image.shape[1] - 256) // 2
        return image[top : top + 256, left : left + 256]

    train = [grey(p) for p in sorted((source / "BSDS500/train").glob("*.jpg"))]
    train = [image if image.shape[0] < image.shape[1] else image.T for image in train]
    tests = {"bsds500": "BSDS500/test/*.jpg", "set12": "Set12/*.png"}
    crops = {name: np.stack([centre(grey(p)) for p in sorted(source.glob(pattern))]) for name, pattern in tests.items()}
    target.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target / "photographs.npz", train=np.stack(train), **crops)


def run(
    data: Path,
    noise_text: str,
    seconds: float,
    mean_seconds: float,
    seed: int,
    batch_size: int,
    patch_size: int,
    lr: float,
    **extra: Any,
) -> dict[str, Any]:
    noise = as_noise(noise_text)
    files = np.load(data / "photographs.npz")
    generator = torch.Generator().manual_seed(seed)
    noisy = {
        name: noise.sample(torch.from_numpy(files[name]).float()[:, None] / 255, generator=generator)
        for name in ("train", *SETS)
    }
    settings = ivf.Settings(steps=None, seconds=seconds, batch_size=batch_size, lr=lr, **extra.pop("settings", {}))
    mean_settings = ivf.Settings(
        steps=None, seconds=mean_seconds, batch_size=batch_size, lr=lr / 2, compile=settings.compile
    )
    started = time.perf_counter()
    model = ivf.Denoiser.train(
        noisy["train"],
        noise,
        settings=settings,
        mean_settings=mean_settings,
        patch_size=patch_size,
        seed=seed,
        progress=False,
        **extra,
    )
    figures: dict[str, Any] = {
        "noise": noise_text,
        "seconds": round(time.perf_counter() - started, 1),
        "seed": seed,
        **model.description,
    }
    for name in SETS:
        truth = torch.from_numpy(files[name]).float()[:, None] / 255
        results = {"input": noisy[name], "flow": model.denoise(noisy[name], estimate="flow")}
        if mean_seconds:
            results["mean"] = model.denoise(noisy[name], estimate="mean")
        figures[name] = {
            k: round(sum(psnr(a, b) for a, b in zip(v, truth, strict=True)) / len(truth), 3) for k, v in results.items()
        }
    if torch.cuda.is_available():
        figures["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--pack", type=Path, help="make photographs.npz in --data from this copy of the benchmark data, then stop"
    )
    parser.add_argument("--noise", default=f"gaussian:sigma={25 / 255}")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--mean-seconds", type=float, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="photographs_gaussian25")
    arguments = vars(parser.parse_args())
    source, name = arguments.pop("pack"), arguments.pop("name")
    if source:
        pack(source, arguments["data"])
        return
    figures = run(noise_text=arguments.pop("noise"), **arguments)
    write_result(RESULTS / f"{name}.json", figures)
    print(figures)


if __name__ == "__main__":
    main()
