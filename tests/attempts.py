"""Attacks and faults that tests play, counted: `benchmarks/attacks.py` writes the sums down for docs/security.md.

    with attempt("slow", 130):
        ...

An attempt is held if its block ends without an error; a test that fails inside it leaves it among those that did not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

KINDS = {
    "requests": "a stranger's requests to what is not published",
    "keys": "nodes with no registered key, or under another's name",
    "slow": "a stranger's sockets that send a byte a second",
    "half": "bodies that are half sent or too large",
    "code": "runs that ship code to the sites",
    "paths": "orders that name a file of a site, or would fill its disk",
    "form": "malformed replies",
    "content": "well-formed replies that lie about counts, variances, scores or numbers",
    "kill": "kills, at a file operation or of a process in a round",
    "disk": "full disks",
    "damage": "damaged files of a run, each read by a command",
    "log": "audit logs that somebody touched",
    "words": "input on the command line that once broke it",
}
COUNTS: dict[str, list[int]] = {}  # kind -> [attempts, held]


@contextmanager
def attempt(kind: str, count: int = 1) -> Iterator[None]:
    assert kind in KINDS, kind
    row = COUNTS.setdefault(kind, [0, 0])
    row[0] += count
    yield
    row[1] += count
