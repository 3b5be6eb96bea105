"""How far a run is: a live bar in a terminal, one line in a notebook, plain lines elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from unseen.core.terminal import NotebookLine, Pace, errors, percent, place_of
from unseen.core.words import PEEKS, plain
from unseen.runs.progress import Silent, Watcher
from unseen.runs.results import RoundLine, RunResult, mark_of

if TYPE_CHECKING:
    from unseen.core.plan import Plan
    from unseen.runs.settings import Settings

QUIET = 10.0  # seconds without a line before a plain screen says how far a test is


class Screen(Watcher, Protocol):
    """A watcher that ends."""

    started: bool

    def close(self) -> None: ...


def chosen_by(selection: str) -> str:
    """The selection rule in a few words. The oracle is marked wherever it is shown."""
    return f"{selection} ({PEEKS} at the unseen domain)" if selection == "oracle" else selection


def budget(plan: Plan) -> str:
    """`40 rounds of 200 steps of 64`."""
    count, unit = (plan.local_steps, "step") if plan.local_steps else (plan.local_epochs, "epoch")
    return f"{plan.rounds} rounds of {count} {unit}{'' if count == 1 else 's'} of {plan.batch_size}"


def more_measures(about: RunResult) -> str:
    """What a result has beside the unseen accuracy; "" for records of earlier versions, and where nothing was left out."""
    if (found := about.measured) is None:
        return ""
    return (
        f"unseen: macro F1 {percent(found.macro_f1)}, balanced accuracy {percent(found.balanced_accuracy)}, "
        f"AUROC {percent(found.auroc)}, calibration error {percent(found.calibration_error)}"
    )


def tell(line: RoundLine, mark: str) -> str:
    """A round's numbers. Validation came with this round's replies, and is of the model before it."""
    words = [f"loss {line.loss:.4f}" if line.loss is not None else "loss -"]
    if line.validation is not None:
        words.append(f"validation {percent(line.validation.accuracy)} (after round {line.validation.round})")
    if line.unseen is not None:
        words.append(f"unseen {percent(line.unseen.accuracy)}{mark}")
    return "  ".join(words)


class Plain:
    """One line per round."""

    def __init__(self) -> None:
        self.started, self.mark = False, ""
        self.pace = Pace(1, 1)
        self.spoke = time.monotonic()

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None:
        self.started, self.pace = True, Pace(first, last)
        self.mark = mark_of(settings)
        if first > 1:
            self.said(f"going on after round {first - 1}")

    def round(self, line: RoundLine) -> None:
        left = self.pace.left(line.round)
        self.said(f"round {line.round}/{self.pace.last}  {tell(line, self.mark)}  {left}")

    def testing(self, done: int, total: int) -> None:
        if time.monotonic() - self.spoke > QUIET:
            self.said(f"testing on the unseen domain: {done:,} of {total:,} images")

    def said(self, sentence: str) -> None:
        self.spoke = time.monotonic()
        print(plain(sentence), file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Live(Plain):
    """The same lines, scrolling by above a bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
            console=console,
            transient=True,
        )

    def began(self, settings: Settings, clients: int, first: int, last: int) -> None:
        super().began(settings, clients, first, last)
        self.rounds = self.bar.add_task(f"rounds, {clients} clients", total=last, completed=first - 1, left="")
        self.test = self.bar.add_task("testing on the unseen domain", visible=False, left="")
        self.bar.start()

    def round(self, line: RoundLine) -> None:
        super().round(line)
        self.bar.update(self.rounds, completed=line.round, left=self.pace.left(line.round))

    def testing(self, done: int, total: int) -> None:
        self.bar.update(self.test, completed=done, total=total, visible=done < total)

    def said(self, sentence: str) -> None:
        self.bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.bar.stop()


class InNotebook(Plain):
    """One line that changes with the rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.line = NotebookLine()

    def round(self, line: RoundLine) -> None:
        words = f"{tell(line, self.mark)}  {self.pace.left(line.round)}"
        self.line.show(line.round, self.pace.last, words)


class _Silent(Silent):
    started = False

    def close(self) -> None: ...


def screen() -> Plain:
    """For the command line: always something."""
    console = errors()
    return Live(console) if console.is_terminal else Plain()


def screen_for(progress: bool | None) -> Screen:
    """For Python: where somebody is looking, unless `progress` says otherwise."""
    place = place_of(progress)
    if place == "terminal":
        return Live(errors())
    return InNotebook() if place == "notebook" else Plain() if place == "plain" else _Silent()
