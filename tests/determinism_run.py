"""Train and denoise in a process of its own: `python determinism_run.py THREADS` prints a digest of what came out."""

from __future__ import annotations

import hashlib
import sys

import torch

import inverseflow as ivf
from inverseflow import learning


def digest(threads: int) -> str:
    torch.set_num_threads(threads)
    learning.CALIBRATION_VALUES = 2**13
    noise = ivf.PoissonGaussian(2.0, 1.0)
    clean = 20 + 10 * torch.sin(torch.arange(64.0) / 7).expand(1, 1, 48, 64)
    noisy = noise.sample(clean, generator=torch.Generator().manual_seed(3))
    net = ivf.NetSpec("UNet", channels=1, dims=2, widths=(8, 16), blocks=1, patch=2)
    how = ivf.Settings(steps=6, batch_size=2)
    common = {"net": net, "settings": how, "seed": 5, "device": "cpu", "progress": False}
    model = ivf.Denoiser.train(noisy, noise, method="icm", samples=True, **common)  # the method with all stages
    results = [*model.denoise(noisy, return_std=True), model.sample(noisy, 2, seed=1), *model.interval(noisy)]
    weights = [value for network in (model.flow, model.mean) for value in network.state_dict().values()]
    return hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in results + weights)).hexdigest()


if __name__ == "__main__":
    print(digest(int(sys.argv[1])))
