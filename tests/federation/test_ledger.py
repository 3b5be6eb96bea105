"""The ledger: bytes by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Order, Reply, Tensors, Work
from unseen.federation.ledger import Ledger, megabytes
from unseen.method import Method, compose
from unseen.methods.fedbn import FedBN


def test_bytes_by_hand() -> None:
    ledger = Ledger()
    state = {"w": torch.zeros(10), "n": torch.tensor(1)}  # 40 + 8 bytes
    for client in ("a", "b"):
        ledger.sent(client, Order("train", 1, state, brief={"style": torch.zeros(5, dtype=torch.float64)}))
        ledger.received(
            Reply(client, "train", 1, 3, state=state, report={"style": torch.zeros(3)}, metrics={"loss": 1.0})
        )
    ledger.sent("a", Order("evaluate", 1, state))
    ledger.received(Reply("a", "evaluate", 1, 3, metrics={"received.accuracy": 0.5}))
    assert ledger.trips == 2
    assert ledger.per_trip("down") == 48 + 40
    assert ledger.per_trip("down", "statistics") == 40
    assert ledger.per_trip("up") == 48 + 12 + (8 + 8 + 8) / 2
    assert ledger.total("down", "evaluation") == 48
    entry = ledger.entries["up/model/w"]
    assert (entry.shape, entry.dtype, entry.bytes, entry.crossings, entry.total) == ([10], "float32", 40, 2, 80)


def test_the_sentence_names_every_kind() -> None:
    ledger = Ledger()
    ledger.sent("a", Order("train", 1, {"w": torch.zeros(500_000)}))
    ledger.received(Reply("a", "train", 1, 3, state={"w": torch.zeros(500_000)}, report={"s": torch.zeros(250)}))
    text = ledger.sentence()
    assert text.startswith("each client sent 2.00 MB and received 2.00 MB per round: weights 2.00 MB up, 2.00 MB down")
    assert "statistics 1.00 kB up" in text
    assert text.endswith('; MORE THAN WEIGHTS was sent: "s" (not declared by the method)')
    ledger.declared = "each client's head"
    assert ledger.sentence().endswith("; MORE THAN WEIGHTS was sent: each client's head")


def test_weights_and_metrics_alone_are_not_more_than_weights() -> None:
    ledger = Ledger()
    ledger.sent("a", Order("train", 1, {"w": torch.zeros(2)}, brief={"note": torch.zeros(1)}))  # a note goes down
    ledger.received(Reply("a", "train", 1, 3, state={"w": torch.zeros(2)}, metrics={"loss": 1.0}))
    assert ledger.beyond_weights() == "" and "MORE THAN WEIGHTS" not in ledger.sentence()


@dataclass(frozen=True)
class Forgetful(Method):
    """A first-time author's method, without a word about what it sends."""

    name: ClassVar[str] = "forgetful"
    surveyed: bool = False
    reports: int = 1

    def surveys(self, round: int) -> bool:
        return self.surveyed

    def survey(self, work: Work) -> Tensors:
        return {"labels": work.site.train.labels}

    def report(self, work: Work) -> Tensors:
        return {f"head_bias{i or ''}": work.net.state_dict()["head.bias"] for i in range(self.reports)}


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Forgetful(), '"head_bias"'),
        (Forgetful(surveyed=True, reports=0), '"labels"'),
        (Forgetful(reports=7), '"head_bias", "head_bias1", "head_bias2", "head_bias3", "head_bias4" and 2 more'),
        (compose(FedBN(), Forgetful()), '"forgetful/head_bias"'),
    ],
)
def test_what_crossed_counts_and_not_what_was_declared(method: Method, words: str, tmp_path: Path) -> None:
    fed = federation(method, tmp_path, rounds=1, local_steps=1)
    fed.ledger.declared = method.about.sends
    fed.run()
    expected = f"{words} (not declared by the method)"
    assert fed.ledger.beyond_weights() == expected
    assert fed.ledger.to_json()["beyond_weights"] == expected
    assert fed.ledger.sentence().endswith(f"MORE THAN WEIGHTS was sent: {expected}")


def test_a_ledger_of_an_earlier_version_is_read() -> None:
    row = {"direction": "up", "kind": "statistics", "name": "style", "shape": [2], "dtype": "float32"}
    old = {"trips": 1, "tensors": [{**row, "bytes": 8, "crossings": 1, "total": 8}]}
    assert Ledger.from_json({**old, "beyond_weights": "styles"}).beyond_weights() == "styles"
    assert Ledger.from_json({**old, "beyond_weights": ""}).beyond_weights() == '"style" (not declared by the method)'
    assert Ledger.from_json(old).trips == 1


def test_survives_json() -> None:
    ledger = Ledger(declared="styles")
    ledger.sent("a", Order("train", 1, {"a/b.c": torch.zeros(2, 3)}))
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    assert megabytes(123) == "0.12 kB"
