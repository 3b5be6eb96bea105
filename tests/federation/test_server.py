"""The round loop: sampling, folded evaluation, refusals, what an order carries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from tests.tiny_work import PLAN
from unseen.core.errors import UserError
from unseen.core.types import Order, Reply, Server, Share
from unseen.federation.audit import AuditLog, read_chain, summary
from unseen.federation.checks import faults
from unseen.federation.ledger import Ledger
from unseen.federation.server import evaluate, federate, sample
from unseen.method import Method

STATE = {"w": torch.tensor([0.0, 0.0]), "n": torch.tensor(0)}
SHARE = Share(frozenset(STATE), frozenset({"w", "n"}))


@dataclass
class Scripted:
    """An engine whose clients answer by a function of their name and order."""

    names: Sequence[str]
    answer: Callable[[str, Order], Reply | None]
    orders: list[dict[str, Order]] = field(default_factory=list)

    def clients(self) -> Sequence[str]:
        return self.names

    def ask(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        self.orders.append(dict(orders))
        for client, order in orders.items():
            reply = self.answer(client, order)
            if reply is not None:
                yield reply


def trained(client: str, order: Order, value: float = 1.0, examples: int = 1, **changes: object) -> Reply:
    metrics = {"loss": value}
    if order.evaluate or order.kind == "evaluate":
        metrics |= {"received.accuracy": 0.5, "received.loss": 1.0, "received.examples": 4.0}
    state = {"w": torch.full((2,), value), "n": torch.tensor(7)} if order.kind == "train" else {}
    return replace(Reply(client, order.kind, order.round, examples, state=state, metrics=metrics), **changes)


def test_weighted_mean_by_hand() -> None:
    # (1 * 1 + 3 * 5) / 4 = 4; the integer entry is not averaged
    values = {"a": (1.0, 1), "b": (5.0, 3)}
    engine = Scripted("ab", lambda c, o: trained(c, o, *values[c]))
    server = Server(dict(STATE))
    (played,) = federate(Method(), SHARE, replace(PLAN, rounds=1), engine, server, Ledger())
    assert server.state["w"].tolist() == [4.0, 4.0]
    assert server.state["n"].item() == 7
    assert server.state["n"].dtype == torch.int64
    assert played.loss == 3.0


def test_a_round_is_evaluated_by_the_next_rounds_message() -> None:
    engine = Scripted("ab", trained)
    server = Server(dict(STATE))
    rounds = list(federate(Method(), SHARE, replace(PLAN, rounds=3), engine, server, Ledger()))
    assert len(engine.orders) == 3  # one exchange per round
    assert rounds[0].evaluation is None
    assert [r.evaluation.round for r in rounds[1:] if r.evaluation] == [1, 2]
    assert rounds[1].before["w"].tolist() == [1.0, 1.0]
    last = evaluate(engine, server.state, server.round, Ledger())
    assert (last.round, last.accuracy(), last.clients["a"].examples) == (3, 0.5, 4)


def test_unsampled_clients_only_evaluate() -> None:
    engine = Scripted("abcd", trained)
    plan = replace(PLAN, rounds=2, participation=2)
    rounds = list(federate(Method(), SHARE, plan, engine, Server(dict(STATE)), Ledger()))
    first, second = engine.orders
    assert len(first) == 2
    assert list(second) == list("abcd")
    assert sorted(order.kind for order in second.values()) == ["evaluate", "evaluate", "train", "train"]
    assert len(rounds[1].metrics) == 2
    assert rounds[1].evaluation is not None and len(rounds[1].evaluation.clients) == 4


def test_orders_carry_what_a_client_loads() -> None:
    share = Share(frozenset({"w", "n"}), frozenset({"w"}))
    engine = Scripted("ab", trained)
    plan = replace(PLAN, rounds=2, server_selection="last")
    list(federate(Method(), share, plan, engine, Server(dict(STATE)), Ledger()))
    assert set(engine.orders[0]["a"].state) == {"w", "n"}  # new: everything
    assert set(engine.orders[1]["a"].state) == {"w"}  # met: what it does not keep as its own


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"w": torch.tensor([float("nan"), 0.0]), "n": torch.tensor(1)}, '"w" holds NaN or infinity'),
        ({"w": torch.tensor([float("inf"), 0.0]), "n": torch.tensor(1)}, '"w" holds NaN or infinity'),
        ({"w": torch.zeros(1), "n": torch.tensor(1)}, '"w" has shape (1,), not (2,)'),
        ({"w": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(1)}, "torch.float64, not torch.float32"),
        ({"w": torch.zeros(2)}, 'the tensor "n" is missing'),
        ({"w": torch.zeros(2), "n": torch.tensor(1), "x": torch.zeros(1)}, 'the tensor "x" is unknown'),
    ],
)
def test_bad_updates_are_refused_and_the_round_goes_on(bad: dict[str, torch.Tensor], words: str) -> None:
    engine = Scripted("ab", lambda c, o: trained(c, o, 5.0, state=bad) if c == "a" else trained(c, o, 2.0))
    server = Server(dict(STATE))
    (played,) = federate(Method(), SHARE, replace(PLAN, rounds=1), engine, server, Ledger())
    assert server.state["w"].tolist() == [2.0, 2.0]
    assert len(played.refused) == 1
    assert 'client "a"' in played.refused[0] and words in played.refused[0]


def test_a_missing_client_is_named() -> None:
    engine = Scripted("ab", lambda c, o: None if c == "a" else trained(c, o, 2.0))
    (played,) = federate(Method(), SHARE, replace(PLAN, rounds=1), engine, Server(dict(STATE)), Ledger())
    assert played.missing == ["a"]


def test_no_good_update_is_an_error_and_loses_nothing() -> None:
    bad = {"w": torch.full((2,), float("nan")), "n": torch.tensor(1)}
    engine = Scripted("ab", lambda c, o: trained(c, o, state=bad))
    server = Server(dict(STATE))
    with pytest.raises(UserError, match=r'0 good updates .*"a".*NaN'):
        list(federate(Method(), SHARE, replace(PLAN, rounds=1), engine, server, Ledger()))
    assert server.round == 0 and server.state["w"].tolist() == [0.0, 0.0]


def test_an_answer_to_another_order_is_refused() -> None:
    order = Order("train", 2, {})
    assert "round 1" in faults(Reply("a", "train", 1, 1), order, {})


def test_sampling() -> None:
    clients = [f"c{i:02d}" for i in range(30)]
    ten = replace(PLAN, participation=10)
    assert sample(clients, ten, 1) == sample(clients, ten, 1) != sample(clients, ten, 2)
    assert len(sample(clients, ten, 1)) == 10 and sample(clients, ten, 1) == sorted(sample(clients, ten, 1))
    assert len(sample(clients, replace(PLAN, participation=0.5), 1)) == 15
    assert sample(clients, replace(PLAN, participation=1.0), 1) == clients
    assert set().union(*(sample(clients, ten, r) for r in range(30))) == set(clients)


def test_survey_and_brief() -> None:
    class Telling(Method):
        def surveys(self, round: int) -> bool:
            return round == 1

        def brief(self, server, surveys, chosen):  # type: ignore[no-untyped-def]
            total = sum((statistics["s"] for statistics in surveys.values()), torch.zeros(1))
            return {client: {"total": total} for client in chosen}

    def answer(client: str, order: Order) -> Reply:
        if order.kind == "survey":
            return Reply(client, "survey", order.round, 1, report={"s": torch.ones(1)})
        return trained(client, order)

    engine = Scripted("ab", answer)
    ledger = Ledger()
    list(federate(Telling(), SHARE, replace(PLAN, rounds=2), engine, Server(dict(STATE)), ledger))
    assert [next(iter(o.values())).kind for o in engine.orders] == ["survey", "train", "train"]
    assert engine.orders[1]["a"].brief["total"].item() == 2.0
    # the model travels once a round: with the survey, where there is one
    assert [set(o["a"].state) for o in engine.orders] == [set(STATE), set(), set(STATE)]
    assert ledger.entries["down/model/w"].crossings == 4
    assert ledger.entries["up/statistics/s"].crossings == 2


def test_who_did_not_answer_the_survey_gets_the_model_with_the_train_order() -> None:
    class Telling(Method):
        def surveys(self, round: int) -> bool:
            return True

    def answer(client: str, order: Order) -> Reply:
        if order.kind == "survey":
            told = torch.tensor([float("nan") if client == "b" else 1.0])
            return Reply(client, "survey", order.round, 1, report={"s": told})
        return trained(client, order)

    engine = Scripted("ab", answer)
    list(federate(Telling(), SHARE, replace(PLAN, rounds=1), engine, Server(dict(STATE)), Ledger()))
    assert engine.orders[1]["a"].state == {} and set(engine.orders[1]["b"].state) == set(STATE)


class Hearing(Method):
    """Notes each client's number in its own memory, and puts the last one into the state, where no client sends it."""

    def hear(self, server: Server, reply: Reply) -> None:
        server.memory[reply.client] = reply.report["s"]
        server.state["last"] = reply.report["s"]


