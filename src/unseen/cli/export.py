"""`unseen export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.screen import errors, say

EXAMPLE = (
    "Example: unseen export models/folder-none-fedavg-s0-1a2b3c4d --out packed   then   python packed/predict.py IMAGES"
)


def export(
    model: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("exported"),
    coverage: Annotated[
        float, typer.Option(help="How many prediction sets should hold the class, for images like those of training.")
    ] = 0.9,
) -> None:
    """Pack a model as ONNX with a script that needs no torch, its classes and a model card."""
    from unseen.api import export as pack

    errors().print("exporting, some seconds ...", highlight=False)
    place = pack(model, out, coverage=coverage)
    size = (place / "model.onnx").stat().st_size / 1e6
    say(
        f"wrote {place}: model.onnx ({size:.1f} MB), model.json, predict.py, pictures.py, look.py, README.md",
        f"next: python {place / 'predict.py'} IMAGES",
    )
