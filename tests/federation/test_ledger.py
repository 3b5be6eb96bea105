"""The ledger: bytes by hand."""

from __future__ import annotations

import json

import torch

from unseen.core.types import Order, Reply
from unseen.federation.ledger import Ledger, megabytes


def test_bytes_by_hand() -> None:
    ledger = Ledger()
    state = {"w": torch.zeros(10), "n": torch.tensor(1)}  # 40 + 8 bytes
    for client in ("a", "b"):
        ledger.sent(client, Order("train", 1, state, brief={"style": torch.zeros(5, dtype=torch.float64)}))
        ledger.received(
            Reply(client, "train", 1, 3, state=state, report={"told": torch.zeros(3)}, metrics={"loss": 1.0})
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
    assert "MORE THAN WEIGHTS" not in text
    ledger.beyond = "each client's head"
    assert ledger.sentence() == f"{text}; MORE THAN WEIGHTS was sent: each client's head"


def test_survives_json() -> None:
    ledger = Ledger(beyond="styles")
    ledger.sent("a", Order("train", 1, {"a/b.c": torch.zeros(2, 3)}))
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    assert megabytes(123) == "0.12 kB"
