"""`unseen bench`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import budget, errors, in_terminal, print_grid, print_json, say
from unseen.core.plan import HOW

if TYPE_CHECKING:
    from unseen.experiments.grid import BenchPlan

EXAMPLE = (
    "Example: unseen bench --data digits --methods fedavg,silobn,fedfd,fedfd-a --targets all --seeds 0-2 --workers 2 "
    "--out bench"
)


@with_settings(without=("engine", "client_gpus"))
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
    known: Annotated[
        Path | None,
        typer.Option(
            help="Leave out runs that have a result in this folder, which need not have their models.",
            rich_help_panel=HOW,
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Also tell tensorboard, mlflow or wandb, if installed; repeatable.", rich_help_panel=HOW),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Also show how far it is as a page, on this machine only.", rich_help_panel=HOW),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the runs as JSON, for another program.", rich_help_panel=HOW)
    ] = False,
) -> None:
    """Run methods x targets x seeds, several at once, and print the table.

    The same command again goes on where it was stopped. More methods or seeds later run only what is new.
    """
    from unseen.api import check_workers, spare_workers
    from unseen.experiments import grid
    from unseen.experiments.board import board
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
    if known is not None:
        found = grid.leave_out_known(planned, known)
        errors().print(f"{len(found)} runs have a result in {known} and are left out", highlight=False, soft_wrap=True)
        if not planned.runs:
            if as_json:
                from unseen.experiments.collect import collect

                print_json(collect(known, found).rows())
            return
    jobs = grid.begin(planned, folder, shlex.join(["unseen", *sys.argv[1:]]))
    new = sum(job.status != "finished" for job in jobs)
    at_once = min(count or spare_workers(jobs[0].settings.plan.device), max(1, new))
    shown = board(jobs, at_once)
    shown.said(
        f"{len(jobs)} runs, {len(jobs) - new} of them finished before; {budget(jobs[0].settings.plan)}; "
        f"{at_once} at once; in {folder}"
    )
    options = [word for name in logs for word in ("--log", name)]
    try:
        with contextlib.ExitStack() as stack:
            if serve:
                from unseen.reports.live import serving

                shown.said(f"watch it at {stack.enter_context(serving(jobs, folder, at_once))}")
            failed = grid.run_jobs(jobs, at_once, shown, options)
    except KeyboardInterrupt:
        shown.close()
        shown.said("Stopped; the same command goes on, each run after its last finished round.")
        raise typer.Exit(130) from None
    finally:
        shown.close()
    if as_json:
        from unseen.experiments.collect import collect

        print_json(collect(folder).rows())
    else:
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
    from unseen.reports.tables import accuracy_grid, is_measured, measures_grid, statistics_grid, telling, write_tables

    collection = collect(folder)
    condition = condition_of(planned.runs[0].settings)
    for group in collection.groups:
        if group.condition == condition:
            print_grid(accuracy_grid(group))
            if is_measured(group):
                print_grid(measures_grid(group))
            if len(group.rows) > 1:
                print_grid(telling(statistics_grid(group, baseline)))
    write_tables(collection, folder / "tables", baseline)
    if in_terminal():
        say(f"tables: {folder / 'tables'}", f"next: unseen report {folder}")
