from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.tiny_federation import federation, same
from tests.tiny_work import TensorImages, batch, make_work, random_images
from unseen.core.errors import UserError
from unseen.core.tensors import pick
from unseen.core.types import Site, Work
from unseen.methods.dann import DANN
from unseen.nets.parts.adversarial import reversed_gradient


def pooled(method: DANN, **changes: object) -> Work:
    images = random_images(16)
    work = make_work(
        method, site=Site("a", TensorImages(images.x, images.y, torch.arange(16) % 2 + 1), random_images(4)), **changes
    )
    method.prepare(work)
    return work


def test_the_gradient_is_reversed_and_the_value_is_not() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = reversed_gradient(x, 0.5)
    assert torch.equal(y, x)
    (y * 3).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.full((3, 4), -1.5))


def test_lambda_grows_with_training() -> None:
    method = DANN(weight=2.0)
    work = pooled(method, rounds=4)
    work.round, work.step, work.steps = 2, 3, 6
    done = (1 + 0.5) / 4
    assert method.strength(work) == pytest.approx(2 * (2 / (1 + np.exp(-10 * done)) - 1))
    assert DANN(weight=2.0, ramp=False).strength(work) == 2.0


def test_features_move_against_the_discriminator_and_it_moves_with_its_loss() -> None:
    method = DANN(ramp=False, weight=0.7)
    work, images = pooled(method), replace(batch(), domain=torch.arange(8) % 2 + 1)
    features = torch.randn(8, 256, requires_grad=True)
    term = method.penalty(work, images, features)
    term.backward()
    plain = features.detach().clone().requires_grad_()
    discriminator = work.net.extras["domains"]
    ours = [p.grad.clone() for p in discriminator.parameters() if p.grad is not None]
    discriminator.zero_grad()
    expected = F.cross_entropy(discriminator(plain), images.domain)
    expected.backward()
    torch.testing.assert_close(term, expected)
    assert features.grad is not None and plain.grad is not None
    torch.testing.assert_close(features.grad, -0.7 * plain.grad)
    for got, p in zip(ours, discriminator.parameters(), strict=True):
        torch.testing.assert_close(got, p.grad)


def test_clients_with_one_domain_train_as_in_fedavg(tmp_path: Path) -> None:
    dann, fedavg = (federation(name, tmp_path / name, rounds=2, local_steps=2) for name in ("dann", "fedavg"))
    first = dict(dann.server.state)
    for fed in (dann, fedavg):
        for name, site in fed.sites.items():
            images = random_images(len(site.train))
            fed.sites[name] = replace(site, train=TensorImages(images.x, images.y))  # of one domain
        fed.run()
    assert same(pick(dann.server.state, fedavg.server.state), fedavg.server.state)
    beyond = set(dann.server.state) - set(fedavg.server.state)
    assert beyond and same(pick(dann.server.state, beyond), pick(first, beyond))  # the discriminator rests


def test_more_domains_than_outputs_is_an_error() -> None:
    with pytest.raises(UserError, match="more than 2 domains"):
        pooled(DANN(domains=2))
