"""The status as a small page on loopback that refreshes itself. It shows; it takes no orders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from unseen.core.errors import UserError
from unseen.engines.flower.status import COLUMNS, headlines, read_status, site_rows

REFRESH = 2  # seconds
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.25rem; margin-bottom: .25rem; }
.bar { height: .6rem; background: #8883; border-radius: .3rem; overflow: hidden; margin: 1rem 0; }
.bar div { height: 100%; background: #2a7; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #8884; }
th { font-weight: 600; white-space: nowrap; }
td:nth-child(2) { color: #184; } .absent td:nth-child(2) { color: #b40; font-weight: 600; }
@media (prefers-color-scheme: dark) { td:nth-child(2) { color: #6d9; } .absent td:nth-child(2) { color: #fa6; } }
small { color: #777; }
"""


def page(folder: Path) -> str:
    """The whole page: no script, nothing from elsewhere."""
    try:
        status = read_status(folder)
        first, *more = headlines(status)
        done = 100 * status.round / status.rounds if status.rounds else 0
        rows = "".join(
            f'<tr class="{"absent" if "absent" in row else ""}">'
            + "".join(f"<td>{escape(c)}</td>" for c in row)
            + "</tr>"
            for row in site_rows(status)
        )
        head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
        body = (
            f"<h1>{escape(first)}</h1>{''.join(f'<div>{escape(line)}</div>' for line in more)}"
            f'<div class="bar"><div style="width: {done:.1f}%"></div></div>'
            f"<table><tr>{head}</tr>{rows}</table><p>{escape(status.said)}</p>"
            f"<small>{escape(status.directory)}, unseen {escape(status.version)}</small>"
        )
    except UserError as error:
        body = f"<h1>nothing yet</h1><p>{escape(str(error))}</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH}">'
        f"<title>unseen: status</title><style>{STYLE}</style></head><body>{body}</body></html>"
    )


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Listens on loopback, and answers only those who ask for loopback: no other page can read it through a browser."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = (self.headers.get("Host") or "").rpartition(":")[0]
            if name not in ("127.0.0.1", "localhost"):
                self._send(403, "text/plain", "only on loopback\n")
            elif self.path == "/":
                self._send(200, "text/html", page(folder))
            elif self.path == "/status.json":
                try:
                    self._send(200, "application/json", json.dumps(asdict(read_status(folder))))
                except UserError as error:
                    self._send(404, "text/plain", f"{error}\n")
            else:
                self._send(404, "text/plain", "/ or /status.json\n")

        def _send(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged: the page is looked at every two seconds."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Answers)
    except OSError as error:
        raise UserError(f"The port {port} cannot be used ({error.strerror}); give another --port, or none.") from None


def serve_page(folder: Path, port: int, said: Callable[[str], None]) -> None:
    """Until Ctrl-C."""
    with server(folder, port) as listening:
        said(f"http://127.0.0.1:{listening.server_port}/")
        listening.serve_forever()
