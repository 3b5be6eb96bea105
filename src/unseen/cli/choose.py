"""`unseen choose`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.screen import errors, print_grid, print_json, say
from unseen.core.plan import HOW

EXAMPLE = (
    "Example: unseen choose --data folder --root SITES --out choice   then   "
    "unseen fit --data folder --root SITES --method auto"
)


@with_settings(without=("engine", "test_every", "server_selection"))
def choose(
    settings: dict[str, Any],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Candidates with commas. (default: fedavg, mixstyle and the systems of four papers)",
            rich_help_panel=WHAT,
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="0, or 0,3,7, or 0-2. (default: 0-1)", rich_help_panel=WHAT)] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="simplest: the simplest method within one standard error of the best; best: the best one.",
            rich_help_panel=WHAT,
        ),
    ] = "simplest",
    workers: Annotated[
        int | None, typer.Option(help="Runs at once. (default: one per core)", rich_help_panel=HOW)
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the runs, choice.json and the pages.", rich_help_panel=HOW)
    ] = Path("choice"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the candidates as JSON, for another program.", rich_help_panel=HOW)
    ] = False,
) -> None:
    """Find the method for your sites: each site is left out in turn, and the simplest good method wins.

    Good is: within one standard error of the best. The same command again goes on where it was stopped.
    """
    from unseen.api import choose as chosen
    from unseen.reports.choice import choice_grid

    words = shlex.join(["unseen", *sys.argv[1:]])
    asked: dict[str, Any] = {"methods": methods, "seeds": seeds, "rule": rule, "out": out, "workers": workers}
    try:
        found = chosen(**asked, command=words, progress=True, **settings)
    except KeyboardInterrupt:
        errors().print("Stopped; the same command goes on.", highlight=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json(found.rows())
        return
    print_grid(choice_grid(found))
    say(
        f"recommended: {found.recommended.label}",
        found.why,
        f"pages: {out / 'choice.html'}, {out / 'report.html'}",
        f"next: unseen fit ... --method auto --choice {out / 'choice.json'}",
    )
