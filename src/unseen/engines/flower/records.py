"""Orders and replies as Flower's records: one ConfigRecord says what is asked or told, others hold many tensors."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from unseen.core.types import ClientId, Held, Kind, Order, Reply
from unseen.engines.flower.packing import MOST_LETTERS, Packer, Unreadable, unpack

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
KINDS = ("state", "brief", "sealing")  # of tensors in an order
MOST_CLASSES, LONGEST_NAME = 100_000, 250  # of a site's hello
SENTENCE = "sentence"  # in a reply's ConfigRecord: an error for people, instead of an answer


def order_content(order: Order, about: Mapping[str, str], packer: Packer) -> RecordDict:
    first = ConfigRecord(
        {
            **about,
            "kind": order.kind,
            "round": order.round,
            "evaluate": order.evaluate,
            "images": order.images,
            "calibrate": order.calibrate,
        }
    )
    content = RecordDict({"order": first})
    for kind in KINDS:
        packer.put(content, first, kind, getattr(order, kind))
    return content


def same(order: Order) -> Hashable:
    """Equal for two orders whose contents are: they have the very same tensors."""
    tensors = ((kind, name, id(value)) for kind in KINDS for name, value in getattr(order, kind).items())
    return (order.kind, order.round, order.evaluate, order.images, order.calibrate, *tensors)


def read_order(content: RecordDict, kind: Kind) -> Order:
    first = content.config_records["order"]
    state, brief, sealing = (unpack(content, first, name) for name in KINDS)
    images: Held = "test" if first["images"] == "test" else "validation"
    calibrate = bool(first.get("calibrate", False))
    return Order(kind, int(first["round"]), state, brief, bool(first["evaluate"]), images, calibrate, sealing)


def reply_content(reply: Reply) -> RecordDict:
    packer = Packer()
    metrics = json.dumps({name: float(value) for name, value in reply.metrics.items()})
    first = ConfigRecord({"kind": reply.kind, "round": reply.round, "examples": reply.num_examples, "metrics": metrics})
    content = RecordDict({"reply": first})
    for kind in ("state", "report", "sealing"):
        packer.put(content, first, kind, getattr(reply, kind))
    return content


def read_reply(client: ClientId, content: RecordDict) -> Reply:
    """A reply of the client that was asked, whatever it calls itself. What it claims is checked, not believed."""
    first = content.config_records.get("reply", {})
    try:
        kind, number, examples, text = (first[name] for name in ("kind", "round", "examples", "metrics"))
    except KeyError as error:
        raise Unreadable(f"it does not say its {error}") from None
    if not isinstance(kind, str) or kind not in MESSAGE_TYPES or type(number) is not int or type(examples) is not int:
        raise Unreadable("its kind, round or number of images is not one")
    state, report, sealing = (unpack(content, first, name) for name in ("state", "report", "sealing"))
    return Reply(client, kind, number, examples, state, report, _metrics(text), sealing=sealing)


def _metrics(text: object) -> dict[str, float]:
    try:
        metrics = dict(json.loads(text))  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        raise Unreadable("its metrics cannot be read") from None
    for name, value in metrics.items():
        if type(value) not in (int, float):
            raise Unreadable(f'its metric "{name}" is not a number')
    return metrics


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
        return Hello(sentence=str(answer[SENTENCE])[:MOST_LETTERS])
    site, classes = answer.get("site"), answer.get("classes")
    names = [site, *classes] if isinstance(classes, list) else []
    sound = 1 < len(names) <= MOST_CLASSES and all(isinstance(n, str) and 0 < len(n) <= LONGEST_NAME for n in names)
    if not sound:
        return Hello(sentence="its hello is not one: it needs the names of its site and of its classes.")
    images, version = answer.get("images"), str(answer.get("version", ""))[:LONGEST_NAME]
    return Hello(
        str(site), tuple(map(str, names[1:])), images=images if isinstance(images, int) else None, version=version
    )
