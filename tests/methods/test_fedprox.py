from __future__ import annotations

import torch

from tests.tiny_work import batch, make_work
from unseen.methods.fedavg import FedAvg
from unseen.methods.fedprox import FedProx


def test_the_pull_by_hand() -> None:
    work, images = make_work(FedProx(mu=0.5)), batch()
    features = work.net.features(images.x)  # moves running statistics, which the term leaves alone
    assert work.method.penalty(work, images, features).item() == 0  # nothing has moved yet
    count = sum(p.numel() for p in work.net.parameters())
    with torch.no_grad():
        for parameter in work.net.parameters():
            parameter.add_(0.25)
    term = work.method.penalty(work, images, features)
    torch.testing.assert_close(term, torch.tensor(0.5 / 2 * count * 0.25**2), rtol=1e-4, atol=0)
    term.backward()
    for parameter in work.net.parameters():  # mu (w - w_received): the squared norm, not the norm
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.5 * 0.25), rtol=1e-4, atol=1e-6)


def test_the_loss_is_fedavgs_and_the_pull() -> None:
    work, images = make_work(FedProx(mu=2.0)), batch()
    with torch.no_grad():
        work.net.head.bias.add_(torch.tensor([1.0, -2.0, 0.5]))
    plain = FedAvg().loss(make_work(FedAvg(), net=work.net), images)
    torch.testing.assert_close(work.method.loss(work, images), plain + 2.0 / 2 * (1 + 4 + 0.25))
