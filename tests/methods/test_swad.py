from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_federation import federation, same
from unseen.core.types import Server
from unseen.method import compose
from unseen.methods.fedopt import FedAvgM
from unseen.methods.swad import SWAD


def test_the_mean_of_the_late_rounds() -> None:
    method, server = SWAD(start=0.5), Server({"w": torch.zeros(2), "count": torch.tensor(0)}, rounds=6)
    kept = []
    for round in range(1, 7):
        server.state = {"w": torch.tensor([float(round), round**2]), "count": torch.tensor(round)}
        server.round = round
        kept.append(method.evaluated(server)["w"].tolist())
        assert method.evaluated(server)["count"].item() == round  # counters are not averaged
        method.brief(server, {}, [])
    assert kept[:3] == [[1, 1], [2, 4], [3, 9]]
    assert kept[3] == [4, 16]
    assert kept[4] == pytest.approx([4.5, (16 + 25) / 2])
    assert kept[5] == pytest.approx([5, (16 + 25 + 36) / 3])


def test_training_is_that_without_it_and_what_is_validated_is_the_mean(tmp_path: Path) -> None:
    swad = federation(compose(FedAvgM(), SWAD(start=0.4)), tmp_path / "1", rounds=4, local_steps=2)
    plain = federation(FedAvgM(), tmp_path / "2", rounds=4, local_steps=2)
    rounds, others = swad.run(), plain.run()
    assert same(swad.server.state, plain.server.state)
    assert same(rounds[2].before, others[2].before)  # of round 2: the first late one, alone in its mean
    states = [others[2].before, others[3].before]
    mean = {key: (states[0][key].double() + states[1][key].double()) / 2 for key in states[0]}
    for key, value in rounds[3].before.items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), mean[key], rtol=1e-6, atol=1e-7)
    scores, plain_scores = rounds[3].evaluation, others[3].evaluation
    assert scores is not None and plain_scores is not None
    assert set(scores.clients) == {"a", "b", "c"}
    assert scores.clients["a"].total_loss != plain_scores.clients["a"].total_loss
    assert "received.accuracy" in rounds[3].metrics["a"]  # what GA reads is still of the model that was received
