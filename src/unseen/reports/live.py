"""A page about a bench that runs, which refreshes itself. On this machine only: it listens on the loopback address."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from unseen.core.terminal import duration, percent
from unseen.experiments.board import name_of
from unseen.experiments.collect import collect
from unseen.experiments.sweep import Job, time_left
from unseen.reports.figures import text
from unseen.reports.page import table
from unseen.reports.style import STYLE
from unseen.reports.tables import accuracy_grid

EVERY = 5  # seconds between two looks
HOSTS = ("127.0.0.1", "localhost")


def live_page(jobs: Sequence[Job], folder: Path, workers: int) -> str:
    """The jobs as they are now, and the tables of what is finished."""
    done = sum(job.status in ("finished", "failed") for job in jobs)
    left = time_left(jobs, workers)
    words = f"{done} of {len(jobs)} runs done" + (
        f", {duration(left)} left" if left is not None and done < len(jobs) else ""
    )
    tables = "".join(table(accuracy_grid(group)) for group in collect(folder).groups) if done else ""
    rows = "".join(_row(job) for job in jobs)
    refresh = f'<meta http-equiv="refresh" content="{EVERY}">' if done < len(jobs) else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}<title>{text(words)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><header><h1>{text(folder.name)}: {text(words)}</h1></header><main>{tables}"
        '<div class="wide"><table><thead><tr><th scope="col">Run</th><th scope="col">State</th><th scope="col">Rounds</th>'
        f'<th scope="col">Unseen accuracy</th></tr></thead><tbody>{rows}</tbody></table></div>'
        f"<p>This page looks again every {EVERY} seconds until all is done.</p></main></body></html>"
    )


def _row(job: Job) -> str:
    rounds = job.settings.plan.rounds
    result = job.result if job.status == "finished" else None
    bar = f'<progress max="{rounds}" value="{job.round}"></progress> {job.round}/{rounds}'
    said = f"{job.status}: {job.reason}" if job.reason else job.status
    found = percent(result.accuracy) if result is not None else "-"
    return f'<tr><th scope="row">{text(name_of(job))}</th><td>{text(said)}</td><td>{bar}</td><td>{found}</td></tr>'


@contextmanager
def serving(jobs: Sequence[Job], folder: Path, workers: int, port: int = 0) -> Iterator[str]:
    """The page's address, while it is served. Port 0 is any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A name that somebody else made point here could read the page through a browser: only our own names may.
            if (self.headers.get("Host") or "").rpartition(":")[0] not in HOSTS:
                self.send_error(403)
                return
            if self.path != "/":
                self.send_error(404)
                return
            body = live_page(jobs, folder, workers).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silence: the terminal shows the bench."""

    server = ThreadingHTTPServer((HOSTS[0], port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOSTS[0]}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
