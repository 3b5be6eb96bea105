"""Orders and replies as Flower's records: exact, and nothing the sender claims is believed."""

from __future__ import annotations

import json
import math

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from tests.attempts import attempt
from unseen.core.types import Order, Reply, Tensors
from unseen.engines.flower import packing
from unseen.engines.flower.packing import Packer, Unreadable
from unseen.engines.flower.records import (
    Hello,
    order_content,
    read_hello,
    read_order,
    read_reply,
    reply_content,
    same,
)

ODD: Tensors = {
    "weight": torch.tensor([[1.0, -0.0], [1e-45, 3.0]]).t(),  # not contiguous, signed zero, denormal
    "count": torch.tensor(7),
    "half": torch.tensor([1.5], dtype=torch.float16),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "mask": torch.tensor([True, False]),
    "brain": torch.tensor([0.1, -3.0], dtype=torch.bfloat16),
    "wave": torch.tensor([1 - 2j]),
    "byte": torch.tensor([-3], dtype=torch.int8),
    "later": torch.tensor([4.0, 5.0]),
}


def assert_equal(a: Tensors, b: Tensors) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        assert b[name].dtype == value.dtype and b[name].shape == value.shape, name
        assert raw(b[name]) == raw(value), name


def raw(value: torch.Tensor) -> bytes:
    return value.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_an_order_arrives_bit_by_bit() -> None:
    order = Order("train", 3, ODD, {"note": torch.arange(4)}, evaluate=True, images="test", calibrate=True)
    content = order_content(order, {"settings": "{}"}, Packer())
    read = read_order(content, "train")
    assert (read.kind, read.round, read.evaluate, read.images, read.calibrate) == ("train", 3, True, "test", True)
    assert_equal(ODD, read.state)
    assert_equal(order.brief, read.brief)
    assert content["order"]["settings"] == "{}"


