"""A site's process before a SuperLink that is overloaded, forgets an order, and at last no longer knows the site."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PullObjectResponse

from tests.engines.sites import SITES, small
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.scaffold import write_app, write_keys

TROUBLES = (500, 502, 503)  # the first three answers to a heartbeat


class MoodySuperLink(ThreadingHTTPServer):
    """Speaks the Fleet API's words, each time another answer."""

    daemon_threads = True

    def __init__(self, keys: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: Counter[str] = Counter()
        self.forget = threading.Event()  # set: the site's key is no longer known
        self.orders_after_the_lost_one = threading.Event()


class _Answers(BaseHTTPRequestHandler):
    server: MoodySuperLink
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        what = self.path.rpartition("/")[2]
        self.server.asked[what] += 1
        count = self.server.asked[what]
        if what == "activate-node":
            # The first answer is what Flower says while it holds the process before this one for connected.
            self._send(412 if count == 1 else 200, ActivateNodeResponse(node_id=7).SerializeToString())
        elif what == "send-node-heartbeat":
            if count <= len(TROUBLES):
                self._send(TROUBLES[count - 1], b"")
            else:
                known = not self.server.forget.is_set()
                self._send(200, SendNodeHeartbeatResponse(success=known).SerializeToString())
        elif what == "pull-messages":
            response = PullMessagesResponse()
            if count == 1:  # an order whose content is gone: its run has died
                response.messages_list.append(
                    Message(metadata=Metadata(run_id=1, message_id="m", message_type="train"))
                )
                response.message_object_trees.append(ObjectTree(object_id="m"))
            elif self.server.asked["pull-object"]:
                self.server.orders_after_the_lost_one.set()
            self._send(200, response.SerializeToString())
        elif what == "pull-object":
            self._send(200, PullObjectResponse(object_found=False).SerializeToString())
        else:
            self._send(200, b"")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Path:
    settings = small(tmp_path / "data", "fedavg", "flower").with_changes({"root": None})
    write_app(tmp_path / "app", Deployment(settings, SITES), images={SITES[0]: tmp_path})
    write_keys(tmp_path / "app", SITES)
    return tmp_path / "app" / "sites" / SITES[0]


@pytest.fixture
def superlink(place: Path) -> Iterator[MoodySuperLink]:
    with MoodySuperLink(place.parents[1] / "keys") as server:
        text = (place / "site.toml").read_text().replace("localhost:8443", f"localhost:{server.server_port}")
        (place / "site.toml").write_text(text)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_site_outlives_overload_and_ends_when_its_heart_stops(superlink: MoodySuperLink, place: Path) -> None:
    # Flower's own heartbeat raises on 500, and its SuperNode lives on without one.
    code = (
        "import sys, pathlib; from unseen.engines.flower import node; from unseen.engines.flower.site_file import SiteFile;"
        "node.BEAT = 0.2; node.serve(SiteFile.read(pathlib.Path(sys.argv[1])))"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(place)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert superlink.orders_after_the_lost_one.wait(240), superlink.asked
        assert superlink.asked["activate-node"] == 2
        while superlink.asked["send-node-heartbeat"] <= len(TROUBLES) + 2:
            assert process.poll() is None
        superlink.forget.set()
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 75  # EX_TEMPFAIL: a service manager starts it again
        assert "the coordinator no longer knows this site's key), and so does this process" in said
        assert "another process holds it (412)" in said
        assert "given up: ObjectPullError" in said
    finally:
        process.kill()
        process.communicate()
