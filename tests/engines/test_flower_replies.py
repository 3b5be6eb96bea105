"""Replies on their way through a SuperLink's hands: few requests, exact bits, and nothing of a site's own word believed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as Announced
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_object_id, get_object_tree, iterate_object_tree

from tests.attempts import attempt
from unseen.core.types import Reply
from unseen.engines.flower import packing, replies
from unseen.engines.flower.records import read_reply, reply_content
from unseen.engines.flower.replies import DeployedGrid, push_reply

SITE = 7
STATE = {"w": torch.arange(600.0), "n": torch.tensor(3)}


@dataclass
class Store:
    """What a SuperLink does with replies: keeps what is announced, and the objects that it then asks for."""

    announced: list[tuple[Announced, ObjectTree]] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def PushMessages(self, request: PushMessagesRequest) -> PushMessagesResponse:
        self.asked["push"] += 1
        tree = request.message_object_trees[0]
        self.announced.append((request.messages_list[0], tree))
        return PushMessagesResponse(objects_to_push=[part.object_id for part in iterate_object_tree(tree)])

    def PushObject(self, request: Any) -> PushObjectResponse:
        self.asked["push"] += 1
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        self.asked["pull"] += 1
        found = [pair for pair in self.announced if pair[0].metadata.reply_to_message_id in (*request.message_ids, "")]
        self.announced = [pair for pair in self.announced if pair not in found]
        return PullAppMessagesResponse(messages_list=[a for a, _ in found], message_object_trees=[t for _, t in found])

    def PullObject(self, request: Any) -> PullObjectResponse:
        self.asked["pull"] += 1
        content = self.objects.get(request.object_id)
        return PullObjectResponse(object_found=content is not None, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.asked["pull"] += 1

    def grid(self) -> DeployedGrid:
        own = {"get_nodes": None, "push_messages": None, "run": SimpleNamespace(run_id=1)}
        return DeployedGrid(SimpleNamespace(_runtime_client=self, node=Node(node_id=1), **own))  # type: ignore[arg-type]


def reply_to(order: str, content: RecordDict | None = None, error: Error | None = None) -> Message:
    told = Metadata(1, "", SITE, SUPERLINK_NODE_ID, order, "", 1.8e9, 60.0, "train")
    return make_message(told, content if content is not None or error else good(), error)


def good() -> RecordDict:
    return reply_content(Reply("east", "train", 1, 30, STATE, metrics={"loss": 1.0}))


def send(store: Store, message: Message) -> None:
    push_reply(store, Node(node_id=SITE), 1, message, 0.5)


@pytest.mark.parametrize(("piece", "pushed", "pulled"), [(10_000, 1, 1), (1000, 7, 8)])
def test_a_reply_that_fits_goes_in_one_request_and_comes_in_one(
    piece: int, pushed: int, pulled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PIECE", piece)
    store = Store()
    send(store, reply_to("order"))
    (message,) = store.grid().pull_messages(["order"])
    read = read_reply("east", message.content)
    assert all(torch.equal(read.state[name], value) for name, value in STATE.items())
    assert (message.metadata.reply_to_message_id, message.metadata.src_node_id) == ("order", SITE)
    assert store.asked == {"push": pushed, "pull": pulled}


def test_an_error_comes_as_one_and_what_is_not_there_is_silence() -> None:
    store = Store()
    send(store, reply_to("one", error=Error(2, "RuntimeError: no")))
    assert [m.error.reason for m in store.grid().pull_messages(["one", "two"])] == ["RuntimeError: no"]
    assert not list(store.grid().pull_messages(["one", "two"]))


def test_few_replies_at_a_time_are_asked_for() -> None:
    store, orders = Store(), [str(number) for number in range(replies.TOGETHER + 1)]
    for order in orders:
        send(store, reply_to(order))
    assert [m.metadata.reply_to_message_id for m in store.grid().pull_messages(orders)] == orders
    assert store.asked["pull"] == 2


# --- what a site may send that is no reply ---------------------------------------------------------------------------
def as_objects(root: bytes, *children: bytes) -> tuple[list[bytes], ObjectTree]:
    below = [ObjectTree(object_id=get_object_id(child)) for child in children]
    return [root, *children], ObjectTree(object_id=get_object_id(root), children=below)


def lying(about: str) -> tuple[list[bytes], ObjectTree]:
    """A good reply whose own metadata claim another sender and another order than the announcement."""
    told = Metadata(1, "", 99, SUPERLINK_NODE_ID, about, "", 1.8e9, 60.0, "train")
    message = make_message(told, good())
    tree = get_object_tree(message)
    record = message.content["reply"]
    return [message.deflate(), message.content.deflate(), record.deflate()], tree


EMPTY = RecordDict({}).deflate()
BAD: dict[str, tuple[list[bytes], ObjectTree]] = {
    "a record dict instead of a message": as_objects(RecordDict({"reply": ConfigRecord({})}).deflate(), EMPTY),
    "a message that is no protobuf": as_objects(b"Message %s 3\x00\xff\xff\xff" % get_object_id(EMPTY).encode(), EMPTY),
    "bytes that are no object": as_objects(b"\xff" * 40, EMPTY),
    "nothing as an object": as_objects(b"", EMPTY),
    "an unknown class": as_objects(b"Pickle %s 0\x00" % get_object_id(EMPTY).encode(), EMPTY),
    "a head that names other children": as_objects(b"Message  0\x00", EMPTY),
    "a body shorter than its head says": as_objects(b"Message %s 999\x00" % get_object_id(EMPTY).encode(), EMPTY),
    "a length that is no number": as_objects(b"Message %s many\x00" % get_object_id(EMPTY).encode(), EMPTY),
    "a child that was never sent": (as_objects(EMPTY)[0], as_objects(EMPTY, b"lost")[1]),
}


@pytest.mark.parametrize("case", BAD)
def test_objects_that_are_no_reply_are_their_senders_error_and_nobody_elses(case: str) -> None:
    objects, tree = BAD[case]
    store = Store(objects={get_object_id(content): content for content in objects})
    bare = reply_to("bad", RecordDict({}))
    bare.metadata.__dict__["_message_id"] = tree.object_id
    store.announced.append((message_to_proto(bare), tree))
    send(store, reply_to("good"))
    with attempt("form"):
        bad, fine = store.grid().pull_messages(["bad", "good"])
        assert bad.has_error() and bad.metadata.reply_to_message_id == "bad" and bad.metadata.src_node_id == SITE
        silent = case == "a child that was never sent"
        assert bad.error.code == (ErrorCode.MESSAGE_UNAVAILABLE if silent else ErrorCode.UNKNOWN)
        assert read_reply("east", fine.content).num_examples == 30


@pytest.mark.parametrize("claimed", ["", "good", "unknown"])
def test_who_answers_what_is_the_superlinks_word(claimed: str) -> None:
    objects, tree = lying(claimed)
    store = Store(objects={get_object_id(content): content for content in objects})
    bare = reply_to("mine", RecordDict({}))
    bare.metadata.__dict__["_message_id"] = tree.object_id
    store.announced.append((message_to_proto(bare), tree))
    with attempt("form"):
        (message,) = store.grid().pull_messages(["mine", "good"])
        assert (message.metadata.reply_to_message_id, message.metadata.src_node_id) == ("mine", SITE)


def test_a_message_that_answers_nothing_is_passed_over() -> None:
    """Flower hands the server whatever is addressed to it, asked for or not."""
    store = Store()
    send(store, reply_to(""))
    send(store, reply_to("good"))
    with attempt("form"):
        assert [m.metadata.reply_to_message_id for m in store.grid().pull_messages(["good"])] == ["good"]
