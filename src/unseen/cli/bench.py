"""`unseen bench`."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live as LiveView
from rich.table import Table
from rich.text import Text

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import budget, duration, errors, percent, results
from unseen.core.plan import HOW

if TYPE_CHECKING:
    from unseen.experiments.grid import BenchPlan
    from unseen.experiments.sweep import Job

EXAMPLE = (
    "Example: unseen bench --data digits --methods fedavg,silobn,fedfd,fedfd-a --targets all --seeds 0-2 --workers 2 "
    "--out bench"
)


@with_settings(without=("engine",))
def bench(
    settings: dict[str, Any],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods with commas: fedavg,silobn,fedbn+fedprox,fedfd:lambda2=0.02; all: every one that fits.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="Unseen domains with commas, or all. (default: all)", rich_help_panel=WHAT)
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="0, or 0,3,7, or 0-2, or all of the protocol's. (default: its first)", rich_help_panel=WHAT),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="A field of the methods that have it; repeatable.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A TOML file with these names and values.", rich_help_panel=WHAT)
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            help="The choices.json of `unseen tune`: chosen settings beside the defaults.", rich_help_panel=WHAT
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The method to compare with. (default: fedavg)", rich_help_panel=WHAT)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at once. (default: one per core)", rich_help_panel=HOW)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run directories. (default: bench)", rich_help_panel=HOW)
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Also tell tensorboard, mlflow or wandb, if installed; repeatable.", rich_help_panel=HOW),
    ] = None,
) -> None:
    """Run methods x targets x seeds, several at once, and print the table.

    The same command again goes on where it was stopped. More methods or seeds later run only what is new.
    """
    from unseen.api import check_workers, spare_workers
    from unseen.experiments import grid
    from unseen.runs.recorders import check_recorders

    given: dict[str, Any] = {
        "methods": methods,
        "targets": targets,
        "seeds": seeds,
        "set": field,
        "workers": workers,
        "log": log,
    }
    given |= {"out": out, "baseline": baseline, "tuned": tuned, **settings}
    plan = {**(grid.read_file(file) if file is not None else {}), **{k: v for k, v in given.items() if v is not None}}
    folder, count, against = Path(plan.pop("out", "bench")), plan.pop("workers", None), plan.pop("baseline", None)
    logs = plan.pop("log", [])
    logs = [logs] if isinstance(logs, str) else list(logs)
    check_recorders(logs)
    check_workers(count)
    planned = grid.plan_bench(plan)
    for method, why in planned.left_out.items():
        errors().print(f"left out: {method}: {why}", markup=False, highlight=False, soft_wrap=True)
    jobs = grid.begin(planned, folder, shlex.join(["unseen", *sys.argv[1:]]))
    new = sum(job.status != "finished" for job in jobs)
    at_once = min(count or spare_workers(jobs[0].settings.plan.device), max(1, new))
    shown = board(jobs, at_once)
    shown.said(
        f"{len(jobs)} runs, {len(jobs) - new} of them finished before; {budget(jobs[0].settings.plan)}; "
        f"{at_once} at once; in {folder}"
    )
    try:
        failed = grid.carry_out(jobs, at_once, shown, [word for name in logs for word in ("--log", name)])
    except KeyboardInterrupt:
        shown.close()
        shown.said("Stopped; the same command goes on, each run after its last finished round.")
        raise typer.Exit(130) from None
    finally:
        shown.close()
    _print_tables(planned, folder, against)
    if failed:
        errors().print(
            f"{len(failed)} of {len(jobs)} runs failed; their logs are in log.txt of their directories, and the same "
            f"command tries them again.",
            style="red",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)


def _print_tables(planned: BenchPlan, folder: Path, baseline: str | None) -> None:
    from unseen.experiments.collect import collect, condition_of
    from unseen.reports.tables import accuracy_grid, measures_grid, statistics_grid, terminal, write_tables

    collection, console = collect(folder), results()
    condition = condition_of(planned.runs[0].settings)
    for group in collection.groups:
        if group.condition == condition:
            console.print(terminal(accuracy_grid(group)))
            console.print(terminal(measures_grid(group)))
            if len(group.rows) > 1:
                console.print(terminal(statistics_grid(group, baseline)))
    write_tables(collection, folder / "tables", baseline)
    console.print(
        f"tables: {folder / 'tables'}   next: unseen report {folder}", markup=False, highlight=False, soft_wrap=True
    )


# --- the screen ------------------------------------------------------------------------------------------------------
class PlainBoard:
    """A line when a run ends, and one now and then."""

    EVERY = 30.0

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self.jobs, self.workers = jobs, workers
        self.spoke = time.monotonic()

    def looked(self, jobs: Sequence[Job]) -> None:
        if time.monotonic() - self.spoke > self.EVERY:
            running = "; ".join(
                f"{_name(job)} {job.round}/{job.settings.plan.rounds}" for job in jobs if job.status == "running"
            )
            self.said(f"{self.total()}: {running}")

    def ended(self, job: Job) -> None:
        done = sum(j.status in ("finished", "failed") for j in self.jobs)
        self.said(f"[{done}/{len(self.jobs)}] {_name(job)}: {_outcome(job)}  {self.left()}")

    def total(self) -> str:
        done = sum(job.status in ("finished", "failed") for job in self.jobs)
        return f"{done} of {len(self.jobs)} runs done, {self.left()}"

    def left(self) -> str:
        from unseen.experiments.sweep import time_left

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
        self.said(f"[{done}/{len(self.jobs)}] {_name(job)}: {job.status} {job.reason}  {self.left()}")


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
            word = _outcome(job) if job.status in ("finished", "failed") else bar.ljust(20, "·")
            view.add_row(_name(job), Text(word, style=colours.get(job.status, "dim")), f"{job.round}/{rounds}", left)
        return view

    def ended(self, job: Job) -> None:
        if job.status == "failed":
            self.said(f"{_name(job)}: {_outcome(job)}")

    def said(self, sentence: str) -> None:
        self.live.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()


def board(jobs: Sequence[Job], workers: int) -> PlainBoard:
    console = errors()
    return LiveBoard(jobs, workers, console) if console.is_terminal else PlainBoard(jobs, workers)


def _name(job: Job) -> str:
    from unseen.experiments.collect import label_of

    return f"{label_of(job.settings)}, {job.settings.left_out}, seed {job.settings.seed}"


def _outcome(job: Job) -> str:
    if job.status == "failed":
        return f"FAILED: {job.reason}"
    result = job.result
    return percent(result.accuracy) if result is not None else job.status
