"""`unseen evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.screen import Pace, errors, in_terminal, percent, print_grid, print_json, say
from unseen.core.errors import UserError

if TYPE_CHECKING:
    from unseen.experiments.inference_rules import Inference
    from unseen.runs.directory import RunDirectory
    from unseen.runs.results import EvaluationLine

EXAMPLE = (
    "Example: unseen evaluate runs/digits-street-fedavg-s0-1a2b3c4d --inference iabn --set k=3   ·   "
    "unseen evaluate bench --methods fedavg,fedfd --inference iabn,mixnorm,tbn:batch=1"
)


def evaluate(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run, or a folder of them.")],
    inference: Annotated[
        str,
        typer.Option(
            help="By which rule, with commas: own, iabn, mixnorm, fixed-alpha, random-alpha; those under which images "
            "influence each other: tbn, tsmobn, tent, sar, t3a, lame; or all. Fields follow a colon: tbn:batch=1."
        ),
    ] = "own",
    methods: Annotated[
        str | None, typer.Option(help="In a folder: the runs of these methods, with commas. (default: all)")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the rules that have it; repeatable."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Test what was tested before, too.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")] = False,
) -> None:
    """Test trained models on their unseen domains again, by other rules: for BatchNorm's statistics, or adapting.

    The same command again goes on where it was stopped.
    """
    from unseen.api import Evaluated, Evaluations, runs_to_evaluate, to_evaluate
    from unseen.experiments.inference import evaluate_run, read_rules
    from unseen.runs.planning import find_device, listed, read_fields

    rules = read_rules(inference, read_fields(field or []))  # a wrong word is said before a model is read
    where = find_device(device)
    runs = runs_to_evaluate(directory, listed(methods) if methods is not None else None)
    single = (directory / "config.json").exists()
    todo = to_evaluate(runs, rules, again)
    pace, refused = Pace(1, len(todo)), set[str]()
    _say(f"{len(todo)} tests; {len(runs) * len(rules) - len(todo)} more were done before")
    for number, (run, rule) in enumerate(todo, start=1):
        chosen = run.settings()
        try:
            found = evaluate_run(run, rule, where)
        except UserError as error:
            if single:
                raise
            if str(error) not in refused:
                _say(f"left out: {error}")
            refused.add(str(error))
            continue
        name = f"{chosen.method}, {chosen.left_out}, seed {chosen.seed}, by {rule.label}"
        _say(f"[{number}/{len(todo)}] {name}: {percent(found.accuracy)}  {pace.left(number)}")
    if as_json:
        tested = [Evaluated(run, rule, one) for run in runs for rule in rules if (one := _found(run, rule)) is not None]
        print_json(Evaluations(tested).rows())
    elif single:
        _print_run(runs[0], rules)
    elif refused and not any(run.evaluations() for run in runs):
        raise UserError(f"No run in {directory} could be tested. {next(iter(refused))}")
    else:
        _print_tables(directory)


def _found(run: RunDirectory, rule: Inference) -> EvaluationLine | None:
    return run.evaluations().get(rule.label)


def _say(sentence: str) -> None:
    errors().print(sentence, markup=False, highlight=False, soft_wrap=True)


def _print_run(run: RunDirectory, rules: Sequence[Inference]) -> None:
    result = run.result()
    for rule in rules:
        found = run.evaluations()[rule.label]
        fields = ", ".join(f"{name}={value}" for name, value in found.fields.items())
        words = rule.name + (f" ({fields})" if fields else "")
        own = "" if rule.name == "own" or result is None else f"; by the method's own rule {percent(result.accuracy)}"
        also = f"; an answer depends on {found.depends}" if found.depends else ""
        say(f"unseen accuracy {percent(found.accuracy)} by {words}, {found.examples:,} images{own}{also}")


def _print_tables(folder: Path) -> None:
    from unseen.experiments.collect import collect
    from unseen.reports.tables import inference_grid, write_tables

    collection = collect(folder)
    for group in collection.groups:
        if (grid := inference_grid(group)) is not None:
            print_grid(grid)
    write_tables(collection, folder / "tables")
    if in_terminal():
        say(f"tables: {folder / 'tables'}", f"next: unseen report {folder}")
