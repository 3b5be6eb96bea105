"""The audit log: who was asked what, and what came back. One JSON line each, only ever appended, chained by hashes.

Each entry holds the hash of the entry before it. A line that was changed, taken out or put in later breaks the chain
where it stands. What the chain alone cannot show is a log that was cut at its end, or written anew from some line on by
somebody who may write to the file: a checkpoint therefore knows the hash of the last entry before it, and each site has
a log of its own about the same messages.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.files import disk_error

NAME = "audit.jsonl"
BEGINNING = "0" * 32  # what the first entry has before it


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def summary(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A message's tensors in short: how many, how many bytes, and a digest of their names, shapes and dtypes."""
    names = "\n".join(sorted(f"{name}|{value.dtype}|{tuple(value.shape)}" for name, value in tensors.items()))
    size = sum(value.nbytes for value in tensors.values())
    return {"tensors": len(tensors), "bytes": size, "names": digest(names.encode())}


@dataclass(frozen=True)
class Chain:
    """What is in a log: how many entries are whole, the hash of the last one, and the first thing that is wrong."""

    entries: int = 0
    head: str = BEGINNING
    hashes: frozenset[str] = frozenset()
    fault: str = ""
    cut: bytes = b""  # a last line without an end: the process or the disk stopped there


def read_chain(path: Path) -> Chain:
    """Follow a log from its first line. A log that is not there is an empty one."""
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UserError(f"{path} could not be read ({error.strerror}).") from None
    lines = data.split(b"\n")
    cut = lines.pop()
    head, hashes, fault, entries = BEGINNING, set(), "", 0
    unfinished = ""  # the digest of a line that a crash cut off, until the entry after it owns to it
    for number, line in enumerate(lines, 1):
        entry, own = _read(line)
        if entry is None:
            fault = fault or (f"line {number} is not an entry" if unfinished else "")
            unfinished = digest(line)
            continue
        if digest(_text(entry)) != own:
            fault = fault or f"line {number} was changed after it was written"
        elif entry.get("before") != head:
            fault = fault or f"line {number} does not follow the line before it: something was taken out or put in"
        elif unfinished and entry.get("cut") != unfinished:
            fault = fault or f"line {number - 1} is not an entry"
        head, unfinished, entries = own, "", entries + 1
        hashes.add(own)
    if unfinished:
        fault = fault or f"line {len(lines)} is not an entry"
    return Chain(entries, head, frozenset(hashes), fault, cut)


def _read(line: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        value = json.loads(line)
        entry, own = value["entry"], value["hash"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, ""
    return (entry, own) if isinstance(entry, dict) and isinstance(own, str) else (None, "")


def _text(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry).encode()


@dataclass
class AuditLog:
    """Entries are noted as things happen and written together, by `write`. Without a path nothing is written."""

    path: Path | None = None
    head: str = BEGINNING
    _cut: bytes = b""
    _waiting: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def at(cls, path: Path) -> AuditLog:
        """Go on with a log, or begin one. One that is broken stays broken: `verify` will say where."""
        chain = read_chain(path)
        return cls(path, chain.head, chain.cut)

    def note(self, event: str, **what: Any) -> None:
        if self.path is not None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            self._waiting.append({"time": now, "event": event, **what})

    def write(self) -> None:
        """All that was noted, at once and on the disk."""
        if self.path is None or not self._waiting:
            return
        lines, head, cut = [b"\n"] if self._cut else [], self.head, self._cut
        for what in self._waiting:
            text = _text({**what, **({"cut": digest(cut)} if cut else {}), "before": head})
            head, cut = digest(text), b""
            lines.append(b'{"entry": %b, "hash": "%b"}\n' % (text, head.encode()))  # as json.dumps would, once
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from error
        self.head, self._cut, self._waiting = head, b"", []
