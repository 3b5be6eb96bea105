"""Every layer and rule against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.nets.norms.layers import (
    BIN,
    DSON,
    IABN,
    IBN,
    XAN,
    BatchRule,
    FixedAlpha,
    InstanceRule,
    MixNorm,
    MomentNorm2d,
    RandomAlpha,
    Rule,
    Statistics,
    StatNorm2d,
    instance_moments,
    make_pluggable,
    reference_statistics,
    ruled,
    twin,
)

B, C, H, W = 4, 6, 5, 3
EPS = 1e-5
Array = np.ndarray


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def maps() -> Tensor:
    # a mean far from zero: a variance computed as E[x^2] - E[x]^2 would show
    return torch.randn(B, C, H, W, generator=generator()) * 2 + 30


def norm_2d() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(C)
    g = generator()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5, generator=g)
        norm.bias.normal_(generator=g)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_(29, 1, generator=g)
        norm.running_var.uniform_(1, 5, generator=g)
    return norm


def arrays(norm: nn.BatchNorm2d) -> tuple[Array, Array, Array, Array]:
    """weight, bias, running mean, running variance in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, bias, mean, var = (tensor.detach().double().numpy() for tensor in tensors)
    return weight, bias, mean.copy(), var.copy()


def apply(x: Array, mean: Array, std: Array, weight: Array, bias: Array) -> Array:
    """Normalise image by image and channel by channel; mean and std are B x C."""
    out = np.empty_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[b, c] = (x[b, c] - mean[b, c]) / std[b, c] * weight[c] + bias[c]
    return out


def close(actual: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(actual.detach().double().numpy(), expected, rtol=2e-4, atol=2e-4)


def instance(x: Array) -> tuple[Array, Array]:
    return x.mean(axis=(2, 3)), x.var(axis=(2, 3))


def batch(x: Array) -> tuple[Array, Array]:
    """Over batch and pixels, as B x C."""
    mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    return np.tile(mean, (len(x), 1)), np.tile(var, (len(x), 1))


def test_moments_and_their_gradient() -> None:
    x = maps()
    mean, var = instance_moments(x)
    close(mean, instance(x.double().numpy())[0])
    close(var, instance(x.double().numpy())[1])
    small = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=generator(), requires_grad=True)
    assert torch.autograd.gradcheck(instance_moments, (small,))
    assert torch.autograd.gradgradcheck(instance_moments, (small,))


def test_moments_keep_channels_last_and_survive_bfloat16() -> None:
    x = maps().contiguous(memory_format=torch.channels_last)
    norm = StatNorm2d.of(norm_2d())
    norm.rule = InstanceRule()
    assert norm(x).is_contiguous(memory_format=torch.channels_last)
    assert norm(x.bfloat16()).dtype == torch.bfloat16
    assert instance_moments(x.bfloat16())[0].dtype == torch.float32


