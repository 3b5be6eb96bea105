"""How far a bench is: a table that is redrawn in a terminal, one line in a notebook, plain lines elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live as LiveView
from rich.table import Table
from rich.text import Text

from unseen.core.terminal import NotebookLine, duration, errors, percent, place_of
from unseen.experiments.sweep import Job, time_left
from unseen.runs.results import label_of


class PlainBoard:
    """A line when a run ends, and one now and then."""

    EVERY = 30.0

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self.jobs, self.workers = jobs, workers
        self.spoke = time.monotonic()

    def looked(self, jobs: Sequence[Job]) -> None:
        if time.monotonic() - self.spoke > self.EVERY:
            running = "; ".join(
                f"{name_of(job)} {job.round}/{job.settings.plan.rounds}" for job in jobs if job.status == "running"
            )
            self.said(f"{self.total()}: {running}")

    def ended(self, job: Job) -> None:
        done = sum(j.status in ("finished", "failed") for j in self.jobs)
        self.said(f"[{done}/{len(self.jobs)}] {name_of(job)}: {outcome_of(job)}  {self.left()}")

    def total(self) -> str:
        done = sum(job.status in ("finished", "failed") for job in self.jobs)
        return f"{done} of {len(self.jobs)} runs done, {self.left()}"

    def left(self) -> str:
        seconds = time_left(self.jobs, self.workers)
        return "time left not known yet" if seconds is None else f"{duration(seconds)} left"

    def said(self, sentence: str) -> None:
        self.spoke = time.monotonic()
        print(sentence, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Following(PlainBoard):
    """A line when a run ends, of whatever jobs there are now."""

    def __init__(self) -> None:
        super().__init__([], 1)

    def looked(self, jobs: Sequence[Job]) -> None:
        self.jobs, self.workers = jobs, max(1, sum(job.status == "running" for job in jobs))
        super().looked(jobs)

    def ended(self, job: Job) -> None:
        done = sum(j.status in ("finished", "failed") for j in self.jobs)
        self.said(f"[{done}/{len(self.jobs)}] {name_of(job)}: {job.status} {job.reason}  {self.left()}")


class LiveBoard(PlainBoard):
    """A table of all runs that is redrawn; of many runs, those that are not waiting or long finished."""

    def __init__(self, jobs: Sequence[Job], workers: int, console: Console) -> None:
        super().__init__(jobs, workers)
        self.live = LiveView(console=console, transient=True, refresh_per_second=4)
        self.live.start()

    def looked(self, jobs: Sequence[Job]) -> None:
        self.live.update(Group(self._table(), Text(self.total(), style="cyan")))

    def _table(self) -> Table:
        room = max(4, self.live.console.height - 6)
        order = {"running": 0, "elsewhere": 1, "failed": 2, "waiting": 3, "finished": 4}
        shown = list(self.jobs)
        if len(shown) > room:
            shown = sorted(shown, key=lambda job: (order[job.status], -(job.ended or 0)))[:room]
        view = Table("run", "", "round", "left", box=None, padding=(0, 2, 0, 0))
        colours = {"running": "cyan", "failed": "red", "finished": "green"}
        for job in shown:
            rounds = job.settings.plan.rounds
            bar = "█" * round(20 * job.round / rounds)
            left = duration(job.left) if job.status == "running" and job.left is not None else ""
            word = outcome_of(job) if job.status in ("finished", "failed") else bar.ljust(20, "·")
            view.add_row(name_of(job), Text(word, style=colours.get(job.status, "dim")), f"{job.round}/{rounds}", left)
        return view

    def ended(self, job: Job) -> None:
        if job.status == "failed":
            self.said(f"{name_of(job)}: {outcome_of(job)}")

    def said(self, sentence: str) -> None:
        self.live.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()


def board(jobs: Sequence[Job], workers: int) -> PlainBoard:
    console = errors()
    return LiveBoard(jobs, workers, console) if console.is_terminal else PlainBoard(jobs, workers)


def name_of(job: Job) -> str:
    """`fedavg, unseen street, seed 0`."""
    return f"{label_of(job.settings)}, {job.settings.left_out}, seed {job.settings.seed}"


def outcome_of(job: Job) -> str:
    if job.status == "failed":
        return f"FAILED: {job.reason}"
    result = job.result
    return percent(result.accuracy) if result is not None else job.status


class NotebookBoard(PlainBoard):
    """One line that changes; failures have lines of their own."""

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        super().__init__(jobs, workers)
        self.line = NotebookLine()

    def looked(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        if time.monotonic() - self.spoke > 1:
            self.spoke = time.monotonic()
            self._show()

    def ended(self, job: Job) -> None:
        self._show()
        if job.status == "failed":
            self.said(f"{name_of(job)}: {outcome_of(job)}")

    def _show(self) -> None:
        done = sum(job.status in ("finished", "failed") for job in self.jobs)
        running = "; ".join(
            f"{name_of(job)} {job.round}/{job.settings.plan.rounds}" for job in self.jobs if job.status == "running"
        )
        self.line.show(done, len(self.jobs), f"runs, {self.left()}. {running}")


class SilentBoard(PlainBoard):
    """Says nothing."""

    def looked(self, jobs: Sequence[Job]) -> None: ...

    def ended(self, job: Job) -> None: ...

    def said(self, sentence: str) -> None: ...


def following(progress: bool | None) -> PlainBoard:
    """For a search: lines as runs end, without a word of what they reach on the domain that is left out."""
    return SilentBoard([], 1) if place_of(progress) == "nowhere" else Following()


def board_for(jobs: Sequence[Job], workers: int, progress: bool | None) -> PlainBoard:
    """For Python: where somebody is looking, unless `progress` says otherwise."""
    place = place_of(progress)
    if place == "terminal":
        return LiveBoard(jobs, workers, errors())
    kinds = {"notebook": NotebookBoard, "plain": PlainBoard, "nowhere": SilentBoard}
    return kinds[place](jobs, workers)
