"""New *clean* samples though only noisy ones were ever seen: a generator of the recovered 8 gaussians.

    python examples/generate_clean.py --output out/generate_clean

For comparison, the same generators trained on the noisy points themselves: they can only draw noisy ones. "flow" solves
an ODE in 32 network passes, "consistency" (generalized consistency training) needs one.
"""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import inverseflow as ivf
from common import eight_gaussians, output_folder, write_json
from inverseflow.metrics import energy_distance

SIGMA = 0.15


def main() -> None:
    arguments = output_folder(__doc__, steps=4000, seed=0)
    generator = torch.Generator().manual_seed(arguments.seed)
    _, noisy = eight_gaussians(8000, SIGMA, generator)
    clean, _ = eight_gaussians(4000, SIGMA, generator)
    settings = ivf.Settings(steps=arguments.steps, batch_size=512, lr=2e-3, clip=None)
    common = {"seed": arguments.seed, "device": "cpu"}
    # Ten time steps at the end: as in eight_gaussians.py, the points have no width that a finer grid could keep.
    method = lambda process: ivf.InverseConsistency(process, grid=ivf.GrowingGrid(5, 10))  # noqa: E731
    denoiser = ivf.Denoiser.train(
        noisy, ivf.Gaussian(SIGMA), method=method, estimate="flow", settings=settings, **common
    )
    longer = replace(settings, steps=2 * arguments.steps)
    sets: dict[str, Tensor] = {"noisy_data": noisy[:4000], "recovered_data": denoiser.denoise(noisy)[:4000]}
    for kind in ("flow", "consistency"):
        for name, by in (("clean", denoiser), ("from_noisy", None)):
            trained = ivf.Generator.train(noisy, by, method=kind, settings=longer, **common)
            sets[f"generated_{name}_{kind}"] = trained.sample(4000, seed=arguments.seed)
    titles = {
        "noisy_data": "noisy data (all that was seen)",
        "generated_clean_flow": "new clean points, an ODE",
        "generated_clean_consistency": "one network pass",
        "generated_from_noisy_flow": "the same on the noisy data, an ODE",
    }
    figure, axes = plt.subplots(1, 4, figsize=(16.8, 4.4), layout="constrained")
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        axis.scatter(*sets[key][:2000].T, s=3)
        axis.set(title=title, aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
    figure.savefig(arguments.output / "generate_clean.png", dpi=120)
    write_json(
        arguments.output / "generate_clean.json",
        {f"energy_distance_{k}": energy_distance(v, clean, independent=True) for k, v in sets.items()},
    )


if __name__ == "__main__":
    main()