def rule_case(name: str, x: Array, norm: nn.BatchNorm2d) -> tuple[Rule, Array, Array]:
    """A rule, and the mean and standard deviation it must use, worked out by hand."""
    _, _, running_mean, running_var = arrays(norm)
    mean, var = instance(x)
    std, running_std = np.sqrt(var + EPS), np.sqrt(running_var + EPS)
    pixels = H * W
    if name == "running":
        return Rule(), np.tile(running_mean, (B, 1)), np.tile(running_std, (B, 1))
    if name == "batch":
        pooled_mean, pooled_var = batch(x)
        return BatchRule(), pooled_mean, np.sqrt(pooled_var + EPS)
    if name == "instance":
        return InstanceRule(), mean, std
    if name == "fixed":
        return FixedAlpha(0.3), 0.3 * mean + 0.7 * running_mean, 0.3 * std + 0.7 * running_std
    if name == "random":
        u = (0.2 + 0.3 * torch.rand((1, C), generator=generator())).double().numpy()
        rule = RandomAlpha(generator(), low=0.2, high=0.5)
        return rule, u * mean + (1 - u) * running_mean, u * std + (1 - u) * running_std
    if name == "iabn":
        new_mean, new_var = np.empty_like(mean), np.empty_like(var)
        for b in range(B):
            for c in range(C):
                d = mean[b, c] - running_mean[c]
                limit = 2 * np.sqrt(running_var[c] / pixels)
                new_mean[b, c] = running_mean[c] + np.sign(d) * max(abs(d) - limit, 0)
                d = x[b, c].var(ddof=1) - running_var[c]
                limit = 2 * running_var[c] * np.sqrt(2 / (pixels - 1))
                new_var[b, c] = running_var[c] + np.sign(d) * max(abs(d) - limit, 0)
        return IABN(k=2), new_mean, np.sqrt(new_var + EPS)
    assert name == "mixnorm"
    # 4 rows = 2 views of 2 images: rows 0 and 2 are one image
    mixed_mean, mixed_var = np.empty_like(mean), np.empty_like(var)
    for b in range(B):
        views = x[[b % 2, b % 2 + 2]]
        mixed_mean[b] = 0.25 * views.mean(axis=(0, 2, 3)) + 0.75 * running_mean
        mixed_var[b] = 0.25 * views.var(axis=(0, 2, 3)) + 0.75 * running_var
    return MixNorm(views=2, share=0.25), mixed_mean, np.sqrt(mixed_var + EPS)


@pytest.mark.parametrize("name", ["running", "batch", "instance", "fixed", "random", "iabn", "mixnorm"])
def test_rules(name: str) -> None:
    x, norm = maps(), norm_2d()
    weight, bias, *_ = arrays(norm)
    rule, mean, std = rule_case(name, x.double().numpy(), norm)
    stat = StatNorm2d.of(norm)
    stat.rule = rule
    before = {key: value.clone() for key, value in stat.state_dict().items()}
    close(stat(x), apply(x.double().numpy(), mean, std, weight, bias))
    assert all(torch.equal(value, before[key]) for key, value in stat.state_dict().items()), "a rule tracks nothing"


def test_iabn_leaves_maps_of_one_pixel_alone() -> None:
    norm = norm_2d().eval()
    x = maps()[:, :, :1, :1].contiguous()
    expected = norm(x)
    stat = StatNorm2d.of(norm)
    stat.rule = IABN()
    torch.testing.assert_close(stat(x), expected, rtol=1e-4, atol=1e-4)


def test_random_alpha_shapes() -> None:
    norm = StatNorm2d.of(norm_2d())
    own = Statistics(torch.zeros(B, C), torch.ones(B, C))
    shapes = {"channel": (1, C), "image": (B, 1), "both": (B, C), "number": (1, 1)}
    for per, shape in shapes.items():
        alpha = RandomAlpha(generator(), per=per).alpha(norm, own, own)  # type: ignore[arg-type]
        assert isinstance(alpha, Tensor) and alpha.shape == shape


def test_without_a_rule_it_is_batch_norm_to_the_bit() -> None:
    x = maps()
    plain, stat = norm_2d(), StatNorm2d.of(norm_2d())
    assert torch.equal(plain(x), stat(x))
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in stat.state_dict().items())


@pytest.mark.parametrize("momentum", [0.1, None])
def test_ordinary_statistics_track_like_batch_norm(momentum: float | None) -> None:
    plain, moment = norm_2d(), MomentNorm2d.of(norm_2d())
    plain.momentum = moment.momentum = momentum
    for _ in range(2):
        x = maps()
        plain(x)
        moment.ordinary(*instance_moments(x), pixels=H * W)
    assert torch.equal(plain.state_dict()["num_batches_tracked"], moment.state_dict()["num_batches_tracked"])
    for key in ("running_mean", "running_var"):
        torch.testing.assert_close(moment.state_dict()[key], plain.state_dict()[key])


