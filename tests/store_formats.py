"""Make tests/data: one small file of every kind in its newest format, and what it gives. Run once for a new format:

    python tests/store_formats.py

The files of older formats stay as they are: `tests/test_versions.py` loads them all, as every later release must.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import inverseflow as ivf
from inverseflow import recipe
from inverseflow.header import FORMATS
from inverseflow.noise.file import write_noise
from inverseflow.settings import Settings
from inverseflow.state import CHECKPOINT

DATA = Path(__file__).parent / "data"
TINY: dict[str, Any] = {"widths": (4, 8), "blocks": 1, "embedding": 8}
NOISE = ivf.PoissonGaussian(gain=2.0, sigma=3.0, offset=90.0)
STEPS = Settings(steps=150, batch_size=4, optimizer="adamw", checkpoint_steps=150)


def scene() -> torch.Tensor:
    """(2, 1, 40, 36): two planes of waves under the noise."""
    y, x = torch.meshgrid(torch.arange(40.0), torch.arange(36.0), indexing="ij")
    clean = torch.stack([150 + 40 * torch.sin(x / k) * torch.cos(y / (k + 1)) for k in (3.0, 5.0)])[:, None]
    return NOISE.sample(clean, generator=torch.Generator().manual_seed(0)).round()


def main() -> None:
    DATA.mkdir(exist_ok=True)
    recipe.SMALL_NET = TINY  # of the error bars and the sampler
    x1 = scene()
    how: dict[str, Any] = {"settings": STEPS, "device": "cpu", "progress": False}
    net = ivf.NetSpec("UNet", channels=1, **TINY)
    folder = DATA / "training"
    model = ivf.Denoiser.train(
        x1, NOISE, net=net, mean_settings=STEPS, samples=True, preset="fast", patch_size=16, folder=folder, **how
    )
    model.save(DATA / f"model_{FORMATS['model']}.safetensors", overwrite=True)
    (folder / "flow" / CHECKPOINT).replace(DATA / f"checkpoint_{FORMATS['checkpoint']}.safetensors")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    generator = ivf.Generator.train(x1, None, net=net, size=16, preset="fast", **how)
    generator.save(DATA / f"generator_{FORMATS['generator']}.safetensors", overwrite=True)
    write_noise(DATA / "noise_1.yaml", NOISE.then(ivf.noise.Clip(0, 4095)).then(ivf.noise.Quantise(1.0)))
    mean, std = model.denoise(x1[:1], return_std=True)
    np.savez_compressed(
        DATA / f"expected_{FORMATS['model']}.npz",
        x1=x1.numpy().astype(np.uint16),
        mean=mean.numpy(),
        flow=model.denoise(x1[:1], estimate="flow").numpy(),
        std=std.numpy(),
        low=model.interval(x1[:1], 0.9)[0].numpy(),
        sample=model.sample(x1[:1], 1, seed=3).numpy(),
        generated=generator.sample(2, seed=3).numpy(),
    )


if __name__ == "__main__":
    main()
