from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny_work import make_work, random_images
from unseen.methods.ibn import IBN
from unseen.nets.backbones import create_net
from unseen.nets.norms import layers as norms


@pytest.mark.parametrize("training", [True, False])
def test_layer_against_numpy(training: bool) -> None:
    torch.manual_seed(0)
    layer = norms.IBN(5).train(training)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.running_mean):
            tensor.normal_()
        layer.running_var.uniform_(0.5, 2)
    maps = torch.randn(3, 5, 4, 6) * 2 + 1
    x = maps.numpy().astype(np.float64)
    mean = x.mean((0, 2, 3)) if training else layer.running_mean.numpy().copy()
    var = x.var((0, 2, 3)) if training else layer.running_var.numpy().copy()
    expected = np.empty_like(x)
    for channel in range(5):
        for image in range(3):
            maps_of_one = x[image, channel]
            m, v = (maps_of_one.mean(), maps_of_one.var()) if channel < 2 else (mean[channel], var[channel])
            gamma, beta = float(layer.weight[channel].detach()), float(layer.bias[channel].detach())
            expected[image, channel] = gamma * (maps_of_one - m) / np.sqrt(v + 1e-5) + beta
    np.testing.assert_allclose(layer(maps).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_first_norm_of_each_block_of_the_first_three_stages() -> None:
    net = IBN().build(create_net("resnet18", 3, image_size=32))
    split = {name for name, module in net.backbone.named_modules() if isinstance(module, norms.IBN)}
    assert split == {f"layer{stage}.{block}.bn1" for stage in (1, 2, 3) for block in (0, 1)}


def test_fused_norms_are_found_too() -> None:
    net = IBN(stages=1).build(create_net("mobilenetv2_100", 3, image_size=32))
    split = {name for name, module in net.backbone.named_modules() if isinstance(module, norms.IBN)}
    assert split == {"blocks.0.0.bn1", "blocks.1.0.bn1", "blocks.1.1.bn1"}
    layer = net.norms(norms.IBN)[0]
    with torch.no_grad():
        layer.weight.fill_(20.0)
        out = layer(torch.randn(2, 32, 8, 8))
    assert float(out.min()) == 0.0 and float(out.max()) == 6.0


@pytest.mark.parametrize(("backbone", "blocks"), [("densenet121", 6 + 12 + 24), ("resnet50", 3 + 4 + 6)])
def test_number_of_blocks(backbone: str, blocks: int) -> None:
    assert len(IBN().build(create_net(backbone, 3, image_size=32)).norms(norms.IBN)) == blocks


def test_everywhere_like_xan() -> None:
    net = IBN(placement="all", stages=4).build(create_net("resnet18", 3, image_size=32))
    assert len(net.norms(norms.IBN)) == 20


def test_a_net_without_blocks_splits_every_norm() -> None:
    net = IBN(stages=3).build(create_net("convnet", 3, image_size=32))
    assert [isinstance(norm, norms.IBN) for norm in net.norms(nn.BatchNorm2d)] == [True, True, True, False]


def test_state_names_stay_those_of_batchnorm_and_all_is_shared() -> None:
    plain = create_net("convnet", 3, image_size=32)
    net = IBN().build(create_net("convnet", 3, image_size=32))
    assert set(net.state_dict()) == set(plain.state_dict())
    assert IBN().share(net).down == frozenset(plain.state_dict())


def test_a_step_trains_every_tensor() -> None:
    work = make_work(IBN())
    work.net.train()
    work.method.step(work, random_images(8).batch(torch.arange(8)))
    assert all(p.grad is not None and bool(p.grad.any()) for p in work.net.parameters())
