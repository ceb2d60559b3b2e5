"""A noise that nobody else supports: row noise of a line scanner plus Laplace noise, as one short function.

python examples/custom_noise.py --output out/custom_noise
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import inverseflow as ivf
from common import output_folder, write_json
from inverseflow.demo import bundled_image
from inverseflow.metrics import psnr


def scanner(x0: Tensor, generator: torch.Generator | None) -> Tensor:
    """Every row is shifted by its own Gaussian step, and every pixel has heavy-tailed Laplace noise."""
    rows = 12 * torch.randn((*x0.shape[:-1], 1), generator=generator, device=x0.device)
    sign = torch.randint(2, x0.shape, generator=generator, device=x0.device) * 2 - 1
    tails = 8 * sign * torch.empty_like(x0).exponential_(generator=generator)
    return x0 + rows + tails


def main() -> None:
    arguments = output_folder(__doc__, steps=900, seed=0)
    clean = bundled_image()
    noisy = scanner(clean, torch.Generator().manual_seed(arguments.seed))
    settings = ivf.Settings(steps=arguments.steps, batch_size=8)
    result = ivf.denoise(noisy, scanner, settings=settings, mean_settings=settings, seed=arguments.seed)
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.3), layout="constrained")
    for axis, (title, image) in zip(
        axes, {"noisy": noisy, "denoised": result, "truth (never shown)": clean}.items(), strict=True
    ):
        axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
        axis.set(title=title)
        axis.set_axis_off()
    figure.savefig(arguments.output / "custom_noise.png", dpi=120)
    write_json(
        arguments.output / "custom_noise.json",
        {"input_psnr": psnr(noisy, clean, 255), "output_psnr": psnr(result, clean, 255)},
    )


if __name__ == "__main__":
    main()
