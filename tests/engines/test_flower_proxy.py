"""The written proxy against strangers without a key: real nginx, real TLS, loopback only, bounded in count and time."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install unseen[flower]")

from tests.attempts import attempt
from tests.engines.sites import SITES, small
from unseen.engines.flower.config import Deployment
from unseen.engines.flower.processes import Processes, free_ports, listens
from unseen.engines.flower.scaffold import AT_A_TIME, FEWEST, write_app, write_keys

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
STRANGER = "127.0.0.2"  # every address of 127.0.0.0/8 is this machine's own
SOCKETS, SECONDS = 130, 4.0
PATH = "/v1/fleet/pull-messages"


class Upstream(ThreadingHTTPServer):
    """Stands for the SuperLink: counts the bytes of bodies that reach it, whole or not."""

    daemon_threads = True

    def __init__(self, port: int, keys: Path) -> None:
        super().__init__(("127.0.0.1", port), _Counts)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.received = 0
        self.requests = 0


class _Counts(BaseHTTPRequestHandler):
    server: Upstream
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.requests += 1
        left = int(self.headers.get("Content-Length", 0))
        while left and (got := self.rfile.read1(min(left, 65536))):
            self.server.received += len(got)
            left -= len(got)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None: ...


class Proxy:
    """The written configuration under nginx, before an upstream of ours."""

    def __init__(self, folder: Path, **given: object) -> None:
        self.public, link = free_ports(2)
        settings = small(folder / "data", "fedavg", "flower").with_changes({"root": None})
        self.app = folder / "app"
        write_app(self.app, Deployment(settings, SITES), port=self.public, link_port=link, bind="127.0.0.1", **given)  # type: ignore[arg-type]
        write_keys(self.app, SITES)
        (self.app / "nginx_temp").mkdir()
        self.upstream = Upstream(link, self.app / "keys")
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()
        self.processes = Processes(folder, {"PATH": "/usr/sbin:/usr/bin:/bin"})
        self.processes.start(
            "nginx", "nginx", "-c", self.app / "nginx.conf", "-p", self.app, "-g", "daemon off; master_process off;"
        )
        end = time.monotonic() + 60
        while not listens(self.public):
            assert time.monotonic() < end and not self.processes.ended(), self.processes.log("nginx")
            time.sleep(0.05)

    def close(self) -> None:
        self.processes.stop()
        self.upstream.shutdown()
        self.upstream.server_close()

    def trust(self, site: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.app / "keys" / "ca.crt"))
        if site:
            context.load_cert_chain(self.app / "sites" / site / "site.pem")
        return context

    def connect(self, address: str) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.public), 10, source_address=(address, 0))
        return self.trust().wrap_socket(raw, server_hostname="localhost")

    def ask(self, address: str = "127.0.0.1", path: str = PATH, site: str = "", body: bytes = b"hello") -> int:
        """The status of a whole request."""
        with closing(self.line(address, site)) as line:
            line.request("POST", path, body)
            return line.getresponse().status

    def line(self, address: str = "127.0.0.1", site: str = "") -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "localhost", self.public, timeout=20, source_address=(address, 0), context=self.trust(site)
        )


def begin(line: ssl.SSLSocket, length: int) -> None:
    """The header of a request, with the promise of a body."""
    line.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())


def drip(line: ssl.SSLSocket) -> bytes | None:
    """One more byte of a body; or the status that came instead, empty if the line was cut before it could be read."""
    try:
        return [*line.recv(64).split(b" "), b"", b""][1]
    except ssl.SSLWantReadError:
        pass  # nothing was said yet
    except OSError:
        return b""
    try:
        line.sendall(b".")
    except OSError:
        return b""
    return None


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    made = Proxy(tmp_path)
    yield made
    made.close()


def test_slow_bodies_of_a_stranger_do_not_stop_a_site(proxy: Proxy) -> None:
    assert proxy.ask() == 200
    with attempt("slow", SOCKETS), ExitStack() as stack:
        slow = [stack.enter_context(proxy.connect(STRANGER)) for _ in range(SOCKETS)]
        for line in slow:
            begin(line, 1 << 20)
            line.setblocking(False)
        answers, said = [], dict[int, bytes]()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for number, line in enumerate(slow):
                if number not in said and (heard := drip(line)) is not None:
                    said[number] = heard
            answers.append(proxy.ask())
            time.sleep(1.0)
        assert answers == [200] * len(answers)
        assert len(answers) >= 3
        # All but the few that one address may have under way were turned away: 503, and not 500.
        assert len(said) >= SOCKETS - AT_A_TIME * FEWEST
        assert b"503" in (codes := set(said.values())) and codes <= {b"503", b""}
        assert proxy.ask(STRANGER) == 503
        assert proxy.upstream.requests == 1 + len(answers)  # nothing of the stranger came through


def test_half_sent_bodies_do_not_reach_the_superlink(proxy: Proxy) -> None:
    promised, sent = 12_000_000, 4_000_000
    with attempt("half", 8), ExitStack() as stack:
        for _ in range(8):
            line = stack.enter_context(proxy.connect(STRANGER))
            begin(line, promised)
            line.sendall(b"x" * sent)
        assert proxy.ask() == 200
        assert (proxy.upstream.requests, proxy.upstream.received) == (1, len(b"hello"))
    # A body above the largest piece that Flower sends is refused by its header alone.
    with attempt("half"), proxy.connect(STRANGER) as line:
        begin(line, 60_000_000)
        assert line.recv(64).split(b" ")[1] == b"413"
    assert proxy.upstream.requests == 1


SPELLINGS = (  # of a path that is not published, as someone would write it who hopes that the proxy reads it otherwise
    "{}", "{}/", "/{}", "/v1/fleet/../..{}", "/v1/fleet/%2e%2e/%2e%2e{}", "/v1/fleet/..%2f..{}", "/v1/fleet/./../..{}?a=/v1/fleet/",
)  # fmt: skip


def test_no_spelling_of_another_api_comes_through(proxy: Proxy) -> None:
    """Every path that this version of Flower's SuperLink has, but the sites' own."""
    superlink = pytest.importorskip("flwr.superlink.main", reason="Flower is not installed: pip install unseen[flower]")
    paths = ["/docs", "/openapi.json", *superlink.create_app().openapi()["paths"]]
    closed = [path for path in paths if not path.startswith("/v1/fleet/")]
    assert "/v1/control/start-run" in closed and len(closed) > 50
    with closing(proxy.line(STRANGER)) as line:
        for path in (spelling.format(path) for path in closed for spelling in SPELLINGS):
            with attempt("requests"):
                line.request("POST", path, b"hello")
                answer = line.getresponse()
                answer.read()
                assert answer.status in (400, 403) and proxy.upstream.requests == 0, path


def test_only_allowed_networks_come_in(tmp_path: Path) -> None:
    proxy = Proxy(tmp_path, allow=["127.0.0.1", "10.0.0.0/8"])
    try:
        assert proxy.ask() == 200
        with attempt("requests"):
            assert proxy.ask(STRANGER) == 403
    finally:
        proxy.close()


def test_only_sites_with_a_certificate_come_in(tmp_path: Path) -> None:
    proxy = Proxy(tmp_path, client_certificates=True)
    try:
        assert proxy.ask(site=SITES[0]) == 200
        with attempt("requests"):
            assert proxy.ask() == 400
            assert proxy.upstream.requests == 1
    finally:
        proxy.close()
