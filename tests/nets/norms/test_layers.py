"""Every layer against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.nets.norms.by_hand import (
    EPS,
    Array,
    B,
    C,
    H,
    W,
    apply,
    arrays,
    batch,
    close,
    generator,
    instance,
    maps,
    norm_2d,
)
from unseen.nets.backbones import create_net
from unseen.nets.norms.layers import BIN, DSON, IBN, XAN, MomentNorm2d, StatNorm2d
from unseen.nets.norms.moments import Statistics, instance_moments
from unseen.nets.norms.rules import Rule


def test_without_a_rule_it_is_batch_norm_to_the_bit() -> None:
    x = maps()
    plain, stat = norm_2d(), StatNorm2d.of(norm_2d())
    assert torch.equal(plain(x), stat(x))
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in stat.state_dict().items())


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_batch_side_tracks_like_batch_norm(momentum: float | None) -> None:
    plain, moment = norm_2d(), MomentNorm2d.of(norm_2d())
    plain.momentum = moment.momentum = momentum
    for _ in range(2):
        x = maps()
        plain(x)
        moment.batch_side(*instance_moments(x), pixels=H * W)
    assert torch.equal(plain.state_dict()["num_batches_tracked"], moment.state_dict()["num_batches_tracked"])
    for key in ("running_mean", "running_var"):
        torch.testing.assert_close(moment.state_dict()[key], plain.state_dict()[key])


# --- layers beside ---------------------------------------------------------------------------------------------------
def training_statistics(x: Array, norm: nn.BatchNorm2d, training: bool) -> tuple[Array, Array]:
    if training:
        return batch(x)
    _, _, mean, var = arrays(norm)
    return np.tile(mean, (B, 1)), np.tile(var, (B, 1))


@pytest.mark.parametrize("training", [True, False])
def test_xan(training: bool) -> None:
    x, norm = maps(), norm_2d()
    weight, bias, *_ = arrays(norm)
    batch_mean, batch_var = training_statistics(x.double().numpy(), norm, training)
    plain = norm_2d().train(training)
    layer = XAN(norm).train(training)
    with torch.no_grad():
        layer.weight.uniform_(0.5, 1.5)
        layer.bias.normal_()
        layer.score.fill_(0.3)
        layer.bn.score.fill_(-0.4)
    w_in = np.exp(0.3) / (np.exp(0.3) + np.exp(-0.4))
    mean, var = instance(x.double().numpy())
    in_weight, in_bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
    expected = w_in * apply(x.double().numpy(), mean, np.sqrt(var + EPS), in_weight, in_bias)
    expected += (1 - w_in) * apply(x.double().numpy(), batch_mean, np.sqrt(batch_var + EPS), weight, bias)
    close(layer(x), expected)
    plain(x)
    for key in ("running_mean", "running_var"):
        torch.testing.assert_close(layer.bn.state_dict()[key], plain.state_dict()[key])


def test_xan_starts_at_one_half_or_at_random() -> None:
    assert [float(w.detach()) for w in XAN(norm_2d()).mixture()] == [0.5, 0.5]
    torch.manual_seed(0)
    w_in, w_bn = XAN(norm_2d(), "free", w_in=None).mixture()
    assert (
        0 < float(w_in.detach()) < 1 and 0 < float(w_bn.detach()) < 1 and float(w_in.detach()) != float(w_bn.detach())
    )
    layer = XAN(norm_2d())
    layer(maps()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_xan_may_start_near_the_batchnorm_that_was_there() -> None:
    norm = norm_2d()
    layer = XAN(norm, affine="bn", w_in=0.1)
    assert [float(w.detach()) for w in layer.mixture()] == pytest.approx([0.1, 0.9])
    assert torch.equal(layer.weight, norm.weight) and torch.equal(layer.bias, norm.bias)
    assert layer.weight is not layer.bn.weight  # a copy: the two are trained apart


@pytest.mark.parametrize("training", [True, False])
def test_ibn(training: bool) -> None:
    x, norm = maps(), norm_2d()
    weight, bias, *_ = arrays(norm)
    mean, var = training_statistics(x.double().numpy(), norm, training)
    own_mean, own_var = instance(x.double().numpy())
    mean[:, : C // 2], var[:, : C // 2] = own_mean[:, : C // 2], own_var[:, : C // 2]
    close(IBN.of(norm).train(training)(x), apply(x.double().numpy(), mean, np.sqrt(var + EPS), weight, bias))


@pytest.mark.parametrize("training", [True, False])
def test_bin(training: bool) -> None:
    x, norm = maps(), norm_2d()
    weight, bias, *_ = arrays(norm)
    batch_mean, batch_var = training_statistics(x.double().numpy(), norm, training)
    mean, var = instance(x.double().numpy())
    layer = BIN.of(norm).train(training)
    gate = np.linspace(0, 1, C)
    with torch.no_grad():
        layer.gate.copy_(torch.tensor(gate))
    ones, zeros = np.ones(C), np.zeros(C)
    by_batch = apply(x.double().numpy(), batch_mean, np.sqrt(batch_var + EPS), ones, zeros)
    by_instance = apply(x.double().numpy(), mean, np.sqrt(var + EPS), ones, zeros)
    mixed = gate[:, None, None] * by_batch + (1 - gate)[:, None, None] * by_instance
    close(layer(x), weight[:, None, None] * mixed + bias[:, None, None])


def test_bins_gate_is_kept_between_0_and_1_and_trains() -> None:
    layer = BIN.of(norm_2d())
    with torch.no_grad():
        layer.gate.fill_(1.5)
    layer(maps()).square().sum().backward()
    assert torch.equal(layer.gate.detach(), torch.ones(C))
    assert layer.gate.grad is not None and bool((layer.gate.grad != 0).all())


@pytest.mark.parametrize("training", [True, False])
def test_dson(training: bool) -> None:
    x, norm = maps(), norm_2d()
    weight, bias, *_ = arrays(norm)
    batch_mean, batch_var = training_statistics(x.double().numpy(), norm, training)
    mean, var = instance(x.double().numpy())
    layer = DSON.of(norm).train(training)
    with torch.no_grad():
        layer.mix.copy_(torch.tensor([0.7, -0.2]))
    of_mean, of_var = 1 / (1 + np.exp(-0.7)), 1 / (1 + np.exp(0.2))
    mixed_mean = of_mean * batch_mean + (1 - of_mean) * mean
    mixed_std = np.sqrt(of_var * batch_var + (1 - of_var) * var + EPS)
    close(layer(x), apply(x.double().numpy(), mixed_mean, mixed_std, weight, bias))


class ByThree(Rule):
    """A rule of its own for every image: mean 3 + b, standard deviation 2."""

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        return Statistics(3 + torch.arange(len(mean_BC))[:, None].expand_as(mean_BC), torch.full_like(var_BC, 2))


@pytest.mark.parametrize("kind", ["bin", "ibn", "dson", "xan"])
def test_under_a_rule_its_statistics_stand_for_the_batchs(kind: str) -> None:
    x, norm = maps(), norm_2d()
    weight, bias, *_ = arrays(norm)
    pixels = x.double().numpy()
    mean, var = instance(pixels)
    ruled_mean, ruled_std = np.tile(3 + np.arange(B)[:, None], (1, C)), np.full((B, C), 2.0)
    own, ruled = (
        apply(pixels, mean, np.sqrt(var + EPS), weight, bias),
        apply(pixels, ruled_mean, ruled_std, weight, bias),
    )
    layer: nn.Module
    if kind == "bin":
        layer = BIN.of(norm)
        nn.init.constant_(layer.gate, 0.25)
        expected = 0.25 * ruled + 0.75 * own
    elif kind == "ibn":
        layer = IBN.of(norm)
        expected = np.concatenate([own[:, : C // 2], ruled[:, C // 2 :]], axis=1)
    elif kind == "dson":
        layer = DSON.of(norm)  # both weights start at one half
        mixed_std = np.sqrt(0.5 * ruled_std**2 + 0.5 * (var + EPS))
        expected = apply(pixels, 0.5 * ruled_mean + 0.5 * mean, mixed_std, weight, bias)
    else:
        layer = XAN(norm)
        expected = 0.5 * apply(pixels, mean, np.sqrt(var + EPS), np.ones(C), np.zeros(C)) + 0.5 * ruled
    ruled_norm = layer.bn if isinstance(layer, XAN) else layer
    assert isinstance(ruled_norm, MomentNorm2d)
    ruled_norm.rule = ByThree()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    close(layer.train()(x), expected)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items()), "a rule tracks nothing"


def test_bins_gate_takes_two_passes_before_backward() -> None:
    layer = BIN.of(norm_2d())
    (layer(maps()) + layer(maps() + 1)).square().sum().backward()
    assert layer.gate.grad is not None


LAYERS: list[Callable[[nn.BatchNorm2d], nn.Module]] = [XAN, IBN.of, BIN.of, DSON.of, StatNorm2d.of]


@pytest.mark.parametrize("make", LAYERS)
def test_fused_activations_survive_every_replacement(make: Callable[[nn.BatchNorm2d], nn.Module]) -> None:
    net = create_net("mobilenetv2_100", 5, image_size=32).replace_norms(make).eval()
    with torch.no_grad():
        net.backbone.bn1.weight.mul_(10)  # type: ignore[union-attr, operator]
        for own in net.norms(XAN):
            own.bn.weight.mul_(10)
        stem = net.backbone.bn1(torch.randn(2, 32, 8, 8, generator=generator()) * 10)  # type: ignore[operator]
    assert float(stem.min()) == 0 and float(stem.max()) == 6  # ReLU6


def test_layers_need_an_affine_norm() -> None:
    with pytest.raises(ValueError, match="affine"):
        StatNorm2d.of(nn.BatchNorm2d(3, affine=False))