def test_a_reference_other_than_the_running_statistics() -> None:
    net = create_net("convnet", 10, image_size=32)
    make_pluggable(net)
    received = {key: value.clone() + 1 for key, value in net.state_dict().items() if value.is_floating_point()}
    references = reference_statistics(net, received)
    norm = net.norms(StatNorm2d)[0]
    close(references[norm].mean, np.ones((1, 32)))
    close(references[norm].std, np.full((1, 32), np.sqrt(2 + EPS)))
    x = torch.randn(2, 32, 4, 4, generator=generator())
    norm.rule = FixedAlpha(0.0, references)
    close(norm(x), (x.double().numpy() - 1) / np.sqrt(2 + EPS))


# --- twin ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mobilenetv2_100", "densenet121", "convnet"])
def test_twin_is_two_passes(name: str) -> None:
    """Outputs, gradients and running statistics of the twin pass against an ordinary pass and a pass under the rule."""
    size = 64
    x = torch.rand(4, 3, size, size, generator=generator(), dtype=torch.float64)

    def new() -> Net:
        return make_pluggable(create_net(name, 5, image_size=size, bottleneck=8, seed=2)).double()

    net, other = new(), new()
    references = reference_statistics(net, {key: value + 0.3 for key, value in net.state_dict().items()})
    with twin(net, RandomAlpha(generator(), references=references)):
        features = net.features(x)
    assert features.shape == (8, 8)
    weights = torch.randn(features.shape, generator=generator(), dtype=torch.float64)
    (features * weights).sum().backward()

    first = other.features(x)
    tracked = {key: value.clone() for key, value in other.state_dict().items()}
    references = reference_statistics(other, {key: value + 0.3 for key, value in new().state_dict().items()})
    with ruled(other, RandomAlpha(generator(), references=references)):
        second = other.features(x)
    (torch.cat([first, second]) * weights).sum().backward()

    torch.testing.assert_close(features, torch.cat([first, second]), rtol=1e-6, atol=1e-7)
    for (key, mine), (_, theirs) in zip(net.named_parameters(), other.named_parameters(), strict=True):
        if not key.startswith("head."):
            torch.testing.assert_close(
                mine.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
            )
    for key, value in net.state_dict().items():
        torch.testing.assert_close(value, tracked[key], msg=lambda text, key=key: f"{key}: {text}")
    assert all(norm.rule is None for norm in net.norms(StatNorm2d))


def test_twin_in_eval_mode_uses_running_statistics_for_the_first_half() -> None:
    net = make_pluggable(create_net("convnet", 5, image_size=32, bottleneck=8)).eval()
    x = torch.rand(3, 3, 32, 32, generator=generator())
    with twin(net, InstanceRule()):
        features = net.features(x)
    torch.testing.assert_close(features[:3], net.features(x))
    with ruled(net, InstanceRule()):
        torch.testing.assert_close(features[3:], net.features(x))


def test_twin_vectors_by_running_statistics() -> None:
    net = make_pluggable(create_net("convnet", 5, image_size=32, bottleneck=8))
    x = torch.rand(4, 3, 32, 32, generator=generator())
    before = {key: value.clone() for key, value in net.neck.state_dict().items()}
    with twin(net, BatchRule(), vectors="running"):
        second = net.features(x)[4:]
    with ruled(net, BatchRule()):
        pooled = net.maps(x).mean(dim=(2, 3))
    linear = net.neck[0]  # type: ignore[index]
    expected = (linear(pooled) - before["1.running_mean"]) / (before["1.running_var"] + EPS).sqrt()
    # the first half had already moved the running statistics when the second was normalised or not: it must not matter
    torch.testing.assert_close(second, expected.relu())


def test_rules_need_batch_norms() -> None:
    net = make_pluggable(create_net("vit_tiny_patch16_224", 5, image_size=32))
    with pytest.raises(UserError, match="no BatchNorm2d"), twin(net, InstanceRule()):
        pass


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
    w_in, w_bn = XAN(norm_2d(), "free").mixture()
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
