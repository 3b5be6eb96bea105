"""`unseen fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.options import WHAT, with_settings
from unseen.cli.run import run_all
from unseen.cli.screen import errors
from unseen.core.plan import HOW
from unseen.runs.settings import NO_TARGET

EXAMPLE = "Example: unseen fit --data folder --root SITES --method fedfd-a --out models"


@with_settings()
def fit(
    settings: dict[str, Any],
    method: Annotated[
        str,
        typer.Option(
            help="A method, or several as fedbn+fedprox; auto: the one that `unseen choose` found.",
            rich_help_panel=WHAT,
        ),
    ] = "fedavg",
    choice: Annotated[
        Path | None,
        typer.Option(
            help="With --method auto: the choice.json to read. (default: that of --out, or choice/choice.json)",
            rich_help_panel=WHAT,
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; repeatable.", rich_help_panel=WHAT),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed.", rich_help_panel=WHAT)] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes; the same bits for any number. (default: a process per core)", rich_help_panel=HOW
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run directory.", rich_help_panel=HOW)] = Path("models"),
) -> None:
    """Train on all domains, nothing left out: the model for the next site.

    The round is kept by the sources' validation images. The same command again goes on where it was stopped.
    """
    fields = field or []
    if method == "auto":
        method, fields = _chosen(choice, out, fields)
    run_all(NO_TARGET, method, fields, str(seed), settings, out, workers=workers)


def _chosen(choice: Path | None, out: Path, fields: list[str]) -> tuple[str, list[str]]:
    from unseen.api import read_choice

    found = read_choice(choice, out)
    errors().print(f"auto: {found.method}. {found.why}", markup=False, highlight=False, soft_wrap=True)
    own = [f"{name}={','.join(map(str, v)) if isinstance(v, list) else v}" for name, v in found.fields.items()]
    return found.method, [*own, *fields]
