from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work
from unseen.core.types import Reply, Server
from unseen.methods.fishr import Fishr, gradient_variances


def by_hand(rows: np.ndarray, labels: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """One gradient per image, then their variance: what the formula avoids."""
    logits = rows @ weight.T + bias
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    errors = chances - np.eye(len(bias))[labels]
    single = errors[:, :, None] * np.concatenate([rows, np.ones((len(rows), 1))], axis=1)[:, None, :]
    variances: np.ndarray = single.var(axis=0)
    return variances


def test_variances_by_hand() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(9, 4)), rng.integers(0, 3, 9)
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    logits = torch.tensor(rows @ weight.T + bias)
    found = gradient_variances(logits, torch.tensor(labels), torch.tensor(rows))
    np.testing.assert_allclose(found.numpy(), by_hand(rows, labels, weight, bias), rtol=1e-4, atol=1e-6)


def test_two_steps_by_hand_and_what_the_client_tells() -> None:
    mean = torch.rand(3, 257, generator=torch.Generator().manual_seed(1))
    work = make_work(Fishr(weight=2.0, ema=0.9, warmup=0.0), brief={"mean": mean})
    work.method.prepare(work)
    rng, images = np.random.default_rng(1), batch()
    smooth = np.zeros((3, 257))
    head = [p.detach().numpy() for p in work.net.head.parameters()]
    for _ in range(2):
        rows = rng.normal(size=(8, 256)).astype("f")
        smooth = 0.9 * smooth + 0.1 * by_hand(rows, images.y.numpy(), *head)
        term = work.method.penalty(work, images, torch.tensor(rows))
        assert term.item() == pytest.approx(2.0 * (((smooth - mean.numpy()) / 0.1) ** 2).mean(), rel=1e-4)
    told = work.method.report(work)["smooth"]
    np.testing.assert_allclose(told.numpy(), smooth, rtol=1e-3, atol=1e-6)
    assert torch.equal(work.memory["smooth"], told)  # the next round goes on from there


def test_the_mean_over_clients_and_the_first_rounds() -> None:
    method, server = Fishr(warmup=0.5), Server({})
    assert method.brief(server, {}, ["a"]) == {}
    for client, value in (("a", 1.0), ("b", 4.0)):
        method.hear(server, Reply(client, "train", 1, 9, report={"smooth": torch.full((3, 257), value)}))
    note = method.brief(server, {}, ["a"])["a"]
    assert note["mean"].unique().tolist() == [2.5]
    work = make_work(method, brief=note, rounds=4)
    work.method.prepare(work)
    rows, found = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)), []
    for round in (1, 2, 3):
        work.round = round
        found.append(work.method.penalty(work, batch(), rows).item() > 0)
    assert found == [False, False, True]
