"""Shared by all tests: one thread per worker, and the list of every noise."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Before torch and numba start theirs: numba (through scanpy) would set OpenMP's threads, and so torch's, to all cores,
# and the spinning threads of two workers slow each other down several times over. Commands that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

import torch

from inverseflow.noise import (
    SDE,
    Clip,
    CorrelatedGaussian,
    CorrelatedSignal,
    FunctionNoise,
    Gamma,
    Gaussian,
    Jacobi,
    Noise,
    Poisson,
    PoissonGaussian,
    Quantise,
    Rayleigh,
    SignalDependent,
    Simulator,
)

# Under nohup, or in the background of a script, these are ignored, and commands that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
ROOT = Path(__file__).parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"


def ornstein_uhlenbeck() -> SDE:
    """dx = -x dt + 0.5 dw: mean x0 exp(-T), variance 0.125 (1 - exp(-2 T))."""
    return SDE(lambda x, t: -x, lambda x, t: torch.full_like(x, 0.5), time=0.3, steps=200, pointwise=True)


def laplace(x0: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    u = torch.rand(x0.shape, generator=generator, dtype=x0.dtype, device=x0.device) - 0.5
    return x0 - 0.1 * u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.4999999))


NOISES: dict[str, Noise] = {
    "gaussian": Gaussian(0.1),
    "gaussian_per_channel": Gaussian([0.1, 0.3]),
    "gaussian_channel_correlated": Gaussian(0.1, channel_correlation=[[1.0, 0.6], [0.6, 1.0]]),
    "correlated": CorrelatedGaussian.cosine(0.1, a=2.0),
    "correlated_signal": CorrelatedSignal(0.05, [[1.0, 2.0, 1.0]], gain=0.01, offset=0.2, contrast=0.1),
    "poisson": Poisson(0.01),
    "poisson_offset": Poisson(0.02, offset=-0.3),
    "poisson_gaussian": PoissonGaussian(0.01, 0.05, offset=-0.1),
    "signal_dependent": SignalDependent(0.6, 0.15, 0.03),
    "gamma": Gamma(100.0),
    "rayleigh": Rayleigh(0.3),
    "jacobi": Jacobi(time=0.2, steps=100),
    "jacobi_skewed": Jacobi(time=0.4, a=2.0, b=0.5, s=1.5, steps=300),
    "sde": ornstein_uhlenbeck(),
    "poisson_then_gaussian": Poisson(0.01).then(Gaussian(10 / 255)),
    "gamma_then_poisson": Gamma(50.0).then(Poisson(0.01)),
    "camera": PoissonGaussian(0.02, 0.05).then(Clip(0.0, 1.0)).then(Quantise(1 / 255)),
    "function": FunctionNoise(laplace, pointwise=True),
    "simulator": Simulator(lambda x: x.square()),
}


@pytest.fixture(params=sorted(NOISES))
def noise(request: pytest.FixtureRequest) -> Noise:
    return NOISES[request.param]


@pytest.fixture(autouse=True)
def same_draws_in_any_order() -> None:
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20261)


def shared_data(*parts: str) -> Path:
    """A folder of the benchmark data, or a skip that says why."""
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs the benchmark data {'/'.join(parts)}, which is not beside this checkout")
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """small_disk("64k") is an empty disk of that size; a second call makes the same one larger."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted: list[str] = []

    def disk(size: str) -> Path:
        how = ["-o", f"remount,size={size}"] if mounted else ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
        done = subprocess.run(["mount", *how, str(folder)], check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a small disk could not be mounted: {done.stderr.strip()}")
        mounted.append(size)
        return folder

    yield disk
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
