"""The content of a reply: counts, variances, metrics, sizes; and the merged model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.attempts import attempt
from tests.federation.test_server import SHARE, STATE, Hearing, Scripted, telling, trained
from tests.tiny_federation import federation
from tests.tiny_work import PLAN
from unseen.core.errors import UserError
from unseen.core.forms import Forms
from unseen.core.types import Order, Reply, Server
from unseen.federation.checks import Checks, faults, update_norm
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.method import Method

TRAIN = Order("train", 1, {})
ONE = replace(PLAN, rounds=1)


def fault(checks: Checks | None = None, enrolled: int | None = None, **changes: object) -> str:
    return faults(trained("a", TRAIN, **changes), TRAIN, STATE, checks, enrolled)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"loss": float("nan")}, '"loss" is not a finite number'),
        ({"loss": float("inf")}, '"loss" is not a finite number'),
        ({"received.examples": 4.0}, "score is not one"),
        ({"received.examples": 4.0, "received.accuracy": 1.1, "received.loss": 1.0}, "score is not one"),
        ({"received.examples": 4.5, "received.accuracy": 0.5, "received.loss": 1.0}, "score is not one"),
        ({"received.examples": 1e30, "received.accuracy": 0.5, "received.loss": 1.0}, "score is not one"),
        ({"local.examples": 4.0, "local.accuracy": -0.5, "local.loss": 1.0}, "score is not one"),
        ({"local.examples": 4.0, "local.accuracy": 0.5, "local.loss": -1.0}, "score is not one"),
        ({str(number): 0.0 for number in range(300)}, "too many metrics"),
        ({"m" * 300: 0.0}, "too long names"),
        ({"received.examples": 4.0, "received.accuracy": 1.0, "received.loss": 0.0, "loss": -3.0}, ""),
    ],
)
def test_metrics_are_finite_and_in_range(metrics: dict[str, float], words: str) -> None:
    with attempt("content", bool(words)):
        found = fault(metrics=metrics)
        assert words in found and bool(words) == bool(found)


def test_a_client_never_counts_more_images_than_it_began_with() -> None:
    assert fault(num_examples=12, enrolled=12) == "" and fault(num_examples=5, enrolled=12) == ""
    with attempt("content", 3):
        assert fault(num_examples=13, enrolled=12) == "it counts 13 training images and began with 12"
        assert "--most-images is 100000000" in fault(num_examples=2**62)  # of a client that nobody knows yet
        assert "--most-images is 50" in fault(Checks(most_images=50), num_examples=51)


def test_2_to_the_62_images_do_not_make_the_servers_state_the_liars() -> None:
    counts = {"a": [3, 3], "b": [1, 2**62]}
    engine = Scripted("ab", lambda c, o: trained(c, o, 1.0 if c == "a" else 5.0, counts[c][o.round - 1]))
    server = Server(dict(STATE))
    with attempt("content"):
        rounds = list(federate(Method(), SHARE, replace(PLAN, rounds=2), engine, server, Ledger()))
        assert [len(played.refused) for played in rounds] == [0, 1]
        assert "it counts 4611686018427387904 training images and began with 1" in rounds[1].refused[0]
        assert rounds[1].before["w"].tolist() == [2.0, 2.0]  # (3 * 1 + 1 * 5) / 4
        assert server.state["w"].tolist() == [1.0, 1.0]  # the honest one alone
    assert server.enrolled == {"a": 3, "b": 1}


def test_the_enrolment_outlives_the_process(tmp_path: Path) -> None:
    from tests.runs.test_durability import tiny
    from unseen.runs.directory import RunDirectory
    from unseen.runs.selection import Selection

    directory = RunDirectory.of(tiny(), tmp_path).begin(tiny())
    server = Server(dict(STATE), round=1, enrolled={"a": 3})
    directory.save(server, Selection("last"), Ledger(), 0.0)
    restored = directory.restore()
    assert restored is not None and restored[0].enrolled == {"a": 3}


def test_a_running_variance_is_never_negative_whatever_its_norm(tmp_path: Path) -> None:
    for method in ("fedavg", "bin", "gperxan", "fedfd-a"):
        fed = federation(method, tmp_path / method, rounds=1, local_steps=1)
        variances = fed.net.running_variances()
        assert variances and all(name.endswith("running_var") for name in variances)  # in this net, that is their name
        reply = fed.runner.reply("a", Order("train", 1, fed.server.state, dict(fed.method.brief(fed.server, {}, "a"))))
        expected = {name: fed.server.state[name] for name in fed.share.up}
        assert faults(reply, TRAIN, expected, fed.checks(fed.plan)) == ""
        name = sorted(variances & fed.share.up)[0]
        lie = replace(reply, state={**reply.state, name: reply.state[name] - 10})
        with attempt("content"):
            assert faults(lie, TRAIN, expected, fed.checks(fed.plan)) == (
                f'"{name}" is a variance and holds a negative number'
            )


def test_numbers_beyond_any_weight_cost_the_liar_its_reply() -> None:
    state = {"w": torch.tensor([1e30, 0.0]), "n": torch.tensor(7)}
    with attempt("content", 2):
        assert fault(state=state) == '"w" holds a number larger than 1e+12'
        assert fault(state={"w": torch.zeros(2), "n": torch.tensor(2**62)}) == '"n" holds a number larger than 1e+12'


def test_only_what_was_asked_for_is_taken() -> None:
    survey, score = Order("survey", 1, {}), Order("evaluate", 1, {})
    with attempt("form", 3):
        assert "brings a model" in faults(Reply("a", "survey", 1, 3, state=dict(STATE)), survey, {})
        assert "brings a model" in faults(Reply("a", "evaluate", 1, 3, state=dict(STATE)), score, {})
        assert "brings a report" in faults(Reply("a", "evaluate", 1, 3, report=dict(STATE)), score, {})


def test_a_reply_that_cannot_even_be_checked_is_refused_and_its_names_are_not_kept() -> None:
    many = {f"name {number}": torch.ones(2) for number in range(50)}
    odd: dict[str, dict[str, object]] = {"a": {"metrics": {"loss": 10**400}}, "b": {"report": many}, "c": {}}
    engine = Scripted("abc", lambda c, o: trained(c, o, **odd[c]))  # type: ignore[arg-type]
    ledger = Ledger()
    closed = Checks(lambda round, images: Forms())
    with attempt("form", 2):
        (played,) = federate(Method(), SHARE, ONE, engine, Server(dict(STATE)), ledger, closed)
        assert "OverflowError" in played.refused[0] and "not declared by the method" in played.refused[1]
        assert set(played.metrics) == {"c"} and not any("name 1" in key for key in ledger.entries)
    assert (
        ledger.entries["up/refused/refused replies"].total == 2 * 16 + 2 * 8 + 400
    )  # two models, two losses, the report


def test_a_spoilt_merge_becomes_no_round_and_names_the_largest_updates() -> None:
    class Overflowing(Method):
        def merge(self, server, replies, weigh):  # type: ignore[no-untyped-def]
            states = [reply.state for reply in replies]
            return {**states[1], "w": states[1]["w"] * 1e38}

    engine = Scripted("abcd", lambda c, o: trained(c, o, {"a": 1.0, "b": 900.0, "c": 20.0, "d": 3.0}[c]))
    server = Server(dict(STATE))
    with pytest.raises(
        UserError, match=r'"w" holds NaN.* from "b" \(norm 1.27e\+03\), "c" \(norm 28.3\), "d".*normbound'
    ):
        list(federate(Overflowing(), SHARE, ONE, engine, server, Ledger()))
    assert server.round == 0 and server.state["w"].tolist() == [0.0, 0.0] and not server.enrolled


def test_the_norm_of_an_update_by_hand() -> None:
    reply = trained("a", TRAIN, state={"w": torch.tensor([3.0, 4.0]), "n": torch.tensor(9)})
    assert update_norm(Server(dict(STATE)), reply) == 5.0
    assert update_norm(Server(dict(STATE), stepped=frozenset()), reply) == 0.0


def test_a_reply_that_cannot_be_heard_leaves_no_trace_and_the_round_goes_on() -> None:
    class Failing(Hearing):
        def hear(self, server: Server, reply: Reply) -> None:
            super().hear(server, reply)
            server.memory["extra"] = torch.ones(1)
            if reply.client == "b":
                raise KeyError("style")

    server = Server({**STATE, "last": torch.zeros(1)})
    (played,) = federate(Failing(), SHARE, ONE, Scripted("abc", telling()), server, Ledger())
    assert played.refused == [
        "The reply of client \"b\" in round 1 was not merged: hearing it failed with KeyError: 'style'."
    ]
    assert sorted(server.memory) == ["a", "c", "extra"] and server.state["last"].item() == 3.0
    assert set(played.metrics) == {"a", "c"}


def test_where_no_reply_can_be_heard_the_methods_own_error_is_the_cause() -> None:
    class Failing(Method):
        def hear(self, server: Server, reply: Reply) -> None:
            raise ZeroDivisionError("a bug")

    with pytest.raises(UserError, match="ZeroDivisionError: a bug") as caught:
        list(federate(Failing(), SHARE, ONE, Scripted("ab", trained), Server(dict(STATE)), Ledger()))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_admitted_replies_alone_are_heard_and_merged() -> None:
    class First(Hearing):
        def admit(self, server, replies):  # type: ignore[no-untyped-def]
            for number, reply in enumerate(replies):
                if number == 0:
                    yield replace(reply, state={**reply.state, "w": torch.full((2,), 8.0)})

    server = Server({**STATE, "last": torch.zeros(1)})
    (played,) = federate(First(), SHARE, ONE, Scripted("abc", telling()), server, Ledger())
    assert server.state["w"].tolist() == [8.0, 8.0] and set(server.memory) == {"a"}
    assert played.left_out == ["b", "c"] and not played.refused
