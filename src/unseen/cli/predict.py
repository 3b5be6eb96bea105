"""`unseen predict`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track

from unseen.cli.screen import errors, results
from unseen.core.errors import UserError

if TYPE_CHECKING:
    from unseen.data.domains import Pixels
    from unseen.runs.model import Trained

EXAMPLE = "Example: unseen predict runs/digits-street-fedavg-s0-1a2b3c4d photos --out predictions.csv"
BATCH = 64
Row = tuple[str, str, str]


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
    from unseen.api import find_device
    from unseen.core.files import atomic
    from unseen.runs.model import load_trained

    files = find_images(images)
    trained = load_trained(directory, find_device(device))
    broken: list[str] = []
    rows = list(_classified(trained, images, files, broken if skip_broken else None))
    with atomic(out) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "class", "probability"))
        writer.writerows(rows)
    if broken:
        errors().print(f"left out {len(broken)} broken images: {', '.join(broken)}", markup=False, highlight=False)
    results().print(f"{len(rows):,} images classified; written to {out}", markup=False, highlight=False, soft_wrap=True)


def find_images(place: Path) -> list[Path]:
    """One image, or all below a folder, in an order that is the same everywhere."""
    from unseen.data.domains import SUFFIXES

    if not place.exists():
        raise UserError(f"There is no image or folder {place}.")
    files = (
        [place]
        if place.is_file()
        else [path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    )
    if not files:
        raise UserError(f"There are no images in {place}: they end in {', '.join(sorted(SUFFIXES))}.")
    return sorted(files)


def _classified(trained: Trained, place: Path, files: Sequence[Path], broken: list[str] | None) -> Iterator[Row]:
    """A row per image. Decoding runs ahead of the net by a batch."""
    console = errors()
    starts = range(0, len(files), BATCH)
    parts = [files[start : start + BATCH] for start in starts]
    if not console.is_terminal:
        console.print(f"classifying {len(files):,} images ...", highlight=False)
    shown = track(parts, "classifying", console=console, transient=True, disable=not console.is_terminal)
    with ThreadPoolExecutor(1) as ahead:
        waiting = ahead.submit(_decode, parts[0], trained.settings.image_size, broken)
        for number, _ in enumerate(shown):
            good, pixels = waiting.result()
            if number + 1 < len(parts):
                waiting = ahead.submit(_decode, parts[number + 1], trained.settings.image_size, broken)
            yield from _rows(trained, place, good, pixels)


def _decode(files: Sequence[Path], size: int, broken: list[str] | None) -> tuple[list[Path], list[Pixels]]:
    from unseen.data.store import decode

    good: list[Path] = []
    pixels: list[Pixels] = []
    for file in files:
        try:
            pixels.append(decode(file, size))
            good.append(file)
        except Exception as error:  # decoders raise all kinds for a broken file
            if broken is None:
                raise UserError(
                    f"The image {file} cannot be read ({error}); mend or delete it, or go on without such images with "
                    f"--skip-broken."
                ) from None
            broken.append(str(file))
    return good, pixels


def _rows(trained: Trained, place: Path, files: Sequence[Path], pixels: Sequence[Pixels]) -> Iterator[Row]:
    import numpy as np
    import torch

    if not files:
        return
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(torch.float32).div_(255)
    values, labels = trained.predict(x).max(dim=1)
    for file, value, label in zip(files, values.tolist(), labels.tolist(), strict=True):
        name = file.relative_to(place) if place.is_dir() else file
        yield name.as_posix(), trained.classes[label], f"{value:.6f}"
