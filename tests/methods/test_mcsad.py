from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.methods.test_fedccrl import numpy_contrast
from tests.methods.test_fediir import softmax
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.tensors import snapshot
from unseen.methods.mcsad import MCSAD
from unseen.nets.parts.styles import style_of


def some_heads() -> list[dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(5)
    return [{"weight": torch.randn(3, 256, generator=rng), "bias": torch.randn(3, generator=rng)} for _ in "ab"]


def test_styles_go_up_the_gradient_of_all_heads() -> None:
    """One number of a style, by finite differences; maps are otherwise as they were."""
    method = MCSAD(rate=0.5)
    work, images, heads = make_work(method), batch(4), some_heads()
    net = work.net.eval().double()
    heads = [{key: value.double() for key, value in head.items()} for head in heads]
    maps = net.run_stage(0, images.x.double()).detach()
    mean, std = maps.mean((2, 3)), (maps.var((2, 3), correction=0) + 1e-5).sqrt()
    normed = (maps - mean[:, :, None, None]) / std[:, :, None, None]

    def risk(mean: torch.Tensor, std: torch.Tensor) -> float:
        x = normed * std[:, :, None, None] + mean[:, :, None, None]
        for stage in range(1, net.stages):
            x = net.run_stage(stage, x)
        z = net.pool(x)
        return float(np.mean([F.cross_entropy(z @ h["weight"].T + h["bias"], images.y).item() for h in heads]))

    with torch.no_grad():
        slopes = []
        for which in (0, 1):
            step = torch.zeros_like(mean)
            step[1, 2] = 1e-5
            moves = [(step, 0 * step), (0 * step, step)][which]
            slopes.append((risk(mean + moves[0], std + moves[1]) - risk(mean - moves[0], std - moves[1])) / 2e-5)
    hard = method.harder(net, heads, 0, maps, images.y)
    found = style_of(hard, 0.0)
    assert float(found.mean[1, 2]) == pytest.approx(float(mean[1, 2]) + 0.5 * slopes[0], abs=1e-4)
    spread = float(normed[1, 2].std(correction=0))  # a little below 1, by epsilon
    assert float(found.std[1, 2]) == pytest.approx(abs(float(std[1, 2]) + 0.5 * slopes[1]) * spread, abs=1e-4)


def test_stages_that_are_not_there() -> None:
    for wrong in (0, 5):
        with pytest.raises(UserError, match="1 to 4"):
            tiny_net(MCSAD(stages=wrong))


def test_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harder style is the map's negative, so that image and restyled one can be told apart: all heads see the image."""
    monkeypatch.setattr(MCSAD, "harder", lambda self, net, heads, stage, maps, labels: 1 - maps)
    heads = some_heads()
    brief = {f"{c}/{key}": v for c, head in zip("ab", heads, strict=True) for key, v in head.items()}
    work, images = make_work(MCSAD(contrast=0.3, relation=0.7, tau=1.5), brief=brief), batch()
    net = work.net.eval()
    found = work.method.loss(work, images).item()
    with torch.no_grad():
        maps = images.x
        for stage in range(net.stages):
            maps = net.run_stage(stage, maps)
            maps = 1 - maps if stage < 2 else maps
        rows, restyled = net.features(images.x).numpy(), net.pool(maps).numpy()
        answers = [net.head(torch.tensor(z)).numpy() for z in (rows, restyled)]
    labels = images.y.numpy()
    risk = sum(-np.log(softmax(z)[np.arange(8), labels]).mean() for z in answers)
    contrast = numpy_contrast(np.concatenate([rows, restyled]), np.concatenate([labels, labels]), 0.07, False)
    agreed = softmax(np.mean([rows @ h["weight"].numpy().T + h["bias"].numpy() for h in heads], axis=0) / 1.5)
    apart = sum((agreed * (np.log(agreed) - np.log(softmax(z / 1.5)))).sum(1).mean() for z in answers)
    assert found == pytest.approx(risk + 0.3 * contrast + 0.7 * apart, rel=1e-4)


def test_running_statistics_are_those_of_the_two_passes_that_train() -> None:
    """With rate 0 and the received head, the statistics of the net move as by two plain passes."""
    work, plain, images = make_work(MCSAD(rate=0.0)), make_work(MCSAD()), batch()
    work.method.loss(work, images)
    with torch.no_grad():
        for _ in range(2):
            plain.net(images.x)
    one, two = snapshot(work.net), snapshot(plain.net)
    counters = [key for key in one if key.endswith("num_batches_tracked")]
    assert [int(one[key]) for key in counters] == [1, 2, 2, 2]  # the first stage runs once for both
    for key in one:
        if "running" in key and not key.startswith("backbone.blocks.0"):
            torch.testing.assert_close(one[key], two[key], rtol=1e-3, atol=1e-4)
