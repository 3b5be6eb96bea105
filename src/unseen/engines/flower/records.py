"""Orders and replies as Flower records: ArrayRecord for tensors, MetricRecord for numbers, ConfigRecord for the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from unseen.types import ClientId, Kind, Order, Reply, Tensors

# Flower's three categories; the survey is a question of ours.
MESSAGE_TYPES: dict[Kind, str] = {"survey": "query.survey", "train": "train", "evaluate": "evaluate"}
HELLO = "query.hello"
SENTENCE = "sentence"  # in a reply's ConfigRecord: an error for people, instead of an answer


class Unreadable(Exception):
    """A reply that is not one: the sentence says what is wrong with it."""


class Press:
    """Tensors -> Arrays, each tensor once: a state that goes to all clients is written (and hashed) a single time."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Tensor, Array]] = {}

    def record(self, tensors: Mapping[str, Tensor]) -> ArrayRecord:
        return ArrayRecord({name: self._array(value) for name, value in tensors.items()})

    def _array(self, value: Tensor) -> Array:
        # The tensor is kept with its array, so that its id cannot be given to another one.
        if id(value) not in self._done:
            self._done[id(value)] = (value, Array(value.detach().cpu().contiguous().numpy()))
        return self._done[id(value)][1]


def order_content(client: ClientId, order: Order, about: Mapping[str, str], press: Press) -> RecordDict:
    """One record dict per client, never shared: Flower writes into what it is given."""
    config = ConfigRecord(
        {**about, "client": client, "kind": order.kind, "round": order.round, "evaluate": order.evaluate}
    )
    content = RecordDict({"order": config, "state": press.record(order.state)})
    if order.brief:
        content["brief"] = press.record(order.brief)
    return content


def read_order(content: RecordDict, kind: Kind) -> Order:
    config = content["order"]
    return Order(kind, int(config["round"]), read_arrays(content, "state"), read_arrays(content, "brief"), bool(config["evaluate"]))


def reply_content(reply: Reply) -> RecordDict:
    press = Press()
    content = RecordDict(
        {
            "reply": ConfigRecord({"kind": reply.kind, "round": reply.round, "examples": reply.num_examples}),
            "metrics": MetricRecord({name: float(value) for name, value in reply.metrics.items()}),
        }
    )
    if reply.state:
        content["state"] = press.record(reply.state)
    if reply.report:
        content["report"] = press.record(reply.report)
    return content


def read_reply(client: ClientId, content: RecordDict) -> Reply:
    """A reply of the client that the server asked, whatever it calls itself. What it claims is checked, not believed."""
    try:
        config = content["reply"]
        kind, number, examples = config["kind"], config["round"], config["examples"]
        metrics = dict(content["metrics"])
    except KeyError as error:
        raise Unreadable(f"it has no record {error}") from None
    if kind not in MESSAGE_TYPES or not isinstance(number, int) or not isinstance(examples, int):
        raise Unreadable("its kind, round or number of images is not one")
    for name, value in metrics.items():
        if not isinstance(value, (int, float)):
            raise Unreadable(f'its metric "{name}" is not a number')
    _check_score(metrics)
    return Reply(client, kind, number, examples, read_arrays(content, "state"), read_arrays(content, "report"), metrics)


def _check_score(metrics: Mapping[str, float]) -> None:
    if "received.examples" not in metrics:
        return
    examples, accuracy = metrics["received.examples"], metrics.get("received.accuracy", math.nan)
    if not (math.isfinite(examples) and examples >= 1 and 0 <= accuracy <= 1 and "received.loss" in metrics):
        raise Unreadable("its validation score is not one")


def read_arrays(content: RecordDict, name: str) -> Tensors:
    """The tensors of a record. Shape and dtype are the array's own: those written beside it are the sender's claims."""
    record = content.array_records.get(name, {})
    return {key: _tensor(key, array) for key, array in record.items()}


def _tensor(name: str, array: Array) -> Tensor:
    try:
        # A copy in C order: what was decoded may be read-only or in Fortran order.
        return torch.from_numpy(np.array(array.numpy(), order="C"))
    except (ValueError, TypeError, EOFError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f'the tensor "{name}" cannot be read ({reason})') from None
