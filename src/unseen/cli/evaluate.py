"""`unseen evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.run import read_fields
from unseen.cli.screen import errors, percent, results

EXAMPLE = "Example: unseen evaluate runs/digits-street-fedavg-s0-1a2b3c4d --inference iabn --set k=3"


def evaluate(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    inference: Annotated[
        str, typer.Option(help="By which statistics: own, tbn, iabn, mixnorm, fixed-alpha or random-alpha.")
    ] = "own",
    field: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field of the rule; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER or mps.")] = "auto",
) -> None:
    """Test a run's model on its unseen domain again, by another rule for the statistics of its BatchNorms."""
    from unseen.api import find_device
    from unseen.bench.inference import evaluate_run, inference_of

    fields = read_fields(field or [])
    inference_of(inference, fields)  # a wrong word is said before a model is read
    errors().print(f"testing {directory} by {inference} ...", markup=False, highlight=False, soft_wrap=True)
    found = evaluate_run(directory, inference, fields, find_device(device))
    spelled = ", ".join(f"{name}={value}" for name, value in found["fields"].items())
    rule = inference + (f" ({spelled})" if spelled else "")
    own = f"; by the method's own rule {percent(found['own'])}" if inference != "own" else ""
    results().print(
        f"unseen accuracy {percent(found['accuracy'])} by {rule}, {found['examples']:,} images{own}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
