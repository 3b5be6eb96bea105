from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.tensors import load, snapshot
from unseen.core.types import Server
from unseen.methods.copa import COPA
from unseen.nets.norms import layers as norms
from unseen.nets.parts.branches import Branches

ROWS, TAKEN = "extras.heads.rows", "extras.heads.taken"


def numpy_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return float(-log_p[np.arange(len(labels)), labels].mean())


def with_heads(method: COPA, seed: int = 0) -> tuple[nn.Module, np.ndarray]:
    """A net with two heads of three seats, and those heads as rows (bias first: keys are sorted)."""
    net = tiny_net(method)
    room = net.extras["heads"]
    assert isinstance(room, Branches)
    rows = np.random.default_rng(seed).normal(size=(3, 3 + 3 * 256)).astype(np.float32)
    room.rows.copy_(torch.from_numpy(rows))
    room.taken.copy_(torch.tensor([1, 1, 0]))
    return net, rows


def numpy_logits(row: np.ndarray, features: np.ndarray) -> np.ndarray:
    return features @ row[3:].reshape(3, 256).T + row[:3]


def test_penalty_is_the_mean_cross_entropy_of_the_others_heads() -> None:
    method = COPA(collaboration=0.5)
    net, rows = with_heads(method)
    work = make_work(method, net=net, brief={"seat": torch.tensor(2)})
    method.prepare(work)
    images = batch()
    features = torch.randn(8, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()
    got = method.penalty(work, images, features)
    f, y = features.detach().numpy(), images.y.numpy()
    expected = 0.5 * np.mean([numpy_cross_entropy(numpy_logits(rows[j], f), y) for j in (0, 1)])
    np.testing.assert_allclose(got.item(), expected, rtol=1e-5)
    got.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None and bool(features.grad.abs().sum() > 0)


def test_its_own_head_of_the_last_round_is_not_one_of_the_others() -> None:
    method = COPA()
    net, rows = with_heads(method)
    work = make_work(method, net=net, brief={"seat": torch.tensor(0)})
    method.prepare(work)
    images, features = batch(), torch.ones(8, 256)
    expected = numpy_cross_entropy(numpy_logits(rows[1], features.numpy()), images.y.numpy())
    np.testing.assert_allclose(method.penalty(work, images, features).item(), expected, rtol=1e-5)
    net.eval()
    torch.testing.assert_close(method.predict(net, images.x), net(images.x), rtol=0, atol=0)  # with its own head


def test_prediction_is_the_mean_of_the_heads_probabilities() -> None:
    method = COPA()
    net, rows = with_heads(method)
    net.eval()
    x = batch().x
    with torch.no_grad():
        features = net.features(x).numpy()
        predicted = method.predict(net, x)
    votes = []
    for row in rows[:2]:
        e = np.exp(numpy_logits(row, features))
        votes.append(e / e.sum(1, keepdims=True))
    np.testing.assert_allclose(predicted.exp().numpy(), np.mean(votes, axis=0), rtol=1e-3, atol=1e-5)


def test_heads_are_private_and_their_room_only_comes_down() -> None:
    method = COPA()
    net = tiny_net(method)
    share = method.share(net)
    assert not {"head.weight", "head.bias"} & (share.up | share.down)
    assert share.down - share.up == {ROWS, TAKEN}


@pytest.mark.parametrize(("kind", "layer"), [("bin", norms.BIN), ("ibn", norms.IBN), ("bn", nn.BatchNorm2d)])
def test_normalisation(kind: str, layer: type[nn.Module]) -> None:
    net = tiny_net(COPA(normalisation=kind, stages=2))  # type: ignore[arg-type]
    assert len(net.norms(layer)) == (4 if kind == "bn" else 2)


def test_through_the_real_loop_the_server_stacks_heads(tmp_path: Path) -> None:
    fed = federation("copa", tmp_path, rounds=2, local_steps=1, participation=2)
    fed.run()
    seats = {client: int(seat) for client, seat in fed.server.memory.items()}
    assert sorted(seats.values()) == list(range(len(seats)))
    assert fed.server.state[TAKEN].tolist() == [1 if seat in seats.values() else 0 for seat in range(3)]
    heads = fed.server.state[ROWS][: len(seats)]
    assert not torch.equal(heads[0], heads[1])
    load(fed.net, {**fed.runner.initial, **fed.server.state})
    assert set(snapshot(fed.net)) == set(fed.server.state) | {"head.weight", "head.bias"}


def test_more_clients_than_room_is_an_error_before_training() -> None:
    with pytest.raises(UserError, match="--set heads"):
        COPA(heads=2).brief(Server({}), {}, ["a", "b", "c"])
