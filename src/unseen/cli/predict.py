"""`unseen predict`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from unseen.cli.screen import errors, results

EXAMPLE = "Example: unseen predict runs/digits-street-fedavg-s0-1a2b3c4d photos --out predictions.csv"


def predict(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    images: Annotated[Path, typer.Argument(help="An image, or a folder of images; folders below it are read too.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write: image, class, probability.")] = Path(
        "predictions.csv"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER or mps.")] = "auto",
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave broken images out, and list them.")] = False,
) -> None:
    """Classify images with the model of a run, by the method's own rule."""
    from unseen.api import predict as predicted
    from unseen.core.files import atomic
    from unseen.core.words import cell
    from unseen.runs.model import find_images

    count = len(find_images(images))
    broken: list[str] = []
    console = errors()
    if not console.is_terminal:
        console.print(f"classifying {count:,} images ...", highlight=False)
    found = predicted(directory, images, device=device, broken=broken if skip_broken else None)
    shown = track(found, "classifying", count, console=console, transient=True, disable=not console.is_terminal)
    rows = [(cell(one.image), cell(one.label), f"{one.probability:.6f}") for one in shown]
    with atomic(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "class", "probability"))
        writer.writerows(rows)
    if broken:
        errors().print(f"left out {len(broken)} broken images: {', '.join(broken)}", markup=False, highlight=False)
    results().print(f"{len(rows):,} images classified; written to {out}", markup=False, highlight=False, soft_wrap=True)
