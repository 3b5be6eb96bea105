"""Every rule against plain NumPy, and the twin pass against two passes."""

from __future__ import annotations

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
from unseen.core.errors import UserError
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.nets.norms.layers import StatNorm2d, make_pluggable
from unseen.nets.norms.moments import Statistics
from unseen.nets.norms.rules import (
    IABN,
    BatchRule,
    FixedAlpha,
    InstanceRule,
    MixNorm,
    RandomAlpha,
    Rule,
    reference_statistics,
    ruled,
    twin,
)


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
                limit = 2 * np.sqrt((running_var[c] + EPS) / pixels)
                new_mean[b, c] = running_mean[c] + np.sign(d) * max(abs(d) - limit, 0)
                d = x[b, c].var(ddof=1) - running_var[c]
                limit = 2 * (running_var[c] + EPS) * np.sqrt(2 / (pixels - 1))
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


def test_iabns_standard_errors_have_the_epsilon() -> None:
    """Channels that never varied: their standard errors are epsilon's, so that small differences stay uncorrected."""
    norm = nn.BatchNorm2d(1, eps=0.04).eval()
    norm.running_var.zero_()
    stat = StatNorm2d.of(norm)
    x = torch.tensor([0.1, 0.3]).view(1, 1, 1, 2)
    mean, var = 0.2, 0.02  # of the image; the running ones are 0
    mean_error, var_error = np.sqrt(0.04 / 2), 0.04 * np.sqrt(2)
    for k in (0.5, 1.0, 2.0):
        stat.rule = IABN(k=k)
        new_mean, new_var = max(mean - k * mean_error, 0), max(var - k * var_error, 0)
        expected = (np.array([0.1, 0.3]) - new_mean) / np.sqrt(new_var + 0.04)
        np.testing.assert_allclose(stat(x).detach().numpy().ravel(), expected, rtol=1e-5)


def test_random_alpha_shapes() -> None:
    norm = StatNorm2d.of(norm_2d())
    own = Statistics(torch.zeros(B, C), torch.ones(B, C))
    shapes = {"channel": (1, C), "image": (B, 1), "both": (B, C), "number": (1, 1)}
    for per, shape in shapes.items():
        alpha = RandomAlpha(generator(), per=per).alpha(norm, own, own)  # type: ignore[arg-type]
        assert isinstance(alpha, Tensor) and alpha.shape == shape


def test_a_ruled_norm_keeps_channels_last_and_bfloat16() -> None:
    x = maps().contiguous(memory_format=torch.channels_last)
    norm = StatNorm2d.of(norm_2d())
    norm.rule = InstanceRule()
    assert norm(x).is_contiguous(memory_format=torch.channels_last)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


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
