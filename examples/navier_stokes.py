"""Turning back a fluid (the paper's Figure 2, top): recover the initial flow from final states alone.

    python examples/navier_stokes.py --family random --output out/navier_stokes

2D incompressible Navier-Stokes equations on the periodic square [0, 1]^2 from t = 0 to 0.1, density 1, viscosity 0.001,
pseudo-spectral:
    du/dt = P(-(u . grad) u) + nu lap u,   P the projection on fields without divergence.
Two families of initial flow. "simple": (-A sin 2 pi (y + a), B sin 4 pi (x + b)), the paper's with amplitudes and
phases drawn. "random": the paper's random stream function of 20 waves; its wave numbers are whole multiples of 2 pi (1
to 3) and its phases random, so that it is periodic, and its speed is scaled to rms 1. The network sees final states and
the equations. Never an initial state.

The equations carry an error of the estimate to another place, and a network that has not learned to carry it back
makes it larger at every turn. Two things keep that from happening: simulations also start from states near the
estimate (`perturb`), and the estimates are those of the averaged network (`averaged`). It takes both.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import inverseflow as ivf
from common import output_folder, write_json
from inverseflow.engine import choose_device
from inverseflow.patches import Rows
from inverseflow.tensors import normal_like, ones

SIZE, VISCOSITY, DURATION = 32, 1e-3, 0.1


class NavierStokes:
    """du/dt for velocity fields (B, 2, SIZE, SIZE), component 0 along x (last axis), 1 along y."""

    def __init__(self, device: str, size: int = SIZE, viscosity: float = VISCOSITY) -> None:
        k = 2 * math.pi * torch.fft.fftfreq(size, 1 / size, device=device)
        self.ky, self.kx = torch.meshgrid(k, k[: size // 2 + 1].abs(), indexing="ij")
        self.k2 = self.kx.square() + self.ky.square()
        limit = 2 * math.pi * size / 3  # the two-thirds rule: products of waves do not alias
        self.keep = ((self.kx < limit) & (self.ky.abs() < limit)).float()
        self.viscosity = viscosity

    def __call__(self, u: Tensor, t: Tensor | None = None) -> Tensor:
        hat = torch.fft.rfft2(u) * self.keep
        dx, dy = torch.fft.irfft2(1j * self.kx * hat), torch.fft.irfft2(1j * self.ky * hat)
        smooth = torch.fft.irfft2(hat)
        advection = -torch.fft.rfft2(smooth[:, :1] * dx + smooth[:, 1:] * dy) * self.keep
        return torch.fft.irfft2(self.without_divergence(advection) - self.viscosity * self.k2 * hat)

    def project(self, u: Tensor) -> Tensor:
        """The nearest field without divergence and without waves that the grid cannot carry."""
        return torch.fft.irfft2(self.without_divergence(torch.fft.rfft2(u) * self.keep))

    def nearby(self, u: Tensor, generator: torch.Generator | None) -> Tensor:
        """u with a smooth random flow added (waves up to about 4 periods), between nothing and 0.3 of its speed."""
        smooth = 1 / (1 + self.k2 / (2 * math.pi * 4) ** 2)
        flow = torch.fft.irfft2(torch.fft.rfft2(self.project(normal_like(u, generator))) * smooth)
        share = 0.3 * torch.rand(len(u), 1, 1, 1, generator=generator, device=u.device)
        return u + share * flow * (rms(u) / rms(flow))

    def without_divergence(self, hat: Tensor) -> Tensor:
        """Remove the part with divergence (the pressure's work)."""
        along = (self.kx * hat[:, 0] + self.ky * hat[:, 1]) / self.k2.clamp(min=1)
        return torch.stack([hat[:, 0] - self.kx * along, hat[:, 1] - self.ky * along], 1)


def initial_flows(family: str, count: int, generator: torch.Generator) -> Tensor:
    """(count, 2, SIZE, SIZE) velocity fields without divergence."""
    axis = torch.arange(SIZE) / SIZE
    y, x = torch.meshgrid(axis, axis, indexing="ij")

    def draw(*shape: int) -> Tensor:
        return torch.rand(count, *shape, 1, 1, generator=generator)

    tau = 2 * math.pi
    if family == "simple":
        a, b = 0.5 + draw(), 0.5 + draw()
        return torch.stack([-a * torch.sin(tau * (y + draw())), b * torch.sin(2 * tau * (x + draw()))], 1)
    waves = 20
    amplitude, phase_x, phase_y = 2 * draw(waves), tau * draw(waves), tau * draw(waves)
    kx, ky = (tau * torch.randint(1, 4, (count, waves, 1, 1), generator=generator) for _ in range(2))
    # stream function psi = sum A sin(kx x + p) cos(ky y + q); u = d psi / dy, v = -d psi / dx
    u = (-amplitude * ky * torch.sin(kx * x + phase_x) * torch.sin(ky * y + phase_y)).sum(1)
    v = (-amplitude * kx * torch.cos(kx * x + phase_x) * torch.cos(ky * y + phase_y)).sum(1)
    flow = torch.stack([u, v], 1)
    return flow / rms(flow)


def rms(flow: Tensor) -> Tensor:
    """Root of the mean squared speed of each flow, shaped to multiply them."""
    return flow.square().sum(1, keepdim=True).mean((2, 3), keepdim=True).sqrt()


def error(a: Tensor, b: Tensor) -> float:
    """Root of the mean squared speed of the difference."""
    return float((a - b).square().sum(1).mean().sqrt())


def draw(path: Path, truth: Tensor, final: Tensor, recovered: Tensor) -> None:
    figure, axes = plt.subplots(2, 5, figsize=(16, 6.6), layout="constrained")
    for row in range(2):
        panels = {
            "initial (never shown)": truth[row, 0],
            "final = input": final[row, 0],
            "recovered": recovered[row, 0],
            "input - initial": (final - truth)[row, 0],
            "recovered - initial": (recovered - truth)[row, 0],
        }
        for axis, (title, field) in zip(axes[row], panels.items(), strict=True):
            limit = float(truth[row, 0].abs().max()) * (0.5 if "-" in title else 1.0)
            axis.imshow(field, cmap="RdBu", vmin=-limit, vmax=limit, origin="lower")
            axis.set_title(title if row == 0 else "")
            axis.set_axis_off()
    figure.suptitle("horizontal velocity; differences on half the scale")
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = output_folder(
        __doc__,
        family="random",
        method="icm",
        steps=1500,
        count=1000,
        seed=0,
        device="auto",
    )
    generator = torch.Generator().manual_seed(arguments.seed)
    device = choose_device(arguments.device)
    equations = NavierStokes(device)
    process = ivf.Simulated(lambda u, t: DURATION * equations(u, t), perturb=equations.nearby, onto=equations.project)
    train, test = (initial_flows(arguments.family, n, generator).to(device) for n in (arguments.count, 64))
    train_final, final = (process.forward(x, ones(x)) for x in (train, test))
    del train  # from here on there are only final states

    kind = {"icm": ivf.InverseConsistency, "ifm": ivf.InverseFlowMatching}[arguments.method]
    method = kind(process, averaged=True)
    net = ivf.NetSpec("UNet", channels=2, widths=(48, 96), blocks=2, patch=2, padding_mode="circular")
    scale = float((DURATION * equations(train_final)).square().mean().sqrt())
    settings = ivf.Settings(steps=arguments.steps, batch_size=16, optimizer="adamw", clip=None)
    fitted = ivf.fit(
        method.prepare(net.build(arguments.seed), scale),
        method.loss,
        Rows(train_final),
        settings,
        seed=arguments.seed,
        device=device,
        title="turning back",
    )
    with torch.no_grad():
        recovered = method.denoise(fitted.model, final)
    figures = {
        "family": arguments.family,
        "method": arguments.method,
        "speed_rms": error(test, torch.zeros_like(test)),
        "error_of_doing_nothing": error(final, test),
        "error_recovered": error(recovered, test),
        "ratio": error(recovered, test) / error(final, test),
        "training_seconds": round(fitted.seconds, 1),
    }
    test, final, recovered = test.cpu(), final.cpu(), recovered.cpu()
    draw(arguments.output / f"navier_stokes_{arguments.family}.png", test, final, recovered)
    write_json(arguments.output / f"navier_stokes_{arguments.family}_{arguments.method}.json", figures)


if __name__ == "__main__":
    main()
