"""A process that stays beside a SuperNode and runs the *installed* ClientApp, never code that a run brings.

Flower's own worker installs the bundle that comes with a run and imports its ClientApp: whoever may start a run may run
Python at every site. A SuperNode started with `--isolation process` runs nothing itself; this process takes its tasks
instead, and knows one ClientApp only. It also saves the start of a process (flwr, torch, ...) per message. It needs
functions of Flower that are not public: flwr is pinned to 1.41, and the deployment's tests run through here.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from unseen.engines.flower.grid import rest
from unseen.engines.flower.site import app


def serve(address: str, *, root_certificates: Path | None = None, said: Callable[[str], None] = print) -> None:
    """Take tasks from the SuperNode at `address` (its --host and --port) until stopped.

    `root_certificates` is for a SuperNode whose own port has TLS; on loopback it needs none.
    """
    known = root_certificates.read_bytes() if root_certificates else None
    with_tasks = _client(address, known)
    said(f"taking tasks from the SuperNode at {address}; only the installed unseen is run here")
    connected = True
    while True:
        looked = time.monotonic()
        try:
            found = with_tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP.value]))
            connected = True
        except httpx.HTTPError as error:
            if connected:
                said(f"no SuperNode answers at {address} ({type(error).__name__}); waiting for it")
            connected = False
            time.sleep(1.0)
            continue
        if found.HasField("task") and found.token:
            # A thread each: when a run dies while its order is on the way, the rest of the order never comes, and Flower
            # would wait two hours for it. The next run's order must not wait behind it.
            threading.Thread(target=_try, args=(_client(address, known, found.token), said), daemon=True).start()
        else:
            rest(looked)


_TURN = threading.Lock()  # one order is carried out at a time


def _try(client: Any, said: Callable[[str], None]) -> None:
    try:
        _do_task(client, said)
    except (httpx.HTTPError, ObjectPullError, RuntimeError) as error:
        said(f"a task was given up: {type(error).__name__}: {error}")


def _client(address: str, root_certificates: bytes | None, token: str = "") -> Any:
    name = "flwr-clientapp" if token else "SuperExec"
    checks: list[Any] = [RuntimeVersionHttpInterceptor(component_name=name)]
    # Not Flower's own: it interrupts the process when a task's token is refused, which is right where a process has one task.
    retry = RetryInvoker(lambda: exponential(max_delay=5.0), httpx.TransportError, 3 if token else 1, None)
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=root_certificates is None,
        root_certificates=root_certificates,
        interceptors=[*checks, RuntimeTokenHttpInterceptor(token)] if token else checks,
        retry_invoker=retry,
    )


def _do_task(client: Any, said: Callable[[str], None]) -> None:
    """One message of a run: what Flower's worker does, without the bundle."""
    heartbeat = HeartbeatSender(lambda: _beat(client))
    heartbeat.start()
    try:
        message, context, _run, _bundle = pull_task_input(client)
        with _TURN:
            reply, status, details = _answer(message, context, said)
        push_message(client, reply, context)
        push_task_output(client=client, context=context, sub_status=status, details=details)
    finally:
        if heartbeat.is_running:
            heartbeat.stop()
        client.close()


def _beat(client: Any) -> bool:
    """Tell the SuperNode that the task is worked on. Whether it still wants that, the push of the reply will say."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False  # tried again
    return True


def _answer(message: Message, context: Context, said: Callable[[str], None]) -> tuple[Message, str, str]:
    started = time.monotonic()
    try:
        reply = app(message=message, context=context)
    except Exception as error:
        said(traceback.format_exc())
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message), SubStatus.FAILED, reason
    said(f"{message.metadata.message_type} {message.metadata.group_id}: {time.monotonic() - started:.1f} s")
    return reply, SubStatus.COMPLETED, ""
