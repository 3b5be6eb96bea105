"""Every rule against plain NumPy, and rules over a net."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

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
from unseen.nets.norms.layers import BIN, StatNorm2d, make_pluggable
from unseen.nets.norms.rules import (
    IABN,
    BatchRule,
    FixedAlpha,
    InstanceRule,
    MixNorm,
    Rule,
    reference_statistics,
    ruled,
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


@pytest.mark.parametrize("name", ["running", "batch", "instance", "fixed", "iabn", "mixnorm"])
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


# --- over a net ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mobilenetv2_100", "densenet121", "convnet"])
def test_a_pass_under_a_rule_remembers_nothing_and_ends_with_the_rule_gone(name: str) -> None:
    net = make_pluggable(create_net(name, 5, image_size=64))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    x = torch.rand(2, 3, 64, 64, generator=generator())
    with ruled(net, InstanceRule()):
        net.features(x).sum().backward()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(norm.rule is None for norm in net.norms(StatNorm2d))


def test_make_pluggable_leaves_the_neck_and_norms_that_follow_rules_alone() -> None:
    net = create_net("convnet", 5, image_size=32, bottleneck=8).replace_norms(BIN.of)
    make_pluggable(net)
    assert len(net.norms(BIN)) == 4 and not net.norms(StatNorm2d)
    assert [type(norm) for norm in net.norms(nn.BatchNorm1d)] == [nn.BatchNorm1d]


def test_rules_need_batch_norms() -> None:
    net = make_pluggable(create_net("vit_tiny_patch16_224", 5, image_size=32))
    with pytest.raises(UserError, match="no BatchNorm2d"), ruled(net, InstanceRule()):
        pass