HEARD = {**STATE, "last": torch.zeros(1)}


def telling(bad: str = "", seen: list[float] | None = None) -> Callable[[str, Order], Reply]:
    """Clients tell 1, 2, ...; `seen` gets what each order carries at the moment in which its client answers."""

    def answer(client: str, order: Order) -> Reply:
        if seen is not None:
            seen.append(order.state["last"].item())
        state = (
            {"w": torch.full((2,), float("nan")), "n": torch.tensor(7)}
            if client == bad
            else trained(client, order).state
        )
        return trained(client, order, state=state, report={"s": torch.tensor([float(ord(client) - 96)])})

    return answer


def test_a_good_reply_is_heard_and_a_refused_one_is_not() -> None:
    server = Server(dict(HEARD))
    (played,) = federate(Hearing(), SHARE, replace(PLAN, rounds=1), Scripted("abc", telling(bad="c")), server, Ledger())
    assert {client: value.item() for client, value in server.memory.items()} == {"a": 1.0, "b": 2.0}
    assert server.state["last"].item() == 2.0 and server.state["w"].tolist() == [1.0, 1.0]
    assert len(played.refused) == 1
    assert played.before["last"].item() == 0.0  # the state before the round is still that


def test_what_is_heard_of_one_client_does_not_reach_the_next_in_the_same_round() -> None:
    seen: list[float] = []
    server = Server(dict(HEARD))
    list(federate(Hearing(), SHARE, replace(PLAN, rounds=2), Scripted("ab", telling(seen=seen)), server, Ledger()))
    assert seen == [0.0, 0.0, 2.0, 2.0]


