"""What a net computes under other weights is what a net with those weights computes; the net itself stays as it is."""

from __future__ import annotations

import torch

from tests.tiny_work import batch, tiny_net
from unseen.core.tensors import snapshot
from unseen.methods.fedavg import FedAvg
from unseen.nets.parts.frozen import frozen_features, frozen_levels, levels


def test_features_and_levels_under_another_state() -> None:
    net, other, x = tiny_net(FedAvg(), seed=0), tiny_net(FedAvg(), seed=1), batch().x
    net.train()
    net.backbone.eval()  # modes that differ, to be put back one by one
    modes, before, state = [m.training for m in net.modules()], snapshot(net), snapshot(other)
    features, there = frozen_features(net, state, x), frozen_levels(net, state, x)
    other.eval()
    with torch.no_grad():
        expected = levels(other, x)
    assert torch.equal(features, expected.features) and torch.equal(there.logits, expected.logits)
    assert not features.requires_grad
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_features_need_no_head() -> None:
    net, other, x = tiny_net(FedAvg(), seed=0), tiny_net(FedAvg(), seed=1), batch().x
    headless = {key: value for key, value in snapshot(other).items() if not key.startswith("head.")}
    other.eval()
    with torch.no_grad():
        assert torch.equal(frozen_features(net, headless, x), other.features(x))
