"""A site's process: takes orders from the coordinator's SuperLink and runs the *installed* ClientApp, nothing else.

It does what Flower's SuperNode and its worker do, in one process, and differs where a deployment needs it:

- Flower's worker installs the bundle that comes with a run and imports its ClientApp: whoever may start a run may run
  Python at every site. Here the bundle is not even asked for.
- A SuperNode looks for messages every 3 s, its worker every half second. Here the pause is a small part of the time
  since the last message, so that a round does not wait and an idle site does not ask.
- A SuperNode's heartbeat ends for good when a proxy answers 500, and the SuperNode lives on unseen. Here every such
  answer is tried again; if the heartbeat ever ends, the process ends, and its service manager starts it again.
- No port is opened at the site.

The Fleet API is Flower's; its client and messages are not public, which is why flwr is pinned.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from unseen.core.errors import UserError
from unseen.core.platform import end_as_interrupted
from unseen.engines.flower.replies import push_reply
from unseen.engines.flower.site import SiteConfig, app
from unseen.engines.flower.site_file import SiteFile

BEAT = 10.0  # seconds between two heartbeats; the SuperLink holds a site for gone after 2 x 30
SOON, LATE, PART = 0.1, 3.0, 0.05  # the pause between two looks: a part of the time since the last reply, within bounds
FIRST = 0.8  # the first look after a reply: a part of the time after which orders came lately
LOST = 60.0  # seconds for the rest of an order, whose sender may have died
HOLD = 75.0  # seconds in which a SuperLink may still hold the process before this one for connected
TRIES = 6  # of one request, before it is given up
REMIND = 60.0
TEMPORARY = 75  # the exit code that asks a service manager for another try


def serve(place: SiteFile, *, said: Callable[[str], None] = print) -> None:
    """Take orders for the site until stopped (Ctrl-C or SIGTERM)."""
    own = SiteConfig.read(place.node)  # bad words are said before the network is asked
    end_as_interrupted()
    node = SiteNode(place, said)
    node.enter()
    said(f'the site "{own.site}" takes orders from {place.superlink}; only the installed unseen is run here')
    try:
        node.work()
    finally:
        node.leave()


class SiteNode:
    """One site's connection: its key, its heartbeat, and the orders that come."""

    def __init__(self, place: SiteFile, said: Callable[[str], None]) -> None:
        self._place, self._said = place, said
        key = _private_key(place)
        self._public = public_key_to_bytes(key.public_key())
        checks = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        retry = RetryInvoker(
            lambda: exponential(max_delay=10),
            (httpx.TransportError, httpx.HTTPStatusError),
            TRIES,
            None,
            should_giveup=_final,
        )
        address, trust = f"https://{place.superlink}", _trust(place)
        self._client: Any = FleetHttpClient(address, interceptors=checks, verify=trust, retry_invoker=retry)
        # One request at a time and no second try: what a heartbeat says is whether the site is there now.
        self._pulse: Any = FleetHttpClient(address, interceptors=checks, verify=trust)
        self._node = Node()

    def enter(self) -> None:
        """Until the SuperLink lets this key in; an error if it will not."""
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        refused, say = 0.0, 0.0
        while True:
            try:
                self._node = Node(node_id=self._pulse.ActivateNode(asked).node_id)
                break
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if _final(error):
                    refused = refused or time.monotonic()
                    if not _held(error) or time.monotonic() - refused > HOLD:
                        raise UserError(
                            f"The coordinator {self._place.superlink} refuses this site: {_why(error)}."
                        ) from None
                if time.monotonic() >= say:
                    self._said(f"not connected to {self._place.superlink} yet ({_why(error)}); trying again")
                    say = time.monotonic() + REMIND
                time.sleep(1.0)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        """The heartbeat. It never ends while the process lives: an unseen site is worse than one that starts again."""
        try:
            while True:
                try:
                    asked = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
                    known = self._pulse.SendNodeHeartbeat(asked).success
                except (httpx.TransportError, httpx.HTTPStatusError) as error:
                    if _final(error):
                        raise
                    time.sleep(1.0)
                    continue
                if not known:
                    raise UserError("the coordinator no longer knows this site's key")
                time.sleep(BEAT)
        except BaseException as error:
            self._said(f"the heartbeat ended ({_why(error)}), and so does this process")
            os._exit(TEMPORARY)

    def work(self) -> None:
        """Orders, one after the other. Every look costs the SuperLink transactions, so none is made much too early."""
        last, say, gaps = time.monotonic(), 0.0, deque([0.0, 0.0], maxlen=2)
        while True:
            try:
                answer = self._client.PullMessages(PullMessagesRequest(node=self._node))
                if answer.messages_list:
                    gaps.append(time.monotonic() - last)
                    self._carry_out(answer.messages_list[0].metadata.run_id, answer.message_object_trees[0])
                    last, say = time.monotonic(), 0.0
                    time.sleep(min(FIRST * min(gaps), LATE))
                    continue
            except Exception as error:  # whatever is wrong with one order, the next may be right
                if time.monotonic() >= say:
                    self._said(f"given up: {_why(error)}; going on")
                    say = time.monotonic() + REMIND
            time.sleep(min(max(SOON, PART * (time.monotonic() - last)), LATE))

    def _carry_out(self, run: int, tree: Any) -> None:
        """One message of a run: what Flower's worker does, without the bundle."""
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run),
            return_type=Message,
            max_concurrent_pulls=1,  # an order is announced before its parts are sent: one of them is waited for, not all
            max_time=LOST,
            initial_backoff=0.05,
            backoff_cap=2.0,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id  # it does not travel inside its own content
        context = Context(run, self._node.node_id, dict(self._place.node), RecordDict(), {})
        began = time.monotonic()
        reply = _answer(message, context, self._said)
        push_reply(self._client, self._node, run, reply, time.monotonic() - began)

    def leave(self) -> None:
        """Say good-bye, so that the next process of this site is let in at once."""
        try:
            self._pulse.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, RuntimeError):
            self._said("the coordinator could not be told that this site leaves")


