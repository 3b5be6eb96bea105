from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny_work import make_work, random_images
from unseen.core.errors import UserError
from unseen.core.tensors import snapshot
from unseen.method import compose
from unseen.methods.fedavg import FedAvg
from unseen.methods.guide import Guide
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.nets.parts.heads import logits_under


def small_net() -> Net:
    return create_net("convnet", 3, image_size=32, seed=1)


def numpy_cross_entropy(features: np.ndarray, weight: np.ndarray, bias: np.ndarray, labels: np.ndarray) -> float:
    logits = features @ weight.T + bias
    logits = logits - logits.max(1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())


def test_penalty_is_lambda_times_the_received_heads_cross_entropy() -> None:
    net = small_net()
    work = make_work(Guide(guidance=0.25), net=net)
    # The client's own head has moved since the order came; the received one has not.
    with torch.no_grad():
        net.head.weight.add_(1.0)
    batch = random_images(6).batch(torch.arange(6))
    features = torch.randn(6, net.feature_size, generator=torch.Generator().manual_seed(0))
    expected = 0.25 * numpy_cross_entropy(
        features.numpy().astype(np.float64),
        work.received["head.weight"].numpy().astype(np.float64),
        work.received["head.bias"].numpy().astype(np.float64),
        batch.y.numpy(),
    )
    assert float(work.method.penalty(work, batch, features).detach()) == pytest.approx(expected, rel=1e-5)


def test_loss_is_own_cross_entropy_plus_guidance() -> None:
    net = small_net()
    method = compose(FedAvg(), Guide(guidance=0.5))
    work = make_work(method, net=net)
    with torch.no_grad():
        net.head.bias.add_(torch.tensor([0.5, 0.0, -0.5]))
    net.eval()
    batch = random_images(5).batch(torch.arange(5))
    features = net.features(batch.x).detach().numpy().astype(np.float64)
    own = snapshot(net.head)
    expected = numpy_cross_entropy(
        features, own["weight"].numpy(), own["bias"].numpy(), batch.y.numpy()
    ) + 0.5 * numpy_cross_entropy(
        features, work.received["head.weight"].numpy(), work.received["head.bias"].numpy(), batch.y.numpy()
    )
    assert float(method.loss(work, batch).detach()) == pytest.approx(expected, rel=1e-5)


def test_gradient_reaches_the_features_and_no_head() -> None:
    net = small_net()
    work = make_work(Guide(), net=net)
    batch = random_images(6).batch(torch.arange(6))
    work.method.penalty(work, batch, net.features(batch.x)).backward()
    assert all(p.grad is None for p in net.head.parameters())
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.backbone.parameters())
    assert not any(value.requires_grad for value in work.received.values())


def test_a_replaced_head_is_guided_by_its_own_kind() -> None:
    net = small_net()
    net.head = nn.Sequential(nn.Linear(net.feature_size, 5), nn.Tanh(), nn.Linear(5, 3))
    received = snapshot(net)
    features = torch.randn(4, net.feature_size)
    expected = net.head(features).detach()
    with torch.no_grad():
        net.head[0].weight.zero_()
    torch.testing.assert_close(logits_under(net, received, features), expected)


def test_a_head_that_does_not_come_with_the_orders_is_an_error() -> None:
    net = small_net()
    received = {key: value for key, value in snapshot(net).items() if key != "head.bias"}
    with pytest.raises(UserError, match="bias"):
        logits_under(net, received, torch.zeros(2, net.feature_size))