def test_a_round_that_fails_leaves_no_trace() -> None:
    server = Server(dict(HEARD))
    plan = replace(PLAN, rounds=1, minimum_clients=2)
    with pytest.raises(UserError, match="Round 1 has 1 good updates and needs 2"):
        list(federate(Hearing(), SHARE, plan, Scripted("ab", telling(bad="b")), server, Ledger()))
    assert not server.memory and server.state["last"].item() == 0.0 and server.round == 0


def test_replies_are_heard_before_they_are_merged() -> None:
    class Watching(Hearing):
        def merge(self, server, replies, weigh):  # type: ignore[no-untyped-def]
            for reply in replies:
                assert torch.equal(server.memory[reply.client], reply.report["s"])
            return server.state

    list(federate(Watching(), SHARE, replace(PLAN, rounds=1), Scripted("ab", telling()), Server(dict(HEARD)), Ledger()))


def test_a_model_that_goes_to_many_is_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100,000 clients, what is noted of each message must not cost more than the message."""
    described: list[Mapping[str, torch.Tensor]] = []

    def counted(tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
        described.append(tensors)
        return summary(tensors)

    monkeypatch.setattr("unseen.federation.server.summary", counted)
    log = AuditLog.at(tmp_path / "audit.jsonl")
    engine, clients = Scripted([f"c{n}" for n in range(30)], trained), 30
    plan = replace(PLAN, rounds=2, participation=2)
    list(federate(Method(), SHARE, plan, engine, Server(dict(STATE)), Ledger(), audit=log))
    models = [tensors for tensors in described if any(name.startswith("state/") for name in tensors)]
    assert len(models) == 2 + 4  # each round's, and the four that came back
    log.write()
    chain = read_chain(tmp_path / "audit.jsonl")
    assert (chain.fault, chain.entries) == ("", 2 + clients + 2)  # a line per reply and one per round
    sent = [json.loads(line)["entry"].get("sent") for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert all(one == summary({f"state/{key}": value for key, value in STATE.items()}) for one in sent if one)
