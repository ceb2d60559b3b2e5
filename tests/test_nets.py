"""Networks: any size, exact boundary, identity at the start, time that matters, tiles that agree with the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from inverseflow.errors import ModelFileError
from inverseflow.nets import MLP, Consistency, FourierTime, NetSpec, PaperUNet, UNet, Velocity, count_parameters

SMALL = {"widths": (8, 16), "blocks": 1, "embedding": 16}


def stirred(net: nn.Module) -> nn.Module:
    """The zero-initialised layers given random weights, so that a test sees the whole network."""
    generator = torch.Generator().manual_seed(0)
    for parameter in net.parameters():
        if float(parameter.detach().abs().max()) == 0:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return net


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 21), min_size=3, max_size=3), st.sampled_from([1, 2])
)
def test_unet_takes_any_size(dims: int, channels: int, size: list[int], patch: int) -> None:
    net = UNet(channels, dims=dims, patch=patch, **SMALL)
    x = torch.rand(2, channels, *size[:dims])
    assert net(x, torch.rand(2)).shape == x.shape


NETS = {
    "mlp": lambda: MLP(3, (16, 16)),
    "unet": lambda: UNet(3, **SMALL),
    "paper": lambda: PaperUNet(3, (8, 8, 16), embedding=16),
}


@pytest.mark.parametrize("name", sorted(NETS))
@pytest.mark.parametrize("rms", [1e-3, 0.4, 30.0])
def test_consistency_boundary_is_exact_and_starts_as_identity(name: str, rms: float) -> None:
    net = NETS[name]()
    x = torch.randn(4, 3) if isinstance(net, MLP) else torch.randn(4, 3, 9, 10)
    fresh = Consistency(net, rms, t_min=0.02)
    assert torch.equal(fresh(x, torch.ones(4)), x)
    model = Consistency(stirred(net), rms, t_min=0.02)
    assert torch.equal(model(x, torch.full((4,), 0.02)), x)
    assert not torch.allclose(model(x, torch.ones(4)), x)
    assert not torch.allclose(
        Velocity(net, rms)(x, torch.full((4,), 0.1 / rms)), Velocity(net, rms)(x, torch.full((4,), 0.4 / rms))
    )


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_sample_has_its_own_time(dims: int, padding_mode: str) -> None:
    """And alone, its time in the weights, it gives the same."""
    net = stirred(UNet(1, dims=dims, padding_mode=padding_mode, **SMALL))
    x = torch.rand(1, 1, *(8,) * dims).expand(2, 1, *(8,) * dims)
    both = net(x, torch.tensor([0.1, 0.9]))
    for number, t in enumerate((0.1, 0.9)):
        assert torch.allclose(both[number], net(x[:1], torch.tensor([t]))[0], atol=1e-6)
    assert not torch.allclose(both[0], both[1])


def test_the_papers_levels_are_convolutions_of_the_doubled_image_and_the_skip() -> None:
    net = PaperUNet(1, (4, 6, 8), embedding=16).double()
    generator = torch.Generator().manual_seed(0)
    for level, widths in zip(net.up, [(8, 6), (6, 4)], strict=True):
        below, skip = (
            torch.randn(2, width, n, n + 2, generator=generator, dtype=torch.float64)
            for width, n in zip(widths, (5, 10), strict=True)
        )
        skip = torch.cat([skip, skip[..., :2]], 3)  # twice 7 pixels wide
        doubled = below.repeat_interleave(2, 2).repeat_interleave(2, 3)
        assert torch.allclose(level._merge(below, skip), level.first(torch.cat([doubled, skip], 1)), atol=1e-12)


def test_a_tile_gives_what_the_whole_image_gives() -> None:
    """No normalisation over space: far from the tile's border the values are the same."""
    net = stirred(UNet(1, widths=(8, 16), blocks=1, embedding=16))
    x = torch.rand(1, 1, 128, 128)
    whole = net(x, torch.ones(1))
    tile = net(x[..., 32:96, 32:96], torch.ones(1))
    assert torch.allclose(tile[..., 24:40, 24:40], whole[..., 56:72, 56:72], atol=1e-5)


def test_circular_unet_commutes_with_shifts() -> None:
    net, x = stirred(UNet(2, padding_mode="circular", **SMALL)), torch.rand(1, 2, 16, 16)
    shifted = net(x.roll((4, 6), (2, 3)), torch.ones(1))
    assert torch.allclose(shifted, net(x, torch.ones(1)).roll((4, 6), (2, 3)), atol=1e-5)


def test_sizes_that_are_documented() -> None:
    assert count_parameters(NetSpec("UNet").build()) == pytest.approx(7.7e6, rel=0.01)
    assert count_parameters(NetSpec("PaperUNet").build()) == pytest.approx(12.5e6, rel=0.01)


def test_same_seed_same_weights_and_global_state_untouched() -> None:
    state = torch.random.get_rng_state()
    a, b, c = (NetSpec("MLP", features=2).build(seed) for seed in (3, 3, 4))
    assert torch.equal(a.layers[0].weight, b.layers[0].weight)
    assert not torch.equal(a.layers[0].weight, c.layers[0].weight)
    assert torch.equal(state, torch.random.get_rng_state())


def test_fourier_features_are_sines_and_cosines() -> None:
    torch.manual_seed(0)
    features = FourierTime(8, scale=2.0)
    out = features(torch.tensor([0.3]))[0]
    angle = 2 * torch.pi * 0.3 * features.frequencies.double()
    # an angle of several turns is known to about 1e-6 in single precision, however small its sine
    assert torch.allclose(out.double(), torch.cat([angle.sin(), angle.cos()]), atol=1e-5)


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ModelFileError, match="no network called 'Transformer'"):
        NetSpec("Transformer")
    with pytest.raises(ModelFileError, match="not 'depth'"):
        NetSpec("MLP", depth=3)


def test_separate_channels_never_mix() -> None:
    """Each channel gives what it gives alone, with its own time, and no gradient crosses from one to another."""
    torch.manual_seed(0)
    net = UNet(channels=3, widths=(8, 16), blocks=1, separate=True)
    torch.nn.init.normal_(net.leave.weight)
    x, t = torch.randn(2, 3, 16, 12, requires_grad=True), torch.tensor([0.2, 0.9])
    out = net(x, t)
    for channel in range(3):
        assert torch.allclose(out[:, channel : channel + 1], net(x[:, channel : channel + 1], t), atol=1e-5)
    (gradient,) = torch.autograd.grad(out[:, 1].sum(), x)
    assert float(gradient[:, [0, 2]].abs().max()) == 0
    assert float(gradient[:, 1].abs().max()) > 0
