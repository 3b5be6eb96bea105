from __future__ import annotations

from typing import cast

import numpy as np
import torch

from unseen.methods.efdmix import EFDMix
from unseen.nets.backbones import create_net
from unseen.nets.parts.styles import EFDMix as EFDMixModule
from unseen.nets.parts.styles import order_of


def test_values_move_to_those_of_the_same_rank_by_hand() -> None:
    torch.manual_seed(0)
    maps = torch.randn(4, 3, 2, 5, requires_grad=True)
    module = EFDMixModule(p=1.0, alpha=0.5)
    state = torch.get_rng_state()
    found = module(maps)
    torch.set_rng_state(state)  # the same draws, in the same order
    torch.rand(())
    weight = torch.distributions.Beta(0.5, 0.5).sample((4, 1, 1)).numpy()[:, 0, 0]
    other = torch.randperm(4).numpy()
    x = maps.detach().numpy().reshape(4, 3, 10)
    expected = np.empty_like(x)
    for image in range(4):
        for channel in range(3):
            rank = x[image, channel].argsort().argsort()
            matched = np.sort(x[other[image], channel])[rank]
            expected[image, channel] = x[image, channel] + (1 - weight[image]) * (matched - x[image, channel])
    np.testing.assert_allclose(found.detach().numpy().reshape(4, 3, 10), expected, rtol=1e-5, atol=1e-6)
    # The gradient of the sum: 1 by the own value, and the share of the one that is given to another image.
    found.sum().backward()
    given = np.zeros(4)
    for image in range(4):
        given[other[image]] += 1 - weight[image]
    shown = maps.grad.numpy().reshape(4, -1)
    np.testing.assert_allclose(shown, np.broadcast_to(1 + given[:, None], shown.shape), rtol=1e-5)


def test_the_gradient_goes_back_to_whoever_gave_the_value() -> None:
    """With another weight for every number: as autograd has it for the plain operations."""
    maps = torch.randn(4, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    module = EFDMixModule(p=1.0, alpha=0.5)

    def mixed(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return cast(torch.Tensor, module(x))

    def plain(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        torch.rand(())
        weight = torch.distributions.Beta(0.5, 0.5).sample((4, 1, 1))
        other, values = torch.randperm(4), x.flatten(2)
        rank = values.argsort(dim=2).argsort(dim=2)
        matched = values.sort(dim=2).values[other].gather(2, rank)
        return (values + (1 - weight) * (matched - values.detach())).view(x.shape)

    slope = torch.randn(maps.shape, dtype=torch.float64)
    one, two = (torch.autograd.grad(way(maps), maps, slope)[0] for way in (mixed, plain))
    torch.testing.assert_close(one, two)


def test_it_acts_after_its_stages_in_training_alone() -> None:
    net = EFDMix(p=1.0, stages=(1,)).build(create_net("convnet", 3, image_size=32))
    (module,) = net.norms(EFDMixModule)
    maps = torch.randn(4, 3, 2, 5)
    assert [len(list(after)) for after in net.inserted] == [0, 1, 0, 0]  # type: ignore[arg-type]
    assert module.eval()(maps) is maps and not torch.equal(module.train()(maps), maps)


def test_the_order_is_that_of_a_stable_sort() -> None:
    values = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0)).clamp(min=-0.5)
    values[0, 0, :20] = torch.tensor([0.0, -0.0]).repeat(10)
    values[1, 0, 3:6] = torch.tensor([torch.inf, -torch.inf, 1e-42])
    assert torch.equal(order_of(values), values.argsort(dim=-1, stable=True))
    assert torch.equal(order_of(values.double()), values.argsort(dim=-1, stable=True))
