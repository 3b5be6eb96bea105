"""Who is told how far a run is."""

from __future__ import annotations

from typing import Protocol

from unseen.runs.results import RoundLine
from unseen.runs.settings import Settings


class Watcher(Protocol):
    """Is told how far a run is. Every call may be ignored."""

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None: ...

    def round(self, line: RoundLine) -> None: ...

    def testing(self, done: int, total: int) -> None: ...

    def said(self, sentence: str) -> None: ...


class Silent:
    """Watches without a word."""

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None: ...

    def round(self, line: RoundLine) -> None: ...

    def testing(self, done: int, total: int) -> None: ...

    def said(self, sentence: str) -> None: ...


class Watchers:
    """Tells several watchers what one would be told."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None:
        for watcher in self.watchers:
            watcher.began(settings, clients, first, last)

    def round(self, line: RoundLine) -> None:
        for watcher in self.watchers:
            watcher.round(line)

    def testing(self, done: int, total: int) -> None:
        for watcher in self.watchers:
            watcher.testing(done, total)

    def said(self, sentence: str) -> None:
        for watcher in self.watchers:
            watcher.said(sentence)
