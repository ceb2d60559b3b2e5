"""The house rules: layers import downwards, files stay short, importing is cheap, figures of merit are right."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from inverseflow.metrics import energy_distance, psnr, rmse

SOURCE = Path(__file__).parent.parent / "src" / "inverseflow"
LAYERS = [
    {"errors"},
    {"disk"},
    {"whole", "interrupt", "faults"},
    {"tensors", "report", "team", "header", "sharding"},
    {
        "noise",
        "nets",
        "times",
        "axes",
        "metrics",
        "checkpoint",
        "logs",
        "tiling",
        "io",
        "engine",
        "settings",
        "calibration",
        "masking",
    },
    {"samples", "outputs", "estimate", "state", "optimizer"},
    {"process", "audit"},
    {"losses"},
    {"methods"},
    {"patches", "baselines", "replay"},
    {"train"},
    {"posterior", "recipe", "stopping", "sweeps"},
    {"learning"},
    {"model_file", "trained"},
    {"denoiser"},
    {"cells", "generator"},
    {"pp", "pl"},
    {"tl"},
    {"imaging", "describe", "options", "cells_command", "generate_command"},
    {"arguments"},
    {"finding"},
    {"auditing"},
    {"blocks", "applying", "streaming"},
    {"cluster"},
    {"blockwise"},
    {"commands"},
    {"cli", "demo"},
    {"__main__"},
]


def imported_modules(path: Path) -> set[str]:
    """The top-level modules of this package that a file imports."""
    depth = len(path.relative_to(SOURCE).parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return found - {"__version__"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_layers_import_downwards(path: Path) -> None:
    name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if name == "__init__":
        return
    rank = next(i for i, layer in enumerate(LAYERS) if name in layer)
    below = set().union(*LAYERS[:rank]) | {name}
    assert imported_modules(path) <= below


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def test_importing_costs_no_torch() -> None:
    code = "import sys, inverseflow; assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_exists() -> None:
    import inverseflow

    for name in inverseflow.__all__:
        assert getattr(inverseflow, name) is not None
    with pytest.raises(AttributeError, match="attribute nothing"):
        _ = inverseflow.nothing


def test_psnr_agrees_with_scikit_image() -> None:
    from skimage.metrics import peak_signal_noise_ratio

    a, b = np.random.default_rng(0).random((2, 50, 50))
    assert psnr(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(
        peak_signal_noise_ratio(b, a, data_range=1.0)
    )


def test_rmse_and_energy_distance() -> None:
    a = torch.zeros(10, 2)
    assert rmse(a, a + torch.tensor([3.0, 4.0])) == pytest.approx(5.0)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3000, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    assert abs(energy_distance(x, y, independent=True)) < 0.005
    assert energy_distance(x, x.clone()) == pytest.approx(0, abs=1e-12)
    assert energy_distance(x, y) > 0
    assert stats.energy_distance(x[:, 0].numpy(), y[:, 0].numpy()) ** 2 == pytest.approx(energy_distance(x, y))

    # N(0, 1) against N(m, 1): 2 E|X - Y| - 2 E|X - X'| with X - Y ~ N(m, 2), in closed form
    m = 1.0
    folded = 2 * np.exp(-(m**2) / 4) / np.sqrt(np.pi) + m * (1 - 2 * stats.norm.cdf(-m / np.sqrt(2)))
    assert energy_distance(x, y + m, independent=True) == pytest.approx(2 * folded - 2 * 2 / np.sqrt(np.pi), rel=0.1)
