"""`unseen check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from unseen.cli.screen import UNREADABLE, errors, print_json, print_table, say, tell_unreadable

if TYPE_CHECKING:
    from unseen.experiments.check import Checked

EXAMPLE = "Example: unseen check runs/digits-none-fedavg-s0-1a2b3c4d labelled --out check"
WIDEST = 10  # classes whose confusion matrix fits a terminal
LONGEST = 10  # letters of a class's name there
MIXED_UP = 8  # pairs of classes that are named where it does not


def check(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="Labelled images: FOLDER/CLASS/*.")],
    unlabelled: Annotated[
        Path | None, typer.Option(help="More images, without labels. (default: FOLDER/unlabelled, if it is there)")
    ] = None,
    coverage: Annotated[float, typer.Option(help="How many prediction sets should hold the class.")] = 0.9,
    out: Annotated[Path, typer.Option(help="Folder for check.html and metrics.json.")] = Path("check"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, for another program.")] = False,
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
    from unseen.data.pictures import Converted, conversions
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
    for sentence in conversions(converted):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    page, metrics = write_check(found, trained, out)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, trained.classes)
        say(f"page: {page}", f"numbers: {metrics}")
    if broken:
        tell_unreadable(broken)
        raise typer.Exit(0 if skip_broken else UNREADABLE)


def _print(found: Checked, classes: Sequence[str]) -> None:
    from unseen.reports.check_page import rows

    print_table(
        ["measure", "value"],
        [[name, value] for name, value, _ in rows(found)],
        title=f"{found.images:,} labelled images",
        folded=["measure"],
    )
    confusion = found.measured.confusion
    if len(classes) <= WIDEST:
        short = [name[:LONGEST] for name in classes]
        print_table(
            ["true class", *short],
            [[name, *map(str, row)] for name, row in zip(short, confusion, strict=True)],
            title="columns: the answer",
            right=short,
        )
        return
    pairs = [(n, i, k) for i, row in enumerate(confusion) for k, n in enumerate(row) if n and i != k]
    most = sorted(pairs, key=lambda pair: -pair[0])[:MIXED_UP]
    print_table(
        ["true class", "answer", "images"],
        [[classes[i], classes[k], str(count)] for count, i, k in most],
        title="the most frequent mistakes",
        right=["images"],
    )
