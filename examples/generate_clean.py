"""New *clean* samples though only noisy ones were ever seen: generalized consistency training on the recovered 8
gaussians.

    python examples/generate_clean.py --output out/generate_clean

For comparison, the same generator trained on the noisy points themselves: it can only draw noisy ones. Both are scored
with one network pass and with five, where each further pass puts some noise back and removes it again.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import inverseflow as ivf
from common import eight_gaussians, output_folder, write_json
from inverseflow.losses import squared
from inverseflow.metrics import energy_distance
from inverseflow.patches import Rows

SIGMA = 0.15
TO_NORMAL = ivf.AffineGaussian(alpha=lambda t: 1 - t, sigma=lambda t: t)  # x0 at t = 0, a standard normal at t = 1


AGAIN_FROM = (0.8, 0.6, 0.4, 0.2)  # the times that the further passes go back to


def generator_from(data: Tensor, steps: int, seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Train c(x, t) on `data` and map `count` standard normal draws to new samples, in one pass and in five.

    Squared distance: the velocity's distribution given x_t has many peaks here, and its median is not its mean. The
    network sees time in a small range, which lets it learn all times together from the start.
    """
    method = ivf.ConsistencyTraining(TO_NORMAL, grid=ivf.GrowingGrid(10, 80), distance=squared)
    model = method.prepare(ivf.NetSpec("MLP", features=2).build(seed), noise_rms=0.15)
    fitted = ivf.fit(
        model,
        method.loss,
        Rows(data),
        ivf.Settings(steps=steps, batch_size=512, lr=2e-3, clip=None),
        seed=seed,
        device="cpu",
        title="generator",
    )
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        one = x = method.denoise(fitted.model, torch.randn(count, 2, generator=generator))
        for t in AGAIN_FROM:
            times = torch.full((count,), t)
            x = fitted.model(TO_NORMAL.sample(x, times, generator=generator)[0], times)
    return one, x


def main() -> None:
    arguments = output_folder(__doc__, steps=4000, seed=0)
    generator = torch.Generator().manual_seed(arguments.seed)
    _, noisy = eight_gaussians(8000, SIGMA, generator)
    clean, _ = eight_gaussians(4000, SIGMA, generator)
    settings = ivf.Settings(steps=arguments.steps, batch_size=512, lr=2e-3, clip=None)
    denoiser = ivf.Denoiser.train(
        noisy, ivf.Gaussian(SIGMA), estimate="flow", settings=settings, seed=arguments.seed, device="cpu"
    )
    recovered = denoiser.denoise(noisy)
    new_clean, new_clean5 = generator_from(recovered, 3 * arguments.steps, arguments.seed, 4000)
    new_noisy, new_noisy5 = generator_from(noisy, 3 * arguments.steps, arguments.seed, 4000)
    panels = {
        "noisy data (all that was seen)": noisy,
        "new clean points, one pass": new_clean,
        "five passes": new_clean5,
        "the same on the noisy data, five passes": new_noisy5,
    }
    figure, axes = plt.subplots(1, 4, figsize=(16.8, 4.4), layout="constrained")
    for axis, (title, points) in zip(axes, panels.items(), strict=True):
        axis.scatter(*points[:2000].T, s=3)
        axis.set(title=title, aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6))
    figure.savefig(arguments.output / "generate_clean.png", dpi=120)
    distances = {
        "noisy_data": noisy[:4000],
        "recovered_data": recovered[:4000],
        "generated_clean": new_clean,
        "generated_clean_five_passes": new_clean5,
        "generated_from_noisy": new_noisy,
        "generated_from_noisy_five_passes": new_noisy5,
    }
    write_json(
        arguments.output / "generate_clean.json",
        {f"energy_distance_{k}": energy_distance(v, clean, independent=True) for k, v in distances.items()},
    )


if __name__ == "__main__":
    main()
