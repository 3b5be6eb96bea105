"""`unseen predict`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track

from unseen.cli.screen import UNREADABLE, errors, print_json, say, tell_unreadable

if TYPE_CHECKING:
    from unseen.core.calibration import Calibration
    from unseen.runs.model import Prediction, Trained

EXAMPLE = "Example: unseen predict runs/digits-street-fedavg-s0-1a2b3c4d photos --coverage 0.95 --out predictions.csv"


def predict(
    directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")],
    images: Annotated[Path, typer.Argument(help="An image, or a folder of images; folders below it are read too.")],
    out: Annotated[
        Path | None, typer.Option(help="The CSV file to write. (default: predictions.csv; with --json none)")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="How many prediction sets should hold the class, for images like those of training.")
    ] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for another program.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER or mps.")] = "auto",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Files that cannot be read are no failure: exit code 0, not 3.")
    ] = False,
) -> None:
    """Classify images with the model of a run: all probabilities, a prediction set, and what is unlike training.

    Files that cannot be read are listed at the end, and the exit code is then 3.
    """
    from unseen.api import load
    from unseen.core.errors import UserError
    from unseen.data.pictures import Converted, conversions
    from unseen.runs.model import find_images, predict_files

    count, trained = len(find_images(images)), load(directory, device=device)
    console = errors()
    if trained.calibration is not None:
        trained.calibration.threshold(coverage)  # a wrong coverage is said before images are read
        if not trained.calibration.looks:
            console.print(
                "The calibration of this run knows no looks: it is of an earlier version, or the sites have few images. "
                f"Only by its content can an image be unlike training. `unseen calibrate {directory}` makes it anew.",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
    else:
        console.print(
            f"This run is of an earlier version and has no calibration: there are no prediction sets, and nothing is "
            f"said to be unlike training. `unseen calibrate {directory}` makes it, where the run's data is.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    if not console.is_terminal:
        console.print(f"classifying {count:,} images ...", highlight=False)
    broken: list[str] = []
    converted = Converted()
    found = predict_files(trained, images, broken, coverage, converted)
    shown = track(found, "classifying", count, console=console, transient=True, disable=not console.is_terminal)
    rows = list(shown)
    for sentence in conversions(converted):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    if not rows:
        raise UserError(f"None of the {count} files in {images} can be read as an image.")
    file = out if out is not None or as_json else Path("predictions.csv")
    if file is not None:
        _write_csv(file, trained, rows)
    if as_json:
        print_json(_document(trained, rows, coverage, broken))
    else:
        words = _unlike(rows, trained.calibration) if trained.calibration is not None else ""
        say(f"{len(rows):,} images classified{words}; written to {file}")
    if broken:
        tell_unreadable(broken)
        raise typer.Exit(0 if skip_broken else UNREADABLE)


def _unlike(rows: list[Prediction], calibration: Calibration) -> str:
    from unseen.core.calibration import CONTENT, LOOK

    total = sum(row.familiar is False for row in rows)
    looks = [row.look for row in rows if row.look is not None]
    if not looks:
        return f", {total:,} of them unlike training"
    counts = {name: sum(name in (row.unlike or ()) for row in rows) for name in (LOOK, CONTENT)}
    return (
        f", {total:,} of them unlike training ({counts[LOOK]:,} in look, {counts[CONTENT]:,} in content); the typical one "
        f"looks stranger than {100 * calibration.typical_look(looks):.0f} % of the images of the known sites"
    )


def _write_csv(file: Path, trained: Trained, rows: list[Prediction]) -> None:
    from unseen.core.files import atomic
    from unseen.core.words import cell

    with atomic(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text)
        names = [cell(f"p({name})") for name in trained.classes]
        writer.writerow(("image", "class", "probability", "set", "unlike training", "unlike in", *names))
        for row in rows:
            chosen = "" if row.set is None else cell("|".join(row.set))
            unlike = {None: "", True: "no", False: "yes"}[row.familiar]
            why = "|".join(row.unlike or ())
            numbers = [f"{p:.6f}" for p in row.probabilities.values()]
            writer.writerow((cell(row.image), cell(row.label), f"{row.probability:.6f}", chosen, unlike, why, *numbers))


def _document(trained: Trained, rows: list[Prediction], coverage: float, broken: list[str]) -> dict[str, object]:
    return {
        "classes": list(trained.classes),
        "coverage": coverage if trained.calibration is not None else None,
        "images": [
            {
                "image": row.image,
                "class": row.label,
                "probability": row.probability,
                "probabilities": list(row.probabilities.values()),
                "set": None if row.set is None else list(row.set),
                "unlike_training": None if row.familiar is None else not row.familiar,
                "unlike_in": None if row.unlike is None else list(row.unlike),
                "look": row.look,
            }
            for row in rows
        ],
        "unreadable": broken,
    }
