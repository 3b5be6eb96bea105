"""`unseen tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import errors, in_terminal, percent, print_table, say
from unseen.core.plan import HOW

EXAMPLE = (
    "Example: unseen tune --data digits --methods fedavg,fedprox,moon --targets all --out tuned   then   "
    "unseen bench --data digits --methods fedavg,fedprox,moon --tuned tuned/choices.json --seeds 0-2"
)


@with_settings(without=("engine", "client_gpus"))
def tune(
    settings: dict[str, Any],
    methods: Annotated[str, typer.Option(help="Methods with commas.", rich_help_panel=WHAT)],
    targets: Annotated[
        str, typer.Option(help="Domains that are left out in turn, with commas, or all.", rich_help_panel=WHAT)
    ] = "all",
    trials: Annotated[
        int, typer.Option(help="Trials per method and target: the default and random draws.", rich_help_panel=WHAT)
    ] = 5,
    workers: Annotated[
        int | None, typer.Option(help="Runs at once. (default: one per core)", rich_help_panel=HOW)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the trials and of choices.json.", rich_help_panel=HOW)] = Path(
        "tuned"
    ),
) -> None:
    """Choose each method's settings by its source images: the same small search for every method.

    The domain that is left out is never looked at. `unseen bench --tuned FILE` then runs what was chosen beside the
    defaults. The same command again goes on where it was stopped.
    """
    from unseen.methods import check_names

    names = [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        check_names(name)
    from unseen.api import check_workers, spare_workers
    from unseen.experiments.board import Following
    from unseen.experiments.tune import tune as search
    from unseen.runs.planning import Experiment

    experiment = Experiment.of(settings)
    shown = Following()
    count = check_workers(workers) or spare_workers(experiment.settings.plan.device)
    try:
        choices = search(
            experiment,
            names,
            experiment.targets(targets),
            out,
            trials=trials,
            workers=count,
            watching=shown,
            said=shown.said,
        )
    except KeyboardInterrupt:
        errors().print("Stopped; the same command goes on.", highlight=False)
        raise typer.Exit(130) from None
    rows = []
    for one in choices.chosen:
        full = {s.trial.label: s.score for s in reversed(one.scores)}
        rows.append(
            [one.method, one.target, one.trial.label, percent(full[one.trial.label]), percent(full.get("default"))]
        )
    columns = ["method", "unseen", "chosen", "validation", "of the default"]
    print_table(columns, rows, title="chosen by source validation", right=columns[3:], folded=("chosen",))
    if in_terminal():
        say(
            f"written to {out / 'choices.json'}",
            f"next: unseen bench --methods {methods} --tuned {out / 'choices.json'}",
        )
