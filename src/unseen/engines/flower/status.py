"""`status.json` in a run's directory: who is there, who is waited for, how far it is. The server writes it, anyone reads.

The only file that spells its keys. No Flower and no torch here: `unseen flower status` answers at once, on any machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unseen.core.errors import UserError
from unseen.core.files import read_json, write_json
from unseen.core.words import megabytes
from unseen.runs.results import RoundLine
from unseen.runs.settings import tree_of

FILE = "status.json"
OFTEN, SELDOM = 1.0, 15.0  # seconds between two writings: when something changed, and when nothing did
SILENT = 60.0  # a server that wrote nothing for so long is not there


@dataclass
class SiteStatus:
    """What the server knows of a site."""

    alive: bool = False
    replied: float | None = None  # when its last reply came, in seconds since 1970
    images: int | None = None
    version: str = ""
    refused: str = ""  # why it cannot take part


@dataclass
class Status:
    """A deployed run, now."""

    method: str = ""
    rounds: int = 0
    round: int = 0  # the last finished one
    loss: float | None = None
    validation: float | None = None
    bytes_up: int = 0  # of all sites, in the last round
    bytes_down: int = 0
    waiting: list[str] = field(default_factory=list)
    sites: dict[str, SiteStatus] = field(default_factory=dict)
    version: str = ""  # the server's
    said: str = ""  # its last sentence
    finished: bool = False
    failed: str = ""  # why the run ended without a result
    written: float = 0.0
    directory: str = ""

    @property
    def silent(self) -> float:
        """Seconds since the server last wrote; 0 while it is there, and after the end."""
        age = time.time() - self.written
        return 0.0 if self.finished or self.failed or age < SILENT else age


class StatusBoard:
    """Keeps a run's status, and its file."""

    def __init__(self, directory: Path, sites: Iterable[str], version: str, clock: Callable[[], float]) -> None:
        self.now = Status(sites={site: SiteStatus() for site in sites}, version=version, directory=str(directory))
        self._path, self._clock, self._next, self._changed = directory / FILE, clock, 0.0, True

    def changed(self) -> None:
        """Something changed: written soon."""
        self._changed = True
        self.tick()

    def tick(self) -> None:
        """Called often; writes seldom."""
        now = self._clock()
        if now >= self._next + (0.0 if self._changed else SELDOM - OFTEN):
            self.write()
            self._next = now + OFTEN

    def write(self) -> None:
        self.now.written = time.time()
        write_json(self._path, asdict(self.now))
        self._changed = False

    def replied(self, site: str) -> None:
        self.now.sites[site].replied = time.time()
        self.now.sites[site].alive = True
        self.now.waiting = [other for other in self.now.waiting if other != site]
        self.changed()

    def round(self, line: RoundLine) -> None:
        now = self.now
        now.round, now.loss = line.round, line.loss
        now.bytes_up, now.bytes_down = sum(line.bytes_up.values()), sum(line.bytes_down.values())
        if line.validation is not None and line.validation.accuracy is not None:
            now.validation = line.validation.accuracy
        self.changed()


def read_status(folder: Path) -> Status:
    """The newest status at or below a folder: an app's, its runs', or a run's own."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    found = [Path(root) / FILE for root, _, files in os.walk(folder) if FILE in files]
    if not found:
        raise UserError(f"No deployed run has begun in {folder}; `flwr run` begins one.")
    newest = max(found, key=lambda path: path.stat().st_mtime)
    value: dict[str, Any] = read_json(newest)
    try:
        status = tree_of(Status, value)
        status.sites = {name: tree_of(SiteStatus, one) for name, one in value["sites"].items()}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{newest} is not a status of unseen.") from None
    return status


# --- in words, for a terminal and for the page -----------------------------------------------------------------------
COLUMNS = ("site", "state", "last reply", "images", "version", "remark")


def headlines(status: Status) -> list[str]:
    """Where the run is, in a few lines."""
    words = []
    if status.loss is not None:
        words.append(f"loss {status.loss:.4f}")
    if status.validation is not None:
        words.append(f"validation {100 * status.validation:.2f} %")
    if status.round:
        words.append(f"{megabytes(status.bytes_up)} up and {megabytes(status.bytes_down)} down in the last round")
    lines = [f"{status.method}: round {status.round} of {status.rounds}", *([", ".join(words)] if words else [])]
    if status.failed:
        lines.append(f"the run ended without a result: {status.failed}")
    elif status.finished:
        lines.append(f"finished: {status.directory}")
    elif status.silent:
        lines.append(f"the server has not been heard of for {status.silent:.0f} s; `flwr run` again goes on")
    elif status.waiting:
        lines.append(f"waiting for {', '.join(status.waiting)}")
    else:
        lines.append("working")
    return lines


def site_rows(status: Status) -> list[tuple[str, ...]]:
    """One row per site, under COLUMNS."""
    over = bool(status.finished or status.failed or status.silent)
    rows: list[tuple[str, ...]] = []
    for name, site in status.sites.items():
        state = "-" if over else "alive" if site.alive else "absent"
        remark = f"refused: {site.refused}" if site.refused else ""
        if not remark and site.version and site.version != status.version:
            remark = f"the coordinator has {status.version}"
        if not remark and name in status.waiting and not over:
            remark = "waited for"
        images = "-" if site.images is None else str(site.images)
        rows.append((name, state, ago(site.replied), images, site.version or "-", remark))
    return rows


def ago(moment: float | None) -> str:
    if moment is None:
        return "never"
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
