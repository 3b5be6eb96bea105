from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import make_work
from unseen.core.errors import UserError
from unseen.core.types import Reply, Server
from unseen.method import check_plan, compose
from unseen.methods.copa import COPA
from unseen.methods.fednova import FedNova
from unseen.methods.fedprox import FedProx
from unseen.methods.ga import GA, adjusted
from unseen.methods.silobn import SiloBN


def test_adjustment_by_hand() -> None:
    weights, gaps = np.array([0.5, 0.3, 0.2]), np.array([0.04, -0.08, 0.01])
    moved = np.clip(weights + 0.2 / 3 * gaps / np.abs(gaps).max(), 0, 1)
    expected = moved / moved.sum()
    got = adjusted(dict(zip("abc", weights, strict=True)), dict(zip("abc", gaps, strict=True)), 0.2)
    np.testing.assert_allclose([got[c] for c in "abc"], expected, rtol=1e-12)


def test_weights_are_clipped_at_zero_and_without_gaps_nothing_moves() -> None:
    got = adjusted({"a": 0.01, "b": 0.99}, {"a": -1.0, "b": 0.5}, 0.2)
    assert got == {"a": 0.0, "b": 1.0}
    assert adjusted({"a": 0.4, "b": 0.6}, {}, 0.2) == {"a": 0.4, "b": 0.6}
    assert adjusted({"a": 0.4, "b": 0.6}, {"a": 0.0, "b": 0.0}, 0.2) == {"a": 0.4, "b": 0.6}


def reply(client: str, round: int, local: float, received: float | None, name: str) -> Reply:
    metrics = {f"local.{name}": local} | ({} if received is None else {f"received.{name}": received})
    return Reply(client, "train", round, 10, metrics=metrics)


@pytest.mark.parametrize(("metric", "name", "sign"), [("acc", "accuracy", -1), ("loss", "loss", 1)])
def test_three_rounds_by_hand(metric: str, name: str, sign: int) -> None:
    method, server = GA(metric=metric), Server({}, rounds=10)  # type: ignore[arg-type]
    method.brief(server, {}, ["a", "b"])

    def weigh(*replies: Reply) -> list[float]:
        for each in replies:
            method.hear(server, each)
        return [method.weigh(server, each) for each in replies]

    assert weigh(reply("a", 1, 0.8, None, name), reply("b", 1, 0.6, None, name)) == [0.5, 0.5]
    server.round = 1
    method.brief(server, {}, ["a", "b"])  # nothing has been measured after an aggregation yet
    second = [reply("a", 2, 0.9, 0.7, name), reply("b", 2, 0.9, 0.65, name)]
    assert weigh(*second) == [0.5, 0.5]
    server.round = 2
    method.brief(server, {}, ["a", "b"])
    gaps = sign * (np.array([0.7, 0.65]) - np.array([0.8, 0.6]))  # after - before, of round 1
    moved = 0.5 + 0.2 * (1 - 0 / 10) / 2 * gaps / np.abs(gaps).max()
    weights = weigh(*(reply(c, 3, 0.9, 0.9, name) for c in "ab"))
    np.testing.assert_allclose(weights, moved / moved.sum(), rtol=1e-12)


def test_the_step_shrinks_and_a_client_that_paused_has_no_gap() -> None:
    method, server = GA(metric="loss"), Server({}, rounds=10)
    method.brief(server, {}, ["a", "b"])
    method.hear(server, reply("a", 6, 1.0, None, "loss"))
    method.hear(server, reply("b", 5, 1.0, None, "loss"))
    method.hear(server, reply("a", 7, 1.0, 2.0, "loss"))
    method.hear(server, reply("b", 7, 1.0, 9.0, "loss"))  # its own model is of round 5, the aggregated one of 6
    method.brief(server, {}, ["a", "b"])
    moved = np.array([0.5 + 0.2 * (1 - 5 / 10) / 2, 0.5])
    weights = [float(server.memory[f"weight/{c}"]) for c in "ab"]
    np.testing.assert_allclose(weights, moved / moved.sum(), rtol=1e-12)
    assert not [key for key in server.memory if key.startswith("gap/")]


def test_a_new_client_gets_the_mean_weight() -> None:
    method, server = GA(), Server({}, rounds=10)
    method.brief(server, {}, ["a", "b"])
    server.memory["weight/a"], server.memory["weight/b"] = torch.tensor(0.75), torch.tensor(0.25)
    method.brief(server, {}, ["c", "b"])
    assert [float(server.memory[f"weight/{c}"]) for c in "abc"] == pytest.approx([0.5, 1 / 6, 1 / 3])


def test_through_the_real_loop(tmp_path: Path) -> None:
    fed = federation("silobn+ga", tmp_path, rounds=3, local_steps=1)
    fed.run()
    weights = [float(value) for key, value in fed.server.memory.items() if key.startswith("ga/weight/")]
    gaps = [key for key in fed.server.memory if key.startswith("ga/gap/")]
    assert len(weights) == 3 and sum(weights) == pytest.approx(1.0)
    assert len(gaps) == 3  # of round 2, for the round that would come next


def test_composes_with_parts_that_own_other_verbs_of_the_server() -> None:
    for other in (SiloBN(), FedNova(), COPA()):
        assert compose(other, GA())


def test_without_validation_of_the_aggregated_model_it_says_so() -> None:
    with pytest.raises(UserError, match="server-selection"):
        check_plan(compose(FedProx(), GA()), make_work(GA(), server_selection="last").plan)
    check_plan(FedProx(), make_work(GA(), server_selection="last").plan)
