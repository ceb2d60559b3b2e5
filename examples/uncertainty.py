"""What is known of one photograph: the mean, its error bars, and other photographs that the noisy one could come from.

    python examples/uncertainty.py --output out/uncertainty

Learns from the noisy photograph alone; some minutes on two CPU cores.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch

import inverseflow as ivf
from common import output_folder, write_json
from inverseflow.demo import NOISE, bundled_image
from inverseflow.metrics import psnr


def main() -> None:
    arguments = output_folder(__doc__, steps=1000, seed=0)
    clean = bundled_image()
    noisy = NOISE.sample(clean, generator=torch.Generator().manual_seed(arguments.seed))
    settings = ivf.Settings(steps=arguments.steps)
    model = ivf.Denoiser.train(noisy, NOISE, samples=True, settings=settings, seed=arguments.seed, device="cpu")
    mean, std = model.denoise(noisy, return_std=True)
    low, high = model.interval(noisy, 0.9)
    draws = model.sample(noisy, 8)
    panels = {
        "noisy": noisy,
        "mean: least error": mean,
        "its standard deviation, 5 times": 5 * std,
        "a draw: it could be this": draws[0],
        "another draw: or this": draws[1],
        "truth (never shown)": clean,
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 4.3), layout="constrained")
    for axis, (title, image) in zip(axes, panels.items(), strict=True):
        axis.imshow(image[0, 0, 60:260, 140:340], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.set_title(title, fontsize=14)
        axis.set_axis_off()
    figure.savefig(arguments.output / "uncertainty.png", dpi=60)
    write_json(
        arguments.output / "uncertainty.json",
        {
            "psnr_noisy": psnr(noisy, clean, 255),
            "psnr_mean": psnr(mean, clean, 255),
            "psnr_one_draw": psnr(draws[0], clean, 255),
            "psnr_mean_of_8_draws": psnr(draws.mean(0), clean, 255),
            "said_rms_error": float(std.square().mean().sqrt()),
            "true_rms_error": float((mean - clean).square().mean().sqrt()),
            "held_by_90_percent_intervals": float(((clean >= low) & (clean <= high)).double().mean()),
            "seconds": model.description["seconds"],
        },
    )


if __name__ == "__main__":
    main()
