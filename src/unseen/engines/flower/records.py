"""Orders and replies as Flower's records: ArrayRecord for tensors, MetricRecord for numbers, ConfigRecord else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from unseen.core.types import ClientId, Held, Kind, Order, Reply, Tensors

# Flower's three categories; the survey and the steps of secure aggregation are questions of ours.
MESSAGE_TYPES: dict[Kind, str] = {
    "survey": "query.survey",
    "train": "train",
    "evaluate": "evaluate",
    "keys": "query.keys",
    "shares": "query.shares",
    "unmask": "query.unmask",
}
HELLO = "query.hello"
MOST_AXES = 16
MOST_CLASSES, LONGEST_NAME = 100_000, 250  # of a site's hello
SENTENCE = "sentence"  # in a reply's ConfigRecord: an error for people, instead of an answer


class Unreadable(Exception):
    """A reply that is not one: the sentence says what is wrong with it."""


class ArrayPacker:
    """Tensors -> records, each state once: what goes to all clients is written (and hashed) a single time.

    Flower moves every Array as objects of their own, a request each, on each of six ways between server and site: a net
    of 300 tensors would need thousands of requests per site and round. So the tensors of one dtype travel as one flat
    Array, and their names and shapes beside it.
    """

    def __init__(self) -> None:
        self._done: dict[tuple[int, ...], tuple[list[Tensor], dict[str, Array], str]] = {}

    def put(self, content: RecordDict, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A record of arrays and its layout; nothing for no tensors."""
        if not tensors:
            return
        key = tuple(id(value) for value in tensors.values())
        if key not in self._done:
            # The tensors are kept with their arrays, so that no other tensor can get the id of one of them.
            self._done[key] = (list(tensors.values()), _flat(tensors), _layout(tensors))
        _, arrays, layout = self._done[key]
        content[name] = ArrayRecord(dict(arrays))
        content[f"{name}.layout"] = ConfigRecord({"layout": layout})


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _flat(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    parts: dict[str, list[Tensor]] = {}
    for value in tensors.values():
        parts.setdefault(_dtype(value), []).append(value.detach().cpu().reshape(-1))
    return {dtype: Array(torch.cat(values).numpy()) for dtype, values in parts.items()}


def _layout(tensors: Mapping[str, Tensor]) -> str:
    return json.dumps([[name, _dtype(value), list(value.shape)] for name, value in tensors.items()])


def order_content(client: ClientId, order: Order, about: Mapping[str, str], packer: ArrayPacker) -> RecordDict:
    """One record dict per client, never shared: Flower writes into what it is given."""
    config = ConfigRecord(
        {
            **about,
            "client": client,
            "kind": order.kind,
            "round": order.round,
            "evaluate": order.evaluate,
            "images": order.images,
            "calibrate": order.calibrate,
        }
    )
    content = RecordDict({"order": config})
    packer.put(content, "state", order.state)
    packer.put(content, "brief", order.brief)
    packer.put(content, "sealing", order.sealing)
    return content


def read_order(content: RecordDict, kind: Kind) -> Order:
    config = content["order"]
    state, brief = read_arrays(content, "state"), read_arrays(content, "brief")
    images: Held = "test" if config["images"] == "test" else "validation"
    calibrate = bool(config.get("calibrate", False))
    sealing = read_arrays(content, "sealing")
    return Order(kind, int(config["round"]), state, brief, bool(config["evaluate"]), images, calibrate, sealing)


def reply_content(reply: Reply) -> RecordDict:
    packer = ArrayPacker()
    content = RecordDict(
        {
            "reply": ConfigRecord({"kind": reply.kind, "round": reply.round, "examples": reply.num_examples}),
            "metrics": MetricRecord({name: float(value) for name, value in reply.metrics.items()}),
        }
    )
    packer.put(content, "state", reply.state)
    packer.put(content, "report", reply.report)
    packer.put(content, "sealing", reply.sealing)
    return content


def read_reply(client: ClientId, content: RecordDict) -> Reply:
    """A reply of the client that was asked, whatever it calls itself. What it claims is checked, not believed."""
    try:
        config = content.config_records["reply"]
        kind, number, examples = config["kind"], config["round"], config["examples"]
        metrics = dict(content.metric_records["metrics"])
    except KeyError as error:
        raise Unreadable(f"it has no record {error}") from None
    if not isinstance(kind, str) or kind not in MESSAGE_TYPES or type(number) is not int or type(examples) is not int:
        raise Unreadable("its kind, round or number of images is not one")
    for name, value in metrics.items():
        if not isinstance(value, (int, float)):
            raise Unreadable(f'its metric "{name}" is not a number')
    state, report, sealing = (read_arrays(content, name) for name in ("state", "report", "sealing"))
    return Reply(client, kind, number, examples, state, report, metrics, sealing=sealing)


@dataclass(frozen=True)
class Hello:
    """What a node says of itself: its site and its classes, or a sentence why it cannot take part."""

    site: ClientId = ""
    classes: tuple[str, ...] = ()
    sentence: str = ""
    images: int | None = None
    version: str = ""


def read_hello(content: RecordDict) -> Hello:
    """A node's hello. Anything that is not one is a sentence, too."""
    answer = content.config_records.get("hello", {})
    if SENTENCE in answer:
        return Hello(sentence=str(answer[SENTENCE]))
    site, classes = answer.get("site"), answer.get("classes")
    names = [site, *classes] if isinstance(classes, list) else []
    sound = 1 < len(names) <= MOST_CLASSES and all(isinstance(n, str) and 0 < len(n) <= LONGEST_NAME for n in names)
    if not sound:
        return Hello(sentence="its hello is not one: it needs the names of its site and of its classes.")
    images, version = answer.get("images"), str(answer.get("version", ""))[:LONGEST_NAME]
    return Hello(
        str(site), tuple(map(str, names[1:])), images=images if isinstance(images, int) else None, version=version
    )


def read_arrays(content: RecordDict, name: str) -> Tensors:
    """The tensors of a record; they share the memory of its arrays.

    Dtype and size are the arrays' own; the names and shapes beside them are the sender's claims, and must fit exactly.
    """
    if name not in content.array_records:
        return {}
    flat = {dtype: _vector(dtype, array) for dtype, array in content.array_records[name].items()}
    used = dict.fromkeys(flat, 0)
    tensors: Tensors = {}
    for key, dtype, shape in _claims(content, name):
        if dtype not in flat:
            raise Unreadable(f'the tensor "{key}" is said to be {dtype}, of which nothing was sent')
        start, size = used[dtype], math.prod(shape)
        if start + size > len(flat[dtype]):
            raise Unreadable(f'the tensor "{key}" is said to have shape {tuple(shape)}, for which too little was sent')
        try:
            tensors[key], used[dtype] = flat[dtype][start : start + size].reshape(shape), start + size
        except (RuntimeError, TypeError, OverflowError):  # no numbers at all, in a shape that torch cannot count
            raise Unreadable(f'the tensor "{key}" is said to have a shape that no tensor has') from None
    for dtype, vector in flat.items():
        if used[dtype] != len(vector):
            raise Unreadable(f"{len(vector) - used[dtype]} numbers of {dtype} belong to no tensor")
    return tensors


def _claims(content: RecordDict, name: str) -> list[tuple[str, str, list[int]]]:
    try:
        rows = json.loads(content.config_records[f"{name}.layout"]["layout"])
        claims = [(key, dtype, shape) for key, dtype, shape in rows]
        sound = all(
            isinstance(key, str)
            and isinstance(dtype, str)
            and isinstance(shape, list)
            and len(shape) <= MOST_AXES
            and all(type(n) is int and n >= 0 for n in shape)
            for key, dtype, shape in claims
        )
    except (KeyError, TypeError, ValueError, RecursionError):  # text that is nested too deeply, too
        sound = False
    if not sound or len({key for key, _, _ in claims}) != len(claims):
        raise Unreadable(f'the names and shapes of "{name}" cannot be read')
    return claims


def _vector(dtype: str, array: Array) -> Tensor:
    try:
        # A copy: what was decoded may be read-only.
        vector = torch.from_numpy(np.array(array.numpy(), order="C"))
    except (ValueError, TypeError, EOFError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"the array {dtype} cannot be read ({reason})") from None
    if vector.dim() != 1:
        raise Unreadable(f"the array {dtype} has {vector.dim()} axes, not one")
    return vector
