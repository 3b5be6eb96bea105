from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Reply, Server
from unseen.method import compose
from unseen.methods.afl import AFL
from unseen.methods.fedopt import FedAvgM


def reply(client: str, loss: float) -> Reply:
    return Reply(client, "train", 1, 999, report={"loss": torch.tensor(loss)})


def test_two_rounds_by_hand() -> None:
    method, server = AFL(rate=0.1), Server({})
    method.brief(server, {}, ["a", "b"])
    replies = [reply("a", 3.0), reply("b", 1.0)]
    for each in replies:
        method.hear(server, each)
    assert [method.weigh(server, each) for each in replies] == [0.5, 0.5]  # the losses are for the next round
    method.brief(server, {}, ["a", "b"])
    # 0.5 + 0.3 and 0.5 + 0.1 sum to 1.4: both are lowered by 0.2.
    assert [method.weigh(server, each) for each in replies] == pytest.approx([0.6, 0.4])
    method.hear(server, reply("a", 9.0))
    method.brief(server, {}, ["a", "b"])  # b was not asked: 0.6 + 0.9 and 0.4
    assert [method.weigh(server, each) for each in replies] == pytest.approx([1.0, 1e-6])


def test_through_the_real_loop_the_weights_are_a_mixture(tmp_path: Path) -> None:
    fed = federation(compose(FedAvgM(), AFL()), tmp_path, rounds=3, local_steps=2)
    fed.run()
    weights = [float(value) for key, value in fed.server.memory.items() if key.startswith("afl/weight/")]
    assert len(weights) == 3 and sum(weights) == pytest.approx(1.0)
    assert len(set(weights)) == 3
