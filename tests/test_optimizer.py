"""The optimiser: orthogonal moves against singular value decompositions, what is left to AdamW, and what it gains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import inverseflow as ivf
from inverseflow.optimizer import TYPICAL_STEP, Muon, make_optimizer, orthogonal, set_rate, suited
from inverseflow.settings import Settings


@pytest.mark.parametrize("shape", [(3, 8, 72), (2, 64, 24), (1, 32, 32)])
@pytest.mark.parametrize("ratio", [1.0, 100.0])
def test_orthogonal_has_the_same_singular_vectors_and_values_near_one(shape: tuple[int, ...], ratio: float) -> None:
    rank = min(shape[1:])
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(0)), full_matrices=False)
    values = torch.logspace(0, -math.log10(ratio), rank)
    found = orthogonal(7.0 * (u * values) @ v)
    in_their_place = u.mT @ found @ v.mT
    diagonal = in_their_place.diagonal(dim1=1, dim2=2)
    assert 0.65 < float(diagonal.min()) <= float(diagonal.max()) < 1.25
    assert torch.allclose(in_their_place, torch.diag_embed(diagonal), atol=1e-4)


def test_the_first_move_is_along_the_nearest_orthogonal_matrix_and_of_adams_size() -> None:
    layer = nn.Conv2d(16, 32, 3, bias=False)
    before, optimizer = layer.weight.detach().clone(), Muon(layer, lr=0.5)
    gradient = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(1))
    layer.weight.grad = gradient.clone()
    optimizer.step()
    moved = (before - layer.weight.detach()).flatten(1)
    u, _, v = torch.linalg.svd(gradient.flatten(1), full_matrices=False)
    assert float(torch.cosine_similarity(moved.flatten(), (u @ v).flatten(), dim=0)) > 0.97
    assert float(moved.square().mean().sqrt()) == pytest.approx(0.5 * TYPICAL_STEP, rel=0.25)


def test_what_is_not_between_features_is_moved_by_adamw() -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 1, 3), nn.Linear(4, 4))

    ours, plain = network(), network()
    common = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
    optimizers = [Muon(ours, **common), torch.optim.AdamW(plain.parameters(), **common)]
    for step in range(5):
        for net, optimizer in zip((ours, plain), optimizers, strict=True):
            generator = torch.Generator().manual_seed(step)
            for weight in net.parameters():
                weight.grad = torch.randn(weight.shape, generator=generator)
            set_rate(optimizer, 0.01 / (1 + step))
            optimizer.step()
    alike = {
        name: torch.allclose(a, b) for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True)
    }
    assert [name for name, same in alike.items() if not same] == ["1.weight"]


def test_decay_shrinks_all_weights_alike() -> None:
    layer = nn.Conv2d(8, 8, 3)
    before = layer.weight.detach().clone()
    layer.weight.grad, layer.bias.grad = torch.zeros(8, 8, 3, 3), torch.zeros(8)
    Muon(layer, lr=0.1, weight_decay=0.5).step()
    assert torch.allclose(layer.weight, 0.95 * before)


def test_frozen_weights_stay() -> None:
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    net[0].requires_grad_(False)
    before = [weight.detach().clone() for weight in net.parameters()]
    optimizer = Muon(net, lr=0.1)
    net(torch.ones(1, 8, 9, 9)).square().sum().backward()
    optimizer.step()
    assert [torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)] == [True, True, False, False]


def test_it_suits_the_network_where_nothing_is_said() -> None:
    image, table = ivf.NetSpec("UNet", widths=(8, 16)).build(), ivf.NetSpec("MLP", features=9, widths=(16, 16)).build()

    def chosen(net: nn.Module, pace: float = 1.0, **given: object) -> tuple[str, float | None]:
        settings = suited(Settings(steps=1, **given), net, pace)  # type: ignore[arg-type]
        optimizer = make_optimizer(net, settings, cuda=False)
        assert isinstance(optimizer, Muon) == (settings.optimizer == "muon")
        assert {group["lr"] for group in optimizer.param_groups} == {settings.lr}
        return settings.optimizer, settings.lr

    assert chosen(image) == ("muon", 3e-3)
    assert chosen(table) == ("adamw", 1e-3)
    assert chosen(image, 1 / 3) == ("muon", 1e-3)
    assert chosen(table, 1 / 3) == ("adamw", 1e-3)
    assert chosen(image, 1 / 3, lr=2e-3) == ("muon", 2e-3)
    assert chosen(image, optimizer="adamw") == ("adamw", 1e-3)
    assert chosen(nn.Conv2d(1, 64, 3)) == ("adamw", 1e-3)


@pytest.mark.parametrize(("optimizer", "least", "most"), [("muon", 0.0, 0.01), ("adamw", 0.4, 1.0)])
def test_weak_directions_are_learned_as_soon_as_strong_ones(optimizer: str, least: float, most: float) -> None:
    """A linear layer, inputs of spread 1 down to 0.01 along directions that are no weight's own: AdamW, which looks at
    weights one by one, has half of its way left after as many steps.
    """
    generator = torch.Generator().manual_seed(0)
    turned, truth = (torch.linalg.qr(torch.randn(16, 16, generator=generator))[0] for _ in range(2))
    covariance = turned @ torch.diag(torch.logspace(0, -4, 16)) @ turned.mT
    layer = nn.Conv2d(16, 16, 1, bias=False)
    nn.init.zeros_(layer.weight)
    settings = suited(Settings(steps=300, optimizer=optimizer, lr=0.03), layer)
    moving = make_optimizer(layer, settings, cuda=False)
    for step in range(300):
        wrong = layer.weight.detach()[:, :, 0, 0] - truth
        layer.weight.grad = (wrong @ covariance)[:, :, None, None]
        set_rate(moving, settings.rate(step / 300))
        moving.step()
    left = float((layer.weight.detach()[:, :, 0, 0] - truth).norm() / truth.norm())
    assert least <= left < most
