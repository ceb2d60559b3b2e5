"""Time grids: the paper's formula, the growth, and what a finite grid keeps of the signal."""

from __future__ import annotations

import itertools

import pytest
import torch

from inverseflow.errors import InputError
from inverseflow.times import GrowingGrid, karras_times, neighbours, recovered_spread


def test_formula_of_the_paper() -> None:
    """t_i = (eps^(1/rho) + (i-1)/(N-1) (1 - eps^(1/rho)))^rho, by plain Python for rho = 7, N = 11, eps = 0.002."""
    times = karras_times(11, eps=0.002, rho=7)
    e = 0.002 ** (1 / 7)
    assert times.tolist() == pytest.approx([(e + i / 10 * (1 - e)) ** 7 for i in range(11)])
    assert (float(times[0]), float(times[-1])) == (0.002, 1.0)


def test_neighbours_are_adjacent_and_all_drawn() -> None:
    times = karras_times(6)
    s, t = neighbours(times, torch.zeros(5000, 1, dtype=torch.float64), torch.Generator().manual_seed(0))
    pairs = {(round(a, 9), round(b, 9)) for a, b in zip(s.tolist(), t.tolist(), strict=True)}
    assert pairs == {(round(float(a), 9), round(float(b), 9)) for a, b in itertools.pairwise(times)}
    shares = torch.stack([(t == b).double().mean() for b in times[1:]])
    assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.03)


def test_grid_doubles_and_stays() -> None:
    grid = GrowingGrid(5, 40, growth=0.6)
    assert [len(grid.at(p)) - 1 for p in (0, 0.19, 0.21, 0.39, 0.41, 0.59, 0.61, 1.0)] == [5, 5, 10, 10, 20, 20, 40, 40]
    assert {len(GrowingGrid.fixed(11).at(p)) for p in (0, 0.5, 1)} == {11}
    assert all(float(grid.at(p)[0]) == grid.eps and float(grid.at(p)[-1]) == 1.0 for p in (0, 0.5, 1))


@pytest.mark.parametrize(
    ("ratio", "n", "eps", "expected"),
    [
        (0.25, 6, 0.002, 0.986),
        (0.5, 11, 0.02, 0.979),
        (1, 11, 0.002, 0.868),
        (1, 21, 0.02, 0.957),
        (2, 11, 0.02, 0.470),
        (2, 51, 0.002, 0.896),
        (4, 51, 0.02, 0.76),
    ],
)
def test_recovered_spread_equals_known_values(ratio: float, n: int, eps: float, expected: float) -> None:
    """Values computed independently before this code existed (closed form, rho = 7)."""
    assert recovered_spread(karras_times(n, eps=eps, rho=7), ratio) == pytest.approx(expected, abs=6e-3)


def test_default_grid_keeps_nine_tenths_where_noise_is_twice_the_signal() -> None:
    assert recovered_spread(GrowingGrid().at(1.0), 2.0) > 0.9
    assert recovered_spread(karras_times(11, eps=0.002, rho=7), 2.0) < 0.02  # the paper's grid


def test_impossible_grids_are_refused() -> None:
    with pytest.raises(InputError, match="n >= 2"):
        karras_times(1)
