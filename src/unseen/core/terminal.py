"""Where progress is shown: a bar in a terminal, one line that changes in a notebook, nothing elsewhere. On stderr."""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.segment import Segment

from unseen.core.words import plain

Place = Literal["terminal", "notebook", "plain", "nowhere"]


class CleanConsole(Console):
    """A console that shows foreign text as text: nothing that a name or a sentence holds moves the cursor."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:  # line by line: ends of lines are the console's own here
                yield Segment("\n".join(map(plain, segment.text.split("\n"))), segment.style)


def errors() -> Console:
    """A console on stderr as it is now: tests put another one in its place."""
    return CleanConsole(stderr=True)


def place_of(progress: bool | None) -> Place:
    """Where to show how far something is. None: where somebody is looking; True: everywhere; False: nowhere."""
    if progress is False:
        return "nowhere"
    if in_notebook():
        return "notebook"
    if errors().is_terminal:
        return "terminal"
    return "plain" if progress else "nowhere"


def in_notebook() -> bool:
    """Is this a Jupyter kernel? IPython is asked only if something else has imported it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.2f} %"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"


class Pace:
    """How far, and how long still: by the mean of the steps of this start."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.started = first, last, time.monotonic()

    def left(self, step: int) -> str:
        each = (time.monotonic() - self.started) / (step - self.first + 1)
        return f"{duration(each * (self.last - step))} left"


class NotebookLine:
    """One line of a notebook's output, with a bar, that is written anew."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, done: int, total: int, words: str) -> None:
        from IPython.display import HTML, display

        bar = f'<progress value="{done}" max="{max(1, total)}"></progress> {done}/{total} {html.escape(words)}'
        if self.handle is None:
            self.handle = display(HTML(bar), display_id=True)
        else:
            self.handle.update(HTML(bar))


class Steps:
    """A known number of things, one after the other."""

    def __init__(self, total: int, place: Place) -> None:
        self.total, self.done, self.place = total, 0, place
        self.pace = Pace(1, total)
        self.line = NotebookLine()
        self.bar: Progress | None = None
        self.task: Any = None
        if place == "terminal":
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), console=errors(), transient=True
            )
            self.task = self.bar.add_task("", total=total)
            self.bar.start()

    def said(self, words: str) -> None:
        """What comes now."""
        if self.bar is not None:
            self.bar.update(self.task, description=words)
        elif self.place == "notebook":
            self.line.show(self.done, self.total, words)
        elif self.place == "plain":
            print(plain(words), file=sys.stderr, flush=True)

    def advance(self) -> None:
        self.done += 1
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif self.place == "notebook":
            self.line.show(self.done, self.total, self.pace.left(self.done) if self.done < self.total else "")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def steps(total: int, progress: bool | None) -> Iterator[Steps]:
    shown = Steps(total, place_of(progress))
    try:
        yield shown
    finally:
        shown.close()
