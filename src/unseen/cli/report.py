"""`unseen report` and `unseen cost`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from unseen.cli.screen import errors, results
from unseen.core.errors import UserError

if TYPE_CHECKING:
    from unseen.bench.collect import Collection
    from unseen.runs.directory import RunDirectory

EXAMPLE = "Example: unseen report bench   ·   unseen report bench --tables   ·   unseen report bench --target sketch"
COST_EXAMPLE = "Example: unseen cost --methods fedavg,fedfd,fedfd-a --backbone resnet18"


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of runs, such as the --out of `unseen bench`.")],
    tables: Annotated[bool, typer.Option("--tables", help="Print and write the tables only, no page.")] = False,
    target: Annotated[str | None, typer.Option(help="The unseen domain to look into. (default: the hardest)")] = None,
    insight: Annotated[
        bool, typer.Option(help="Run the models to show features, predictions, alphas and attention.")
    ] = True,
    baseline: Annotated[str | None, typer.Option(help="The method to compare with. (default: fedavg)")] = None,
    out: Annotated[Path | None, typer.Option(help="The page. (default: report.html in the folder)")] = None,
) -> None:
    """Write one self-contained page about all runs of a folder, and its tables as Markdown, CSV and LaTeX."""
    from unseen.bench.collect import collect
    from unseen.report.page import write_page
    from unseen.report.tables import grids, terminal, write_tables

    collection = collect(folder)
    if not collection.groups:
        raise UserError(f"There are no finished runs in {folder}; `unseen bench --out {folder}` makes them.")
    write_tables(collection, folder / "tables", baseline)
    console = results()
    if tables:
        for group in collection.groups:
            for grid in grids(group, baseline):
                console.print(terminal(grid))
        console.print(f"tables: {folder / 'tables'}", markup=False, highlight=False, soft_wrap=True)
        return
    if insight:
        _look(collection, target)
    page = write_page(collection, out or folder / "report.html", baseline, target)
    size = page.stat().st_size / 1e6
    console.print(f"report: {page.resolve()} ({size:.1f} MB)", markup=False, highlight=False, soft_wrap=True)


def _look(collection: Collection, target: str | None) -> None:
    """Insight for one run of each method: the same target and seed for all. What cannot be had is said and left out."""
    from unseen.bench.insight import look_into
    from unseen.report.page import hardest

    for group in collection.groups:
        chosen = hardest(group) if target is None else target
        if target is not None and target not in group.targets:
            raise UserError(f'There is no run with the unseen domain "{target}"; there are {", ".join(group.targets)}.')
        for row in group.rows:
            runs: list[RunDirectory] = [run for (name, _), run in sorted(row.runs.items()) if name == chosen]
            if not runs:
                continue
            errors().print(f"looking into {row.label}, unseen {chosen}", markup=False, highlight=False)
            try:
                look_into(runs[0])
            except UserError as error:
                errors().print(f"left out: {error}", markup=False, highlight=False, soft_wrap=True)


def cost(
    methods: Annotated[str, typer.Option(help="Methods with commas, or all; fedavg is always measured beside them.")],
    backbone: Annotated[str, typer.Option(help="convnet, alexnet or a name of timm's.")] = "convnet",
    image_size: Annotated[int | None, typer.Option(help="Side of the images in px. (default: 32 or 224)")] = None,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 32,
    classes: Annotated[int, typer.Option(help="Classes.")] = 7,
    bottleneck: Annotated[int | None, typer.Option(help="Width of a layer before the head.")] = None,
    steps: Annotated[int, typer.Option(help="Steps per measurement.")] = 3,
    repeats: Annotated[int, typer.Option(help="Measurements; the fastest counts.")] = 5,
) -> None:
    """Parameters, bytes per round, and step and inference time as ratios to FedAvg, measured side by side."""
    from unseen.bench.cost import measure_costs
    from unseen.nets.backbones import usual_image_size
    from unseen.report.tables import megabytes

    names = [name.strip() for name in methods.split(",") if name.strip()]
    size = image_size or usual_image_size(backbone)
    found = measure_costs(
        names,
        backbone=backbone,
        image_size=size,
        batch_size=batch_size,
        classes=classes,
        bottleneck=bottleneck,
        steps=steps,
        repeats=repeats,
        said=lambda sentence: errors().print(sentence, markup=False, highlight=False),
    )
    view = Table(title=f"cost on {backbone} at {size} px, batches of {batch_size}; times as ratios to fedavg")
    for heading in (
        "method",
        "parameters",
        "step",
        "inference",
        "up per round",
        "of it beyond weights",
        "down per round",
    ):
        view.add_column(heading, justify="left" if heading == "method" else "right")
    for one in found:
        view.add_row(
            one.method,
            f"{one.parameters:,}",
            f"{one.step_ratio:.2f}",
            f"{one.inference_ratio:.2f}",
            megabytes(one.bytes_up),
            megabytes(one.bytes_up_statistics),
            megabytes(one.bytes_down),
        )
    results().print(view)
    base = found[0]
    results().print(
        f"fedavg: {1e3 * base.step_seconds:.1f} ms a step and {1e3 * base.inference_seconds:.1f} ms for a batch in "
        "inference, on one thread",
        highlight=False,
    )
