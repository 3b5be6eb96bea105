"""How replies travel: one that is a single record goes whole, in the request that announces it; others as objects.

Flower moves every object of a message by requests of its own. A reply of three objects takes four requests to the
SuperLink and five from there, and each costs the SuperLink several transactions. The SuperLink keeps the content of a
message if it has one, so a reply that fits into one request (`packing`) needs one each way. Orders go as objects: a look
that brought one cannot be repeated, and a broken line must not lose an order; its objects can be asked for again.

Who sent a reply, and what it answers, is what the SuperLink has checked, not what an object of the site says of itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from flwr.app import Error, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto, metadata_from_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

TOGETHER = 8  # replies in one answer: each may have 10 MB, and the SuperLink holds the answer in memory
AGAIN, AGAIN_LONGEST = 0.05, 2.0  # seconds until a part of a reply that is still on its way is asked for again


# --- at the site -----------------------------------------------------------------------------------------------------
def push_reply(client: Any, node: Node, run: int, reply: Message, seconds: float) -> None:
    """Send a reply by the site's client of the Fleet API. `seconds` is how long its order took."""
    if reply.has_error() or len(reply.content) == 1:
        # Nothing is looked up by this name, so it need not be the hash of megabytes.
        reply.metadata.__dict__["_message_id"] = secrets.token_hex(32)
        client.PushMessages(_announcement(node, reply, ObjectTree(object_id=reply.metadata.message_id), seconds))
        return
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        announced = _announcement(node, remove_content_from_message(reply), get_object_tree(reply), seconds)
        answer = client.PushMessages(announced)
        push_objects(
            get_all_nested_objects(reply),
            make_push_object_fn_protobuf(client.PushObject, node, run, answer.session_id),
            object_ids_to_push=set(answer.objects_to_push),
        )


def _announcement(node: Node, message: Message, tree: ObjectTree, seconds: float) -> PushMessagesRequest:
    return PushMessagesRequest(
        node=node,
        messages_list=[message_to_proto(message)],
        message_object_trees=[tree],
        clientapp_runtime_list=[seconds],
    )


# --- at the server ---------------------------------------------------------------------------------------------------
class Post(Protocol):
    """What a deployment needs of Flower's grid."""

    def get_nodes(self) -> Iterable[NodeInfo]: ...

    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]: ...

    def pull_messages(self, names: Sequence[str]) -> Iterable[Message]: ...


class DeployedGrid:
    """Flower's grid of a deployment, but for how it reads replies: whatever is wrong with one is its sender's error."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self.get_nodes, self.push_messages = grid.get_nodes, grid.push_messages

    def pull_messages(self, names: Sequence[str]) -> Iterator[Message]:
        """The replies that are there to the messages of these names."""
        for start in range(0, len(names), TOGETHER):
            asked = PullAppMessagesRequest(message_ids=names[start : start + TOGETHER])
            answer = self._grid._runtime_client.PullMessages(asked)
            for announced, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                if announced.metadata.reply_to_message_id not in asked.message_ids:
                    continue  # Flower lets a site address a message of its own to the server; nobody asked for it
                try:
                    yield self._whole(announced, tree)
                except ObjectPullError as error:
                    yield _failed(announced, ErrorCode.MESSAGE_UNAVAILABLE, str(error))
                except Exception as error:  # a site may send any bytes as an object
                    yield _failed(announced, ErrorCode.UNKNOWN, f"it is no message ({type(error).__name__})")

    def _whole(self, announced: Any, tree: ObjectTree) -> Message:
        if not tree.children:
            return message_from_proto(announced)
        client, node, run = self._grid._runtime_client, self._grid.node, self._grid.run.run_id
        contents = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            make_pull_object_fn_protobuf(client.PullObject, node, run),
            initial_backoff=AGAIN,
            backoff_cap=AGAIN_LONGEST,
        )
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        )
        told = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(told, Message):
            raise TypeError("its objects are no message")
        return make_message(metadata_from_proto(announced.metadata), told.content)


def _failed(announced: Any, code: int, reason: str) -> Message:
    return make_message(metadata_from_proto(announced.metadata), error=Error(code, reason))