def _answer(message: Message, context: Context, said: Callable[[str], None]) -> Message:
    started = time.monotonic()
    try:
        reply = app(message=message, context=context)
    except Exception as error:
        said(traceback.format_exc())
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
    said(f"{message.metadata.message_type} {message.metadata.group_id}: {time.monotonic() - started:.1f} s")
    return reply


# --- keys and answers ------------------------------------------------------------------------------------------------
def _private_key(place: SiteFile) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_ssh_private_key(place.key.read_bytes(), None)
    except OSError as error:
        raise UserError(
            f"The site's key {place.key} could not be read ({error.strerror}); `unseen flower key` makes one."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{place.key} is not an ECDSA key in OpenSSH's format; `unseen flower key` makes one.")
    return key


def _trust(place: SiteFile) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=place.root_certificates)
        if place.certificate is not None:
            context.load_cert_chain(place.certificate)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"A certificate of this site could not be read: {error}.") from None
    return context


def _final(error: Exception) -> bool:
    """Is it no use to ask again? Overload, a restart and a broken line pass; a refusal does not."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code < 500 and error.response.status_code != httpx.codes.TOO_MANY_REQUESTS
    return "certificate verify failed" in str(error).lower()


def _held(error: Exception) -> bool:
    """Flower has one answer for a key that nobody registered and for one whose last process it holds for connected."""
    precondition = httpx.codes.PRECONDITION_FAILED
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == precondition


def _why(error: BaseException) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        known = {
            401: "its key or its clock is not accepted (401)",
            403: "this is not allowed (403), or the run is over",
            412: "its key is not registered, or another process holds it (412)",
        }
        return known.get(code, f"status {code}")
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
