"""`unseen calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.screen import percent, say, screen

EXAMPLE = "Example: unseen calibrate runs/digits-street-fedavg-s0-1a2b3c4d"


def calibrate(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    workers: Annotated[int | None, typer.Option(help="Processes. (default: one per core)")] = None,
) -> None:
    """Calibrate the model of a finished run from its own data. New runs do so by themselves; those of earlier versions
    did not."""
    from unseen.api import calibrate as calibrated

    shown = screen()
    shown.said("measuring the validation images of all clients ...")
    found = calibrated(directory, workers=workers, watcher=shown)
    say(
        f"temperature {found.temperature:.3f}; calibration error of the {found.images:,} validation images of "
        f"{found.clients} clients {percent(found.error_before)} before, {percent(found.error_after)} after; "
        f"written to {directory / 'calibration.json'}"
    )