def test_a_message_is_few_objects_whatever_the_number_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is a request on each of four ways: the message, its record dict, and the record with all bytes."""
    many = {f"layer{i}": torch.full((200,), float(i)) for i in range(300)} | {"n": torch.tensor(3)}
    order = order_content(Order("train", 1, many, {"note": torch.ones(2)}), {}, Packer())
    reply = reply_content(Reply("east", "train", 1, 30, many, {"style": torch.ones(2)}, {"loss": 1.0}))
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    for content in (order, reply):
        assert len(get_all_nested_objects(Message(content, 1, "train"))) == 3
    monkeypatch.setattr(packing, "PIECE", 100_000)  # of 240008 bytes
    pieces = order_content(Order("train", 1, many), {}, Packer())
    assert len(get_all_nested_objects(Message(pieces, 1, "train"))) == 6
    assert_equal(many, read_order(pieces, "train").state)


def test_a_state_for_all_clients_is_written_once() -> None:
    packer = Packer()
    state = {"w": torch.zeros(10)}
    one, two = (order_content(Order("train", 1, state), {"client": c}, packer)["order"] for c in ("east", "west"))
    assert one["state.data"] is two["state.data"]
    assert one is not two


def test_what_does_not_fit_beside_the_rest_gets_records_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PIECE", 100)
    content = order_content(Order("train", 1, {"w": torch.zeros(20)}, {"note": torch.ones(10)}), {}, Packer())
    assert "state.data" in content["order"] and "brief.data" not in content["order"]
    assert list(content) == ["order", "brief.0"]
    assert_equal({"note": torch.ones(10)}, read_order(content, "train").brief)


def test_orders_are_the_same_when_their_tensors_are() -> None:
    note = {"note": torch.ones(2)}
    assert same(Order("train", 1, dict(ODD), dict(note))) == same(Order("train", 1, dict(ODD), dict(note)))
    others = [
        Order("train", 1, ODD),
        Order("train", 2, ODD, note),
        Order("train", 1, note, ODD),
        Order("train", 1, ODD, note, evaluate=True),
        Order("train", 1, ODD, {"note": torch.ones(2)}),
        Order("train", 1, ODD, {"other": note["note"]}),
    ]
    assert len({same(order) for order in others} | {same(Order("train", 1, ODD, note))}) == 7


def test_a_reply_arrives_bit_by_bit_under_the_name_of_who_was_asked() -> None:
    metrics = {"loss": float("nan"), "received.examples": 4.0, "received.accuracy": 0.5, "received.loss": 1.25}
    reply = Reply("somebody", "train", 2, 30, ODD, {"style": torch.ones(2)}, metrics)
    read = read_reply("east", reply_content(reply))
    assert (read.client, read.kind, read.round, read.num_examples) == ("east", "train", 2, 30)
    assert_equal(ODD, read.state)
    assert_equal(reply.report, read.report)
    assert math.isnan(read.metrics["loss"]) and read.metrics["received.loss"] == 1.25


def good() -> RecordDict:
    return reply_content(
        Reply("east", "train", 1, 30, {"w": torch.zeros(2, 3), "n": torch.tensor(1)}, metrics={"loss": 1.0})
    )


def told(**changes: object) -> RecordDict:
    """A good reply with some entries of its first record changed."""
    content = good()
    entries = {**dict(content["reply"]), **{key.replace("_", "."): value for key, value in changes.items()}}
    return RecordDict({"reply": ConfigRecord({key: value for key, value in entries.items() if value is not None})})


def form(*rows: object) -> RecordDict:
    return told(state_form=json.dumps(rows))


FINE = [["w", "float32", [2, 3]], ["n", "int64", []]]
BAD = {
    "no record": (RecordDict({}), "does not say"),
    "another record": (RecordDict({"reply": MetricRecord({"kind": 1.0})}), "does not say"),
    "kind": (told(kind="dance"), "kind"),
    "round": (told(round="1"), "round"),
    "no metrics": (told(metrics=None), "metrics"),
    "metrics that are no JSON": (told(metrics="{"), "metrics"),
    "metrics that are a number": (told(metrics=3.0), "metrics"),
    "metrics that are nested too deeply": (told(metrics="[" * 200_000), "metrics"),
    "list as a metric": (told(metrics='{"loss": [1.0]}'), "loss"),
    "text as a metric": (told(metrics='{"loss": "1.0"}'), "loss"),
    "text that is nested too deeply": (told(state_form="[" * 200_000), "names and shapes"),
    "no numbers, in a shape that nobody can count": (form(*FINE, ["x", "float32", [2**62, 2**62, 0]]), "no tensor has"),
    "form is no JSON": (told(state_form="["), "names and shapes"),
    "form is a number": (told(state_form=5), "names and shapes"),
    "negative shape": (form(["w", "float32", [-2, -3]], FINE[1]), "names and shapes"),
    "too many axes": (form(["w", "float32", [2, 3, *[1] * 20]], FINE[1]), "names and shapes"),
    "a name of a megabyte": (form(["w" * 2**20, "float32", [2, 3]], FINE[1]), "names and shapes"),
    "a metric whose name is a megabyte": (told(metrics=json.dumps({"m" * 2**20: "x"})), "its metric"),
    "a shape of fractions": (form(["w", "float32", [2.0, 3.0]], FINE[1]), "names and shapes"),
    "a shape of truth": (form(["w", "float32", [True, 6]], FINE[1]), "names and shapes"),
    "a form that is an object": (told(state_form='{"w": "float32"}'), "names and shapes"),
    "a number of endless digits": (told(state_form=f'[["w", "float32", [{"9" * 5000}]]]'), "names and shapes"),
    "a round that is true": (told(round=True), "round"),
    "a name twice": (form(FINE[0], FINE[1], ["n", "int64", [0]]), "names and shapes"),
    "too much": (form(["w", "float32", [2, 2]], FINE[1]), "24 bytes, and 32"),
    "too little": (form(["w", "float32", [2, 3000000]], FINE[1]), "bytes, and 32"),
    "more than there is memory": (form(["w", "float32", [2**60, 2**60]], FINE[1]), "bytes, and 32"),
    "another dtype": (form(["w", "float64", [2, 3]], FINE[1]), "56 bytes, and 32"),
    "no dtype": (form(["w", "object", [2, 3]], FINE[1]), "no type of a tensor"),
    "a name of torch that is no dtype": (form(["w", "load", [2, 3]], FINE[1]), "no type of a tensor"),
    "neither true nor false": (
        told(state_form='[["m", "bool", [2]]]', state_data=b"\x01\x02"),
        "0 and 1",
    ),
    "no bytes": (told(state_data=None), "and 0 were sent"),
    "text as bytes": (told(state_data="junk"), "cannot be read"),
    "text as a piece": (
        RecordDict({**dict(told(state_data=None)), "state.0": ConfigRecord({"data": "junk"})}),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_reply_that_is_none_is_refused_by_a_sentence(case: str) -> None:
    content, word = BAD[case]
    with attempt("form"):
        with pytest.raises(Unreadable, match=word) as refused:
            read_reply("east", content)
        assert len(str(refused.value)) <= packing.MOST_LETTERS


WRONG_HELLOS = {
    "nothing": RecordDict({}),
    "a number as classes": RecordDict({"hello": ConfigRecord({"site": "east", "classes": 5})}),
    "numbers as classes": RecordDict({"hello": ConfigRecord({"site": "east", "classes": [1, 2]})}),
    "a number as site": RecordDict({"hello": ConfigRecord({"site": 7, "classes": ["cat"]})}),
    "a list as site": RecordDict({"hello": ConfigRecord({"site": ["east"], "classes": ["cat"]})}),
    "a long name": RecordDict({"hello": ConfigRecord({"site": "east", "classes": ["c" * 251]})}),
    "another record": RecordDict({"hello": MetricRecord({"site": 1.0})}),
}


@pytest.mark.parametrize("what", WRONG_HELLOS)
def test_a_wrong_hello_keeps_its_node_out_and_harms_nobody(what: str) -> None:
    with attempt("form"):
        assert "hello is not one" in read_hello(WRONG_HELLOS[what]).sentence
    fine = RecordDict({"hello": ConfigRecord({"site": "east", "classes": ["cat", "dog"]})})
    assert read_hello(fine) == Hello("east", ("cat", "dog"))
    assert read_hello(RecordDict({"hello": ConfigRecord({"sentence": "No folder."})})).sentence == "No folder."
    endless = RecordDict({"hello": ConfigRecord({"sentence": "no " * 10**6})})
    assert len(read_hello(endless).sentence) == packing.MOST_LETTERS
