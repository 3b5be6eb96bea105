"""`unseen report` and `unseen cost`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.screen import errors, print_grid, print_json, print_table, say
from unseen.core.errors import UserError
from unseen.core.words import megabytes

EXAMPLE = "Example: unseen report bench   ·   unseen report bench --tables   ·   unseen report before after"
COST_EXAMPLE = "Example: unseen cost --methods fedavg,fedfd,fedfd-a --backbone resnet18"


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="A folder of runs, such as the --out of `unseen bench`; several are set side by side."),
    ],
    tables: Annotated[bool, typer.Option("--tables", help="Print and write the tables only, no page.")] = False,
    target: Annotated[str | None, typer.Option(help="The unseen domain to look into. (default: the hardest)")] = None,
    insight: Annotated[
        bool, typer.Option(help="Run the models to show features, predictions, alphas and attention.")
    ] = True,
    baseline: Annotated[str | None, typer.Option(help="The method to compare with. (default: fedavg)")] = None,
    out: Annotated[Path | None, typer.Option(help="The page. (default: report.html in the folder)")] = None,
) -> None:
    """Write one self-contained page about all runs of a folder, and its tables as Markdown, CSV and LaTeX."""
    from unseen.api import report as written
    from unseen.experiments.collect import collect
    from unseen.reports.tables import grids, telling, write_tables

    if tables:
        if len(folders) > 1:
            raise UserError("--tables is of one folder; leave it out to compare several.")
        (folder,) = folders
        collection = collect(folder)
        write_tables(collection, folder / "tables", baseline)
        for group in collection.groups:
            for grid in grids(group, baseline):
                print_grid(telling(grid))
        say(f"tables: {folder / 'tables'}")
        return
    page = written(
        *folders,
        out=out,
        baseline=baseline,
        target=target,
        insight=insight,
        said=lambda sentence: errors().print(sentence, markup=False, highlight=False, soft_wrap=True),
    )
    size = page.stat().st_size / 1e6
    say(f"report: {page.resolve()} ({size:.1f} MB)")


def cost(
    methods: Annotated[str, typer.Option(help="Methods with commas, or all; fedavg is always measured beside them.")],
    backbone: Annotated[str, typer.Option(help="convnet, alexnet or a name of timm's.")] = "convnet",
    image_size: Annotated[int | None, typer.Option(help="Side of the images in px. (default: 32 or 224)")] = None,
    batch_size: Annotated[int, typer.Option(help="Images per step.")] = 32,
    classes: Annotated[int, typer.Option(help="Classes.")] = 7,
    bottleneck: Annotated[int | None, typer.Option(help="Width of a layer before the head.")] = None,
    steps: Annotated[int, typer.Option(help="Steps per measurement.")] = 3,
    repeats: Annotated[int, typer.Option(help="Measurements; the fastest counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")] = False,
) -> None:
    """Parameters, bytes per round, and step and inference time as ratios to FedAvg, measured side by side."""
    from unseen.experiments.cost import measure_costs
    from unseen.nets.backbones import usual_image_size

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
    if as_json:
        print_json([asdict(one) for one in found])
        return
    columns = ["method", "parameters", "step", "passes", "per pass", "inference", "up", "beyond weights", "down"]
    rows = [
        [
            one.method,
            f"{one.parameters:,}",
            f"{one.step_ratio:.2f}",
            "-" if one.passes is None else f"{one.passes:.3g}",
            "-" if one.per_pass is None else f"{one.per_pass:.2f}",
            f"{one.inference_ratio:.2f}",
            megabytes(one.bytes_up),
            megabytes(one.bytes_up_statistics),
            megabytes(one.bytes_down),
        ]
        for one in found
    ]
    base = found[0]
    print_table(
        columns,
        rows,
        title=f"cost on {backbone} at {size} px, batches of {batch_size}; times as ratios to fedavg, bytes per round",
        notes=[
            f"fedavg: {1e3 * base.step_seconds:.1f} ms a step and {1e3 * base.inference_seconds:.1f} ms for a batch in "
            "inference, on one thread",
            "passes: over a batch in a step, forward and backward (without backward: a third); per pass: the step by them",
            *(f"{one.method}: {one.remark}" for one in found if one.remark),
        ],
        right=columns[1:],
    )
