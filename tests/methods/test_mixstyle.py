from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import make_work, random_images, tiny_net
from unseen.core.errors import UserError
from unseen.methods.fedavg import FedAvg
from unseen.methods.mixstyle import MixStyle
from unseen.nets.parts.styles import MixStyle as MixStyleModule
from unseen.registry import parse


def test_mixing_against_numpy() -> None:
    torch.manual_seed(3)
    maps = torch.randn(4, 2, 5, 3) * 2 + 1
    torch.manual_seed(7)
    mixed = MixStyleModule(p=1.0, alpha=0.1)(maps)
    # The same draws in the same order: the coin, the weights, the partners.
    torch.manual_seed(7)
    torch.rand(())
    weight = torch.distributions.Beta(0.1, 0.1).sample((4, 1)).numpy()
    partner = torch.randperm(4).numpy()
    x = maps.numpy().astype(np.float64)
    mean, std = x.mean((2, 3)), np.sqrt(x.var((2, 3)) + 1e-6)
    new_mean = weight * mean + (1 - weight) * mean[partner]
    new_std = weight * std + (1 - weight) * std[partner]
    content = (x - mean[:, :, None, None]) / std[:, :, None, None]
    expected = content * new_std[:, :, None, None] + new_mean[:, :, None, None]
    np.testing.assert_allclose(mixed.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_no_gradient_through_the_statistics() -> None:
    maps = torch.randn(4, 2, 5, 3, requires_grad=True)
    torch.manual_seed(7)
    mixed = MixStyleModule(p=1.0)(maps)
    mixed.sum().backward()
    # With constant statistics the gradient of the sum is new std / own std: one number per image and channel.
    assert maps.grad is not None
    torch.testing.assert_close(maps.grad, maps.grad[:, :, :1, :1].expand_as(maps))


def test_off_at_test_and_with_probability_zero() -> None:
    images = random_images(4).x
    plain, net = tiny_net(FedAvg()), tiny_net(MixStyle(p=1.0))
    plain.eval(), net.eval()
    torch.testing.assert_close(net(images), plain(images), rtol=0, atol=0)
    plain.train(), net.train()
    assert not torch.equal(net(images), plain(images))
    never = tiny_net(MixStyle(p=0.0)).train()
    torch.testing.assert_close(never(images), tiny_net(FedAvg()).train()(images), rtol=0, atol=0)


def test_fields_reach_the_modules() -> None:
    net = tiny_net(parse("mixstyle", {"p": "0.25", "alpha": "0.3", "stages": "0,1,2"}))
    assert [(m.p, m.alpha) for m in net.norms(MixStyleModule)] == [(0.25, 0.3)] * 3
    assert [len(after) for after in net.inserted] == [1, 1, 1, 0]
    assert [len(after) for after in tiny_net(MixStyle()).inserted] == [1, 1, 0, 0]


def test_same_default_seed_same_step() -> None:
    losses = []
    for _ in range(2):
        work = make_work(MixStyle(p=1.0))
        work.net.train()
        torch.manual_seed(5)
        losses.append(float(work.method.loss(work, random_images(8).batch(torch.arange(8))).detach()))
    assert losses[0] == losses[1]


def test_a_stage_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UserError, match="no stage 4"):
        tiny_net(MixStyle(stages=(4,)))
