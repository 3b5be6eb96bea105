from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work, random_images, tiny_net
from unseen.core.types import Reply, Server
from unseen.method import compose
from unseen.methods.fedprox import FedProx
from unseen.methods.fedsr import FedSR
from unseen.nets.parts.probabilistic import SMALLEST, GaussianHead


def test_loss_by_hand() -> None:
    method = FedSR(norm=0.3, divergence=0.2, size=4)
    work = make_work(method)
    images = batch()
    torch.manual_seed(7)
    loss = method.loss(work, images).item()
    work.net.train()
    with torch.no_grad():
        features = work.net.features(images.x).numpy().astype(np.float64)
    mean, deviation = features[:, :4], np.log1p(np.exp(features[:, 4:])) + SMALLEST
    torch.manual_seed(7)
    z = mean + deviation * torch.randn(8, 4).numpy()
    head = work.net.head
    assert isinstance(head, GaussianHead)
    logits = z @ head.classify.weight.detach().numpy().T + head.classify.bias.detach().numpy()
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    error = -log_p[np.arange(8), images.y.numpy()].mean()
    norm = np.sqrt((z**2).sum(axis=1)).mean()
    t = np.log1p(np.e)  # softplus(1); the class means start at 0, the scale at 1
    kl = (np.log(t / deviation) + (deviation**2 + mean**2) / (2 * t**2) - 0.5).sum(axis=1).mean()
    np.testing.assert_allclose(loss, error + 0.3 * norm + 0.2 * kl, rtol=1e-4)


def test_every_trainable_tensor_gets_a_gradient() -> None:
    work = make_work(FedSR(size=8))
    work.method.prepare(work)
    work.method.step(work, batch())
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in work.net.trainable())


def test_class_gaussians_stay_with_the_client_unless_told_otherwise() -> None:
    net = tiny_net(FedSR(size=8))
    own = {"extras.reference.mean", "extras.reference.raw_deviation", "extras.reference.scale"}
    assert frozenset(net.state_dict()) - FedSR(size=8).share(net).up == own
    assert FedSR(size=8).share(net).down == FedSR(size=8).share(net).up
    assert FedSR(size=8, share_reference=True).share(net) == net.share_all()
    assert {"head.classify.weight", "neck.1.weight"} <= FedSR(size=8).share(net).up


def test_without_divergence_there_are_no_class_gaussians() -> None:
    method = FedSR(size=8, divergence=0.0)
    net = tiny_net(method)
    assert len(net.extras) == 0 and method.share(net) == net.share_all()


@pytest.mark.parametrize("samples", [0, 20])
def test_prediction_is_deterministic_and_of_the_image_alone(samples: int) -> None:
    method = FedSR(size=8, samples=samples)
    net = tiny_net(method).eval()
    x = random_images(6).x
    with torch.no_grad():
        together = method.predict(net, x)
        torch.manual_seed(123)
        again = method.predict(net, x)
        alone = torch.cat([method.predict(net, x[i : i + 1]) for i in range(6)])
    assert torch.equal(together, again)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_training_draws_anew() -> None:
    method = FedSR(size=8)
    work = make_work(method)
    first, second = method.loss(work, batch()).item(), method.loss(work, batch()).item()
    assert first != second


def test_the_mean_is_plain_and_penalties_are_felt() -> None:
    assert FedSR().weigh(Server(state={}), Reply("a", "train", 1, 999)) == 1.0
    composed = compose(FedSR(size=8), FedProx(mu=2.0))
    work = make_work(composed, net=tiny_net(FedSR(size=8)))
    with torch.no_grad():
        next(work.net.parameters()).add_(1.0)
        moved = next(work.net.parameters()).numel()
    torch.manual_seed(0)
    both = composed.loss(work, batch()).item()
    torch.manual_seed(0)
    alone = FedSR(size=8).loss(make_work(FedSR(size=8), net=work.net), batch()).item()
    np.testing.assert_allclose(both - alone, moved, rtol=1e-3)
