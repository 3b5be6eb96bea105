"""`unseen check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from unseen.cli.screen import UNREADABLE, errors, results, tell_unreadable

if TYPE_CHECKING:
    from unseen.experiments.check import Checked

EXAMPLE = "Example: unseen check runs/digits-none-fedavg-s0-1a2b3c4d labelled --out check"
WIDEST = 10  # classes whose confusion matrix fits a terminal
MIXED_UP = 8  # pairs of classes that are named where it does not


def check(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="Labelled images: FOLDER/CLASS/*.")],
    unlabelled: Annotated[
        Path | None, typer.Option(help="More images, without labels. (default: FOLDER/unlabelled, if it is there)")
    ] = None,
    coverage: Annotated[float, typer.Option(help="How many prediction sets should hold the class.")] = 0.9,
    out: Annotated[Path, typer.Option(help="Folder for check.html and metrics.json.")] = Path("check"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER or mps.")] = "auto",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Files that cannot be read are no failure: exit code 0, not 3.")
    ] = False,
) -> None:
    """Measure a model at a new site: how well it does on labelled images there, and how far to trust it.

    metrics.json has numbers only: it is all that needs to leave the site. Files that cannot be read are listed at the
    end, and the exit code is then 3.
    """
    from unseen.api import load, write_check
    from unseen.data.pictures import Converted, told
    from unseen.experiments.check import check as checked

    trained, console = load(directory, device=device), errors()
    broken: list[str] = []
    converted = Converted()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading images", total=None)
        found = checked(
            trained,
            folder,
            coverage=coverage,
            unlabelled=unlabelled,
            broken=broken,
            converted=converted,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for sentence in told(converted):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    results().print(_table(found))
    results().print(_confusion(found.measured.confusion, trained.classes))
    page, metrics = write_check(found, trained, out)
    results().print(f"page: {page}   numbers: {metrics}", markup=False, highlight=False, soft_wrap=True)
    if broken:
        tell_unreadable(broken)
        raise typer.Exit(0 if skip_broken else UNREADABLE)


def _table(found: Checked) -> Table:
    from unseen.reports.check_page import rows

    view = Table("measure", "value", title=f"{found.images:,} labelled images", title_justify="left")
    for name, value, _ in rows(found):
        view.add_row(name, value)
    return view


def _confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Table:
    """All of it for a few classes, the most frequent mistakes of many."""
    if len(classes) <= WIDEST:
        view = Table(title="rows: the true class; columns: the answer", title_justify="left", padding=(0, 0))
        view.add_column("", max_width=12, no_wrap=True)
        for name in classes:
            view.add_column(name, justify="right", max_width=5, no_wrap=True)
        for name, row in zip(classes, confusion, strict=True):
            view.add_row(name, *map(str, row))
        return view
    pairs = [(n, i, k) for i, row in enumerate(confusion) for k, n in enumerate(row) if n and i != k]
    view = Table("true class", "answer", "images", title="the most frequent mistakes", title_justify="left")
    for count, i, k in sorted(pairs, key=lambda pair: -pair[0])[:MIXED_UP]:
        view.add_row(classes[i], classes[k], str(count))
    return view
