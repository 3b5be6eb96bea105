from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny_work import make_work, random_images, tiny_net
from unseen.core.plan import OptimizerPlan
from unseen.methods.bin import BIN
from unseen.nets.norms import layers as norms
from unseen.registry import parse


@pytest.mark.parametrize("training", [True, False])
def test_layer_against_numpy(training: bool) -> None:
    torch.manual_seed(0)
    layer = norms.BIN(4).train(training)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            tensor.normal_()
        layer.running_var.uniform_(0.5, 2)
        layer.gate.copy_(torch.tensor([0.0, 0.3, 0.8, 1.0]))
    maps = torch.randn(3, 4, 4, 6) * 2 + 1
    x = maps.numpy().astype(np.float64)
    mean = (x.mean((0, 2, 3)) if training else layer.running_mean.numpy().copy())[None, :, None, None]
    var = (x.var((0, 2, 3)) if training else layer.running_var.numpy().copy())[None, :, None, None]
    gate, gamma, beta = (t.detach().numpy()[None, :, None, None] for t in (layer.gate, layer.weight, layer.bias))
    by_batch = (x - mean) / np.sqrt(var + 1e-5)
    by_instance = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    expected = gamma * (gate * by_batch + (1 - gate) * by_instance) + beta
    np.testing.assert_allclose(layer(maps).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_starts_as_the_batchnorm_it_replaces() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.weight.normal_()
        norm.running_mean.normal_()
    maps = torch.randn(3, 4, 5, 5)
    norm.eval()
    expected = norm(maps)
    torch.testing.assert_close(norms.BIN.of(norm).eval()(maps), expected, rtol=1e-4, atol=1e-5)


def test_gates_are_bounded_after_steps_and_learn_at_their_own_rate() -> None:
    work = make_work(BIN(gate_rate=50.0), optimizer=OptimizerPlan(lr=0.05, weight_decay=0.01))
    before = [layer.gate.detach().clone() for layer in work.net.norms(norms.BIN)]
    weights = {id(p) for p in work.net.trainable()}
    work.method.prepare(work)
    groups = work.optimizers["main"].param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.05, 0.01), (2.5, 0.0)]
    assert {id(p) for group in groups for p in group["params"]} == weights
    assert {id(p) for p in groups[1]["params"]} == {id(layer.gate) for layer in work.net.norms(norms.BIN)}
    work.net.train()
    for seed in range(3):
        work.method.step(work, random_images(8, seed=seed).batch(torch.arange(8)))
    assert work.method.report(work) == {}
    gates = [layer.gate.detach() for layer in work.net.norms(norms.BIN)]
    assert all(float(gate.min()) >= 0 and float(gate.max()) <= 1 for gate in gates)
    assert any(not torch.equal(gate, old) for gate, old in zip(gates, before, strict=True))


def test_stages_and_sharing() -> None:
    net = tiny_net(BIN(stages=1))
    assert len(net.norms(norms.BIN)) == 1
    assert "backbone.blocks.0.1.gate" in BIN().share(net).down


@pytest.mark.parametrize("name", ["bin+l2d", "l2d+bin", "bin+fedadg", "fedadg+bin"])
def test_gates_keep_their_rate_beside_parts_that_have_optimizers_of_their_own(name: str) -> None:
    work = make_work(parse(name), optimizer=OptimizerPlan(lr=0.05, weight_decay=0.01))
    work.method.prepare(work)
    gates = {id(layer.gate) for layer in work.net.norms(norms.BIN)}
    groups = [*work.optimizers["main"].param_groups]
    assert [group["lr"] for group in groups if gates & {id(p) for p in group["params"]}] == [0.5]
    for side in set(work.optimizers) - {"main"}:
        theirs = {id(p) for group in work.optimizers[side].param_groups for p in group["params"]}
        assert theirs and not theirs & {id(p) for group in groups for p in group["params"]}
