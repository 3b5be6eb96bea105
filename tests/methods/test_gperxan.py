from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny_work import make_work, random_images, tiny_net
from unseen.core.errors import UserError
from unseen.methods.gperxan import GPerXAN
from unseen.nets.backbones import create_net
from unseen.nets.norms.layers import XAN
from unseen.registry import parse


def example(mixing: str) -> tuple[XAN, torch.Tensor]:
    torch.manual_seed(0)
    layer = XAN(nn.BatchNorm2d(4), mixing)  # type: ignore[arg-type]
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, layer.bn.weight, layer.bn.bias, layer.bn.running_mean):
            tensor.normal_()
        layer.bn.running_var.uniform_(0.5, 2)
        layer.score.fill_(0.7)
        layer.bn.score.fill_(-0.4)
    return layer, torch.randn(5, 4, 6, 3) * 2 + 1


def numpy_xan(layer: XAN, x: np.ndarray, w_in: float, w_bn: float, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Eq. 2, term by term."""

    def side(mean: np.ndarray, var: np.ndarray, gamma: torch.Tensor, beta: torch.Tensor) -> np.ndarray:
        g, b = gamma.detach().numpy()[None, :, None, None], beta.detach().numpy()[None, :, None, None]
        return g * (x - mean) / np.sqrt(var + 1e-5) + b

    own_mean, own_var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    instance = side(own_mean, own_var, layer.weight, layer.bias)
    batch = side(mean[None, :, None, None], var[None, :, None, None], layer.bn.weight, layer.bn.bias)
    return w_in * instance + w_bn * batch


@pytest.mark.parametrize("mixing", ["softmax", "free"])
@pytest.mark.parametrize("training", [True, False])
def test_xan_against_numpy(mixing: str, training: bool) -> None:
    layer, maps = example(mixing)
    layer.train(training)
    x = maps.numpy().astype(np.float64)
    w_in, w_bn = 0.7, -0.4
    if mixing == "softmax":
        w_in, w_bn = (float(np.exp(w) / (np.exp(0.7) + np.exp(-0.4))) for w in (0.7, -0.4))
    mean = x.mean((0, 2, 3)) if training else layer.bn.running_mean.numpy().copy()
    var = x.var((0, 2, 3)) if training else layer.bn.running_var.numpy().copy()
    expected = numpy_xan(layer, x, w_in, w_bn, mean, var)
    np.testing.assert_allclose(layer(maps).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_batchnorm_weights_of_the_backbone_land_in_the_bn_branch() -> None:
    net = create_net("convnet", 3, image_size=32)
    with torch.no_grad():
        for number, bn in enumerate(net.norms(nn.BatchNorm2d)):
            for tensor, value in zip(
                (bn.weight, bn.bias, bn.running_mean, bn.running_var), (0.1, 0.2, 0.3, 0.4), strict=True
            ):
                tensor.fill_(number + value)
    GPerXAN(variant="official").build(net)
    layers = net.norms(XAN)
    assert len(layers) == 4
    for number, layer in enumerate(layers):
        got = [layer.bn.weight, layer.bn.bias, layer.bn.running_mean, layer.bn.running_var]
        for tensor, value in zip(got, (0.1, 0.2, 0.3, 0.4), strict=True):
            torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, number + value))
        assert bool((layer.weight == 1).all()) and bool((layer.bias == 0).all())
        assert layer.mixture()[0].item() == layer.mixture()[1].item() == 0.5


def test_activations_fused_with_the_norm_survive() -> None:
    net = GPerXAN().build(create_net("mobilenetv2_100", 3, image_size=32))
    layer = net.norms(XAN)[0]
    with torch.no_grad():
        layer.weight.fill_(20.0)
        out = layer(torch.randn(2, layer.bn.num_features, 8, 8))
    assert float(out.min()) == 0.0 and float(out.max()) == 6.0


def own(method: GPerXAN, stages: int = 2) -> tuple[frozenset[str], frozenset[str]]:
    """What clients keep, and all state names, with two of four stages replaced."""
    net = tiny_net(method)
    share = method.share(net)
    assert share.up == frozenset(net.state_dict())
    return share.up - share.down, share.up


def test_official_clients_keep_the_branch_and_w_bn_only() -> None:
    kept, _ = own(GPerXAN(stages=2))
    entries = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked", "score"]
    assert kept == {f"backbone.blocks.{block}.1.bn.{entry}" for block in (0, 1) for entry in entries}


def test_paper_clients_keep_all_batchnorm_and_share_both_weights() -> None:
    kept, _ = own(GPerXAN(stages=2, variant="paper"))
    entries = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    branch = {f"backbone.blocks.{block}.1.bn.{entry}" for block in (0, 1) for entry in entries}
    plain = {f"backbone.blocks.{block}.1.{entry}" for block in (2, 3) for entry in entries}
    assert kept == branch | plain


def test_switches_go_before_the_variant() -> None:
    official, _ = own(GPerXAN(stages=2))
    assert own(GPerXAN(stages=2, local_plain_bn=True))[0] > official
    assert own(GPerXAN(stages=2, local_weight=False))[0] == {key for key in official if not key.endswith("score")}
    assert own(GPerXAN(stages=2, variant="paper", local_weight=True, local_plain_bn=False))[0] == official


@pytest.mark.parametrize(
    ("settings", "mixing"),
    [({}, "softmax"), ({"variant": "paper"}, "free"), ({"variant": "paper", "mixing": "softmax"}, "softmax")],
)
def test_mixing_follows_the_variant_unless_given(settings: dict[str, str], mixing: str) -> None:
    net = tiny_net(parse("gperxan", settings))
    assert {layer.mixing for layer in net.norms(XAN)} == {mixing}


def test_loss_adds_the_received_heads_cross_entropy() -> None:
    method = GPerXAN(guidance=0.75)
    work = make_work(method)
    with torch.no_grad():
        work.net.head.bias.add_(torch.tensor([1.0, -1.0, 0.0]))
    work.net.eval()
    batch = random_images(5).batch(torch.arange(5))
    features = work.net.features(batch.x).detach().numpy().astype(np.float64)

    def cross_entropy(weight: torch.Tensor, bias: torch.Tensor) -> float:
        logits = features @ weight.detach().numpy().T + bias.detach().numpy()
        return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(5), batch.y.numpy()]))

    own_part = cross_entropy(work.net.head.weight, work.net.head.bias)
    received = cross_entropy(work.received["head.weight"], work.received["head.bias"])
    assert own_part != pytest.approx(received, rel=1e-3)
    assert float(method.loss(work, batch).detach()) == pytest.approx(own_part + 0.75 * received, rel=1e-4)


def test_without_guidance_the_loss_is_cross_entropy() -> None:
    work = make_work(GPerXAN(guidance=0.0))
    batch = random_images(6).batch(torch.arange(6))
    assert float(work.method.penalty(work, batch, torch.zeros(6, work.net.feature_size))) == 0.0


def test_a_step_trains_every_tensor() -> None:
    work = make_work(GPerXAN())
    work.net.train()
    work.method.step(work, random_images(8).batch(torch.arange(8)))
    assert all(p.grad is not None and bool(p.grad.any()) for p in work.net.parameters())


def test_too_many_stages_is_an_error() -> None:
    with pytest.raises(UserError, match="from 1 to 4"):
        GPerXAN(stages=5).build(create_net("convnet", 3, image_size=32))


def test_a_backbone_without_batchnorm_is_an_error() -> None:
    with pytest.raises(UserError, match="no BatchNorm2d"):
        GPerXAN().build(create_net("alexnet", 3, image_size=64))


def test_gentle_starts_closer_to_the_trained_net_than_official() -> None:
    def after(variant: str | None) -> torch.Tensor:
        net = create_net("convnet", 3, image_size=32)
        with torch.no_grad():
            for bn in net.norms(nn.BatchNorm2d):  # as training leaves them: scales far from 1
                bn.weight.fill_(0.3)
                bn.bias.fill_(0.2)
        if variant:
            GPerXAN(variant=variant).build(net)  # type: ignore[arg-type]
        return net.train().features(random_images(8).x).detach()

    plain = after(None)
    gentle, official = ((after(variant) - plain).norm() / plain.norm() for variant in ("gentle", "official"))
    assert gentle < 0.25 * official


@pytest.mark.parametrize(
    ("settings", "w_in", "w_bn"),
    [
        ({}, 0.5, 0.5),
        ({"variant": "official"}, 0.5, 0.5),
        ({"variant": "gentle"}, 0.1, 0.9),
        ({"start": "0.3", "mixing": "softmax"}, 0.3, 0.7),
        ({"start": "0.3", "mixing": "free"}, 0.3, 0.7),
        ({"variant": "paper", "start": "0.25"}, 0.25, 0.75),
    ],
)
def test_the_start_holds_under_both_mixings(settings: dict[str, str], w_in: float, w_bn: float) -> None:
    for layer in tiny_net(parse("gperxan", settings)).norms(XAN):
        np.testing.assert_allclose([w.item() for w in layer.mixture()], [w_in, w_bn], rtol=1e-6)


def test_the_papers_weights_are_drawn() -> None:
    layers = tiny_net(GPerXAN(variant="paper")).norms(XAN)
    weights = [w.item() for layer in layers for w in layer.mixture()]
    assert len(set(weights)) == 8 and all(0 <= w <= 1 for w in weights)
    again = [w.item() for layer in tiny_net(GPerXAN(variant="paper")).norms(XAN) for w in layer.mixture()]
    assert weights == again
    drawn = tiny_net(GPerXAN(variant="paper", mixing="softmax")).norms(XAN)
    assert len({layer.mixture()[0].item() for layer in drawn}) == 4


def test_a_start_that_is_not_the_authors_says_so() -> None:
    assert GPerXAN(variant="gentle").about.remark == "softer start, ours"
    assert not GPerXAN().about.remark  # the default is the authors'
    assert GPerXAN(variant="official", affine="bn").about.remark == GPerXAN(start=0.2).about.remark != ""
    assert not GPerXAN(variant="official").about.remark and not GPerXAN(variant="paper").about.remark
    assert not GPerXAN(variant="official", guidance=0.25, stages=2).about.remark


def test_on_densenet_the_first_block_and_transition_have_13_norms() -> None:
    """Section 4.2, Camelyon17; six layers of two norms, and the transition's."""
    net = GPerXAN(variant="official", stages=1).build(create_net("densenet121", 2, image_size=32))
    assert len(net.norms(XAN)) == 13
    replaced = {name for name, module in net.backbone.named_modules() if isinstance(module, XAN)}
    assert all(name.startswith(("features.denseblock1.", "features.transition1.")) for name in replaced)


@pytest.mark.parametrize("start", [0.0, 1.0, -0.5])
def test_a_start_that_is_no_weight_is_refused(start: float) -> None:
    with pytest.raises(UserError, match="start"):
        GPerXAN(start=start).build(tiny_net(GPerXAN()))
