"""`unseen run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import (
    budget,
    chosen_by,
    duration,
    errors,
    more_measures,
    percent,
    print_json,
    print_table,
    say,
    screen,
)
from unseen.core.errors import UserError
from unseen.core.plan import HOW
from unseen.runs.results import label_of
from unseen.runs.settings import NO_TARGET

if TYPE_CHECKING:
    from unseen.runs.directory import RunDirectory
    from unseen.runs.results import RunResult
    from unseen.runs.run import PlannedRun, Result

EXAMPLE = (
    "Example: unseen run --data digits --target street --method fedavg   ·   "
    "unseen run --protocol pacs-quick --root PACS --target all --seed 0-2 --method fedbn+fedprox --set mu=0.01"
)


@with_settings()
def run(
    settings: dict[str, Any],
    target: Annotated[
        str | None,
        typer.Option(help="The unseen domain: one, several with commas, `all`, or `none`.", rich_help_panel=WHAT),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="A method, or several as fedbn+fedprox. (default: fedavg)", rich_help_panel=WHAT)
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; repeatable.", rich_help_panel=WHAT),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="One seed, several as 0,1,2 or 0-2, or `all` of the protocol's.", rich_help_panel=WHAT),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes; the same bits for any number. (default: a process per core)", rich_help_panel=HOW
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run directories. (default: runs)", rich_help_panel=HOW)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this directory.", rich_help_panel=HOW)
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Also tell tensorboard, mlflow or wandb, if installed; repeatable.", rich_help_panel=HOW),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, for another program.", rich_help_panel=HOW)
    ] = False,
) -> None:
    """Train on all domains but one, and test on that one.

    The same command again goes on where it was stopped; a finished run is not run again. Settings that are not given
    are the protocol's.
    """
    if resume is None:
        place = out or Path("runs")
        run_all(
            target or "",
            "fedavg" if method is None else method,
            field or [],
            seed,
            settings,
            place,
            workers,
            log or [],
            as_json,
        )
        return
    given = {**settings, "target": target, "method": method, "set": field, "seed": seed, "out": out}
    if words := [name for name, value in given.items() if value]:
        option = words[0].replace("_", "-")
        raise UserError(f"--resume goes on with the run's own settings: leave out --{option}, or leave out --resume.")
    _run_each([_resumed(resume)], workers, log or [], as_json)


def run_all(
    target: str,
    method: str,
    field: list[str],
    seed: str | None,
    settings: dict[str, Any],
    out: Path,
    workers: int | None = None,
    log: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """A run per target and seed, one after the other, in the words of the command line."""
    _run_each(_planned(target, method, field, seed, settings, out), workers, log or [], as_json)


def _run_each(todo: list[tuple[PlannedRun, RunDirectory]], workers: int | None, log: list[str], as_json: bool) -> None:
    finished: list[Result] = []
    for number, (planned, directory) in enumerate(todo, 1):
        one = planned.settings
        which = f"run {number} of {len(todo)}: " if len(todo) > 1 else ""
        about = f"{one.method} on {one.data.name}, {one.left_out}, seed {one.seed}, {budget(one.plan)}"
        errors().print(which + about, markup=False, highlight=False, soft_wrap=True)
        finished.append(_run_one(planned, directory, workers, log))
        if not as_json:
            report(finished[-1])
    if as_json:
        print_json([{**one.record.to_json(), "directory": str(one.directory)} for one in finished])
    elif len(finished) > 1:
        table(finished)


def _planned(
    target: str, method: str, field: list[str], seed: str | None, settings: dict[str, Any], out: Path
) -> list[tuple[PlannedRun, RunDirectory]]:
    """A run per target and seed. Mistyped names are said before torch is loaded."""
    from unseen.methods import check_names
    from unseen.runs.protocols import protocol_named
    from unseen.runs.settings import check_settings

    check_names(method)
    protocol_named(settings.get("data"), settings.get("protocol"))
    check_settings(settings)
    from unseen.api import plan
    from unseen.runs.directory import RunDirectory
    from unseen.runs.planning import read_fields

    runs = plan(target=target, method=method, fields=read_fields(field), seed=seed, settings=settings)
    return [(one, RunDirectory.of(one.settings, out)) for one in runs]


def _resumed(path: Path) -> tuple[PlannedRun, RunDirectory]:
    """The run of a directory, whose config must still be the one that names it."""
    from unseen.runs.directory import RunDirectory, directory_for
    from unseen.runs.own_methods import recall
    from unseen.runs.run import PlannedRun

    directory = RunDirectory.open(path)
    settings = directory.settings()
    name = directory_for(settings, Path()).name
    if name != path.resolve().name:
        raise UserError(
            f"{path} holds a run of other arguments: its config.json belongs to a directory named {name}; "
            f"give it back its name or its config.json."
        )
    recall(directory.path, settings.method)
    return PlannedRun.of(settings), directory


def _run_one(planned: PlannedRun, directory: RunDirectory, workers: int | None, log: list[str]) -> Result:
    from unseen.api import carry_out
    from unseen.runs.progress import Watchers
    from unseen.runs.recorders import record

    shown = screen()
    recorders = record(log, directory.path, planned.settings)
    try:
        result = carry_out(planned, directory, workers=workers, watcher=Watchers(shown, *recorders))
        for recorder in recorders:
            recorder.finished(result.record)
    except KeyboardInterrupt:
        shown.close()
        shown.said(
            f"Stopped; the same command, or `unseen run --resume {directory.path}`, goes on after the last finished round."
        )
        raise typer.Exit(130) from None
    finally:
        shown.close()
        for recorder in recorders:
            recorder.close()
    if not shown.started:
        shown.said("This run was finished before; here is its result.")
    return result


def report(result: Result) -> None:
    """What a run ends with."""
    about = result.record
    kept = f"round {about.selected_round} of {about.rounds}, selection: {chosen_by(about.selection)}"
    say(
        f"trained on all domains; {kept}"
        if about.target == NO_TARGET
        else f"unseen accuracy {percent(about.accuracy)} on {about.target}{about.mark}; {kept}",
        *filter(None, [about.as_run, more_measures(about)]),
        f"in-domain accuracy {percent(about.in_domain_accuracy)} on the sources' {about.in_domain_images} images",
        about.ledger,
        *([_privacy(about)] if about.epsilon is not None else []),
        f"{duration(about.seconds)}; written to {result.directory}",
        f"next: unseen show {result.directory}   or   unseen predict {result.directory} IMAGES --out predictions.csv",
    )


def _privacy(about: RunResult) -> str:
    return (
        f"differential privacy of a site's images as a whole: epsilon {about.epsilon:.3g} for delta {about.delta:g}, over "
        f"{about.rounds} rounds"
    )


def table(finished: list[Result]) -> None:
    """Targets by rows, and the mean over targets and seeds."""
    first = finished[0].record
    columns = ["unseen domain", "seeds", "unseen accuracy", "in-domain accuracy"]
    parts = {target: [r for r in finished if r.record.target == target] for target in _targets(finished)}
    cells = [
        [name, str(len(own)), _mean(r.accuracy for r in own), _mean(r.in_domain_accuracy for r in own)]
        for name, own in [*parts.items(), ("mean", finished)]
    ]
    title = f"{label_of(finished[0].settings, first.remark)} on {first.data}, protocol {first.protocol}{first.mark}"
    print_table(columns, cells, title=title, right=columns[1:])


def _targets(finished: list[Result]) -> list[str]:
    return list(dict.fromkeys(r.record.target for r in finished))


def _mean(values: Any) -> str:
    numbers = [value for value in values if value is not None]
    return percent(sum(numbers) / len(numbers)) if numbers else "-"
