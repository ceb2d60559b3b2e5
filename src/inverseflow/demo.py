"""The two-minute tour: python -m inverseflow.demo

Takes a photograph, adds the noise of a camera in low light (photons and read-out), learns to remove it from that one
noisy picture alone, and compares with the truth, which is used for nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .denoiser import Denoiser
from .errors import InverseflowError
from .metrics import psnr
from .noise import PoissonGaussian
from .settings import Settings

NOISE = PoissonGaussian(gain=4.0, sigma=6.0)  # grey levels: 4 per photon, read-out noise 6


def bundled_image() -> Tensor:
    """The 512 x 512 "camera" picture (public domain) that comes with scikit-image, in grey levels."""
    from skimage import data

    image: Any = data.camera()  # type: ignore[no-untyped-call]
    return torch.from_numpy(image).float()[None, None]


def picture(
    path: Path, panels: list[tuple[str, Tensor]], crop: tuple[slice, slice] = (slice(60, 260), slice(140, 340))
) -> None:
    """The panels side by side: whole above, a detail below."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(panels), figsize=(4 * len(panels), 8.3), layout="constrained")
    for column, (title, image) in enumerate(panels):
        array = image.squeeze().numpy()
        for axis, part in zip(axes[:, column], (array, array[crop]), strict=True):
            axis.imshow(part, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axis.set_axis_off()
        axes[0, column].set_title(title, fontsize=13)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def run(output: Path, *, settings: Settings | None = None, seed: int = 0, device: str = "auto") -> dict[str, float]:
    from skimage.io import imsave

    clean = bundled_image()
    noisy = NOISE.sample(clean, generator=torch.Generator().manual_seed(seed))
    started = time.perf_counter()
    model = Denoiser.train(noisy, NOISE, settings=settings, seed=seed, device=device)
    result = model.denoise(noisy)
    figures = {
        "input_psnr": round(psnr(noisy, clean, 255), 2),
        "flow_psnr": round(psnr(model.denoise(noisy, estimate="flow"), clean, 255), 2),
        "output_psnr": round(psnr(result, clean, 255), 2),
        "seconds": round(time.perf_counter() - started, 1),
    }
    output.mkdir(parents=True, exist_ok=True)
    for name, image in (("noisy", noisy), ("denoised", result)):
        imsave(
            output / f"{name}.png", image.squeeze().clamp(0, 255).round().numpy().astype(np.uint8), check_contrast=False
        )
    model.save(output / "model.safetensors", overwrite=True)
    (output / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    panels = [
        (f"noisy, {figures['input_psnr']:.1f} dB", noisy),
        (f"denoised, {figures['output_psnr']:.1f} dB", result),
        ("truth (never shown)", clean),
    ]
    picture(output / "before_after.png", panels)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the results")
    parser.add_argument("--steps", type=int, help="steps of the first stage; the second takes half (default: 500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    settings = Settings(steps=arguments.steps) if arguments.steps else None
    print(
        "Learning to denoise one picture from itself; half a minute on two CPU cores, seconds on a GPU.",
        flush=True,
    )
    try:
        figures = run(arguments.output, settings=settings, seed=arguments.seed, device=arguments.device)
    except InverseflowError as error:
        raise SystemExit(f"inverseflow: {error}") from None
    gain = figures["output_psnr"] - figures["input_psnr"]
    print(
        f"PSNR {figures['input_psnr']:.2f} dB -> {figures['output_psnr']:.2f} dB ({gain:+.2f} dB) "
        f"in {figures['seconds']:.0f} s, without a clean example."
    )
    print(
        f"Look at {arguments.output / 'before_after.png'}; the result is {arguments.output / 'denoised.png'}, "
        f"the model {arguments.output / 'model.safetensors'}."
    )


if __name__ == "__main__":
    main()
