"""Orders and replies as Flower's records: exact, and nothing the sender claims is believed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tests.attempts import attempt
from unseen.core.types import Order, Reply, Tensors
from unseen.engines.flower.records import (
    ArrayPacker,
    Hello,
    Unreadable,
    order_content,
    read_arrays,
    read_hello,
    read_order,
    read_reply,
    reply_content,
)

ODD: Tensors = {
    "weight": torch.tensor([[1.0, -0.0], [1e-45, 3.0]]).t(),  # not contiguous, signed zero, denormal
    "count": torch.tensor(7),
    "half": torch.tensor([1.5], dtype=torch.float16),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "mask": torch.tensor([True, False]),
    "later": torch.tensor([4.0, 5.0]),
}


def assert_equal(a: Tensors, b: Tensors) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        assert b[name].dtype == value.dtype and b[name].shape == value.shape, name
        assert b[name].numpy().tobytes() == value.contiguous().numpy().tobytes(), name


def test_an_order_arrives_bit_by_bit() -> None:
    order = Order("train", 3, ODD, {"note": torch.arange(4)}, evaluate=True, images="test", calibrate=True)
    content = order_content("east", order, {"settings": "{}"}, ArrayPacker())
    read = read_order(content, "train")
    assert (read.kind, read.round, read.evaluate, read.images, read.calibrate) == ("train", 3, True, "test", True)
    assert_equal(ODD, read.state)
    assert_equal(order.brief, read.brief)
    assert content["order"]["client"] == "east" and content["order"]["settings"] == "{}"


def test_a_state_for_all_clients_is_written_once_and_the_records_are_their_own() -> None:
    packer = ArrayPacker()
    one, two = (order_content(c, Order("train", 1, ODD), {}, packer) for c in ("east", "west"))
    assert one["state"]["float32"].data is two["state"]["float32"].data
    assert one["state"] is not two["state"] and one["order"] is not two["order"]
    # One array per dtype, whatever the number of tensors.
    assert sorted(one["state"]) == ["bool", "float16", "float32", "float64", "int64"]


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


def layout(content: RecordDict, rows: object) -> RecordDict:
    content["state.layout"] = ConfigRecord({"layout": json.dumps(rows)})
    return content


def swapped(array: Array) -> RecordDict:
    content = good()
    content["state"] = ArrayRecord({**dict(content["state"]), "float32": array})
    return content


FINE = [["w", "float32", [2, 3]], ["n", "int64", []]]
BAD = {
    "no record": (RecordDict({}), "no record"),
    "kind": (
        RecordDict({"reply": ConfigRecord({"kind": "dance", "round": 1, "examples": 1}), "metrics": MetricRecord({})}),
        "kind",
    ),
    "list as a metric": (RecordDict({**dict(good()), "metrics": MetricRecord({"loss": [1.0]})}), "loss"),
    "text that is nested too deeply": (
        RecordDict({**dict(good()), "state.layout": ConfigRecord({"layout": "[" * 200_000})}),
        "names and shapes",
    ),
    "no numbers, in a shape that nobody can count": (
        RecordDict(
            {
                **dict(good()),
                "state.layout": ConfigRecord({"layout": json.dumps([*FINE, ["x", "float32", [2**62, 2**62, 0]]])}),
            }
        ),
        "no tensor has",
    ),
    "layout is no JSON": (
        RecordDict({**dict(good()), "state.layout": ConfigRecord({"layout": "["})}),
        "names and shapes",
    ),
    "negative shape": (layout(good(), [["w", "float32", [-2, -3]], FINE[1]]), "names and shapes"),
    "a name twice": (layout(good(), [FINE[0], FINE[1], ["n", "int64", [0]]]), "names and shapes"),
    "too much": (layout(good(), [["w", "float32", [2, 2]], FINE[1]]), "belong to no tensor"),
    "too little": (layout(good(), [["w", "float32", [2, 3000000]], FINE[1]]), '"w"'),
    "another dtype": (layout(good(), [["w", "float64", [2, 3]], FINE[1]]), '"w"'),
    "bytes that are no array": (swapped(Array("float32", (6,), "numpy.ndarray", b"junk")), "cannot be read"),
    "objects": (swapped(Array("float32", (6,), "pickle", b"junk")), "cannot be read"),
    "two axes": (swapped(Array(np.zeros((2, 3), np.float32))), "axes"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_reply_that_is_none_is_refused_by_a_sentence(case: str) -> None:
    content, word = BAD[case]
    with attempt("form"), pytest.raises(Unreadable, match=word):
        read_reply("east", content)


def test_the_arrays_own_dtype_counts_not_the_claimed_one() -> None:
    content = swapped(Array("float32", (6,), "numpy.ndarray", Array(np.zeros(6)).data))
    assert read_arrays(content, "state")["w"].dtype == torch.float64  # which the server's check then refuses by name


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
