"""The worker beside a SuperNode outlives tasks that are taken away from it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.proto.runtime_pb2 import AcquireTaskResponse, SendTaskHeartbeatResponse
from flwr.proto.task_pb2 import Task


class ForgetfulSuperNode(ThreadingHTTPServer):
    """Hands out one task and then no longer knows it: its run has died."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.refused = threading.Event()
        self.asked_again = threading.Event()
        self.given = False


class _Answers(BaseHTTPRequestHandler):
    server: ForgetfulSuperNode

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("acquire-task"):
            if self.server.refused.is_set():
                self.server.asked_again.set()
            response = AcquireTaskResponse()
            if not self.server.given:
                response = AcquireTaskResponse(task=Task(task_id=1), token="a-token")
                self.server.given = True
            self._send(200, response.SerializeToString())
        elif self.path.endswith("send-task-heartbeat"):
            self._send(200, SendTaskHeartbeatResponse(success=False).SerializeToString())
        else:
            self._send(401, b"")
            self.server.refused.set()

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def supernode() -> Iterator[ForgetfulSuperNode]:
    with ForgetfulSuperNode() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_task_that_is_no_longer_wanted_does_not_stop_the_worker(supernode: ForgetfulSuperNode) -> None:
    # Flower's own worker has one task per process, and interrupts itself when its token or heartbeat is refused.
    code = "import sys; from unseen.engines.flower.node import serve; serve(sys.argv[1])"
    worker = subprocess.Popen(
        [sys.executable, "-u", "-c", code, f"127.0.0.1:{supernode.server_port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert supernode.refused.wait(120)
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.startswith("a task was given up: HTTPStatusError: Client error '401"):
                break
        supernode.asked_again.clear()
        assert supernode.asked_again.wait(60), "the worker takes no more tasks"
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.communicate()
