from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.test_fediir import softmax
from tests.tiny_work import batch, make_work
from unseen.core.errors import UserError
from unseen.core.types import Server
from unseen.methods.fisc import FISC, between, common_style, negatives
from unseen.nets.parts.prototypes import last_partition
from unseen.nets.parts.style_transfer import EPSILON
from unseen.nets.parts.styles import Style


def test_a_clients_style_is_the_mean_over_clusters_not_over_images() -> None:
    """Three images of one look and two of another, opposite one: two clusters that count alike."""
    rng = np.random.default_rng(0)
    mean = np.concatenate([[5, 0] + 0.1 * rng.normal(size=(3, 2)), [0, 5] + 0.1 * rng.normal(size=(2, 2))])
    std = 1 + 0.01 * rng.random((5, 2))
    clusters = last_partition(torch.tensor(np.concatenate([mean, std], axis=1)))
    assert clusters == [[0, 1, 2], [3, 4]]
    square = mean**2 + std**2 - EPSILON
    middle = (mean[:3].mean(0) + mean[3:].mean(0)) / 2
    power = (square[:3].mean(0) + square[3:].mean(0)) / 2
    found = common_style(Style(torch.tensor(mean), torch.tensor(std)))
    np.testing.assert_allclose(found.numpy(), [middle, np.sqrt(power - middle**2 + EPSILON)], rtol=1e-5)


def test_the_common_style_is_the_median_over_clusters() -> None:
    looks = np.array([[[9.0, 0], [1, 1]], [[9.2, 0], [1, 1]], [[0, 9.0], [2, 1]], [[0, 9.4], [2, 1]]])
    found = between(torch.tensor(looks)).numpy()
    middles = np.stack([looks[:2].mean(0), looks[2:].mean(0)])
    np.testing.assert_allclose(found, middles.min(0))  # of two, torch's median is the smaller
    method, server = FISC(), Server({})
    assert method.brief(server, {}, ["a"]) == {}
    told = {name: {"style": torch.tensor(look)} for name, look in zip("abcd", looks, strict=True)}
    np.testing.assert_allclose(method.brief(server, told, ["a"])["a"]["style"].numpy(), found)


def test_finchs_last_partition_goes_on_until_one_would_be_left() -> None:
    angles = np.deg2rad([0, 1, 10, 11, 80, 81, 90, 91])  # four pairs, which are two pairs of pairs
    rows = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert last_partition(rows) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_negatives_are_of_other_classes() -> None:
    labels = torch.tensor([0, 0, 1, 2])
    rows, other = negatives(labels, torch.Generator().manual_seed(0))
    assert rows.tolist() == [0, 1, 2, 3] and bool((labels[rows] != labels[other]).all())
    assert len(negatives(torch.zeros(3, dtype=torch.int64), torch.Generator())[0]) == 0


def test_loss_by_hand() -> None:
    """With no blend a copy is its image."""
    method, images = FISC(blend=0.0, triplet=0.6, margin=0.4, small=0.1), batch()
    style = torch.rand(2, 8, generator=torch.Generator().manual_seed(2))
    work = make_work(method, brief={"style": style})
    work.net.eval()
    state = work.rng.get_state()
    rows, other = (found.numpy() for found in negatives(images.y, work.rng))
    work.rng.set_state(state)
    with torch.no_grad():
        f, logits = work.net.features(images.x).numpy(), work.net(images.x).numpy()
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    apart = np.linalg.norm(unit[rows] - unit[other] + 1e-7, axis=1)
    triplet = np.maximum(0, np.sqrt(f.shape[1]) * 1e-7 - apart + 0.4).mean()
    risk = -np.log(softmax(logits)[np.arange(8), images.y.numpy()]).mean()
    expected = risk + 0.6 * triplet + 0.1 * 2 * (f**2).mean()
    assert work.method.loss(work, images).item() == pytest.approx(expected, rel=1e-3)
    work.brief = {}
    assert work.method.loss(work, images).item() == pytest.approx(risk, rel=1e-4)


def test_copies_take_the_style_by_the_blend() -> None:
    method, images = FISC(blend=1.0), batch()
    style = torch.rand(2, 8, generator=torch.Generator().manual_seed(2)) + 0.1
    work = make_work(method, brief={"style": style})
    net = work.net.eval()
    with torch.no_grad():
        maps = net.run_stage(0, images.x)
        mean, std = maps.mean((2, 3)), (maps.var((2, 3), correction=0) + EPSILON).sqrt()
        moved = (maps - mean[:, :, None, None]) / std[:, :, None, None] * style[1][:, None, None] + style[0][
            :, None, None
        ]
        for stage in range(1, net.stages):
            moved = net.run_stage(stage, moved)
        torch.testing.assert_close(method.copies(work, images.x, maps), net.pool(moved), rtol=1e-3, atol=1e-4)
    with pytest.raises(UserError, match="two files"):
        FISC(encoder="a.safetensors").build(net)
