"""A model at a new site: what a labelled folder there says of it, in numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unseen.core.calibration import CONTENT, LOOK
from unseen.core.errors import UserError
from unseen.core.metrics import CalibrationCurve, Measured, calibration_curve, measured
from unseen.data.domains import index_site
from unseen.data.pictures import Converted
from unseen.runs.model import Read, Trained, find_images, read_files

if TYPE_CHECKING:
    from unseen.core.calibration import Numbers
    from unseen.core.metrics import Labels

VERSION = 1
UNLABELLED = "unlabelled"  # a folder beside the classes
FEWEST_LABELS = 30  # for prediction-powered inference: with fewer, a normal distribution promises too much
Z = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


@dataclass(frozen=True)
class Share:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PredictionPowered:
    """The accuracy by few labels and many predictions."""

    accuracy: Share
    unlabelled: int  # images without a label


@dataclass(frozen=True)
class Checked:
    """What `unseen check` found. Nothing but numbers: classes are in the model's order, and no file is named."""

    images: int
    unreadable: int  # files that were no images
    accuracy: Share  # with Wilson's interval
    measured: Measured
    curve: CalibrationCurve
    covers: float | None = None  # what the prediction sets should hold; None where the model has no calibration
    coverage: Share | None = None  # how many of them held the class, with Wilson's interval
    set_size: float | None = None  # classes in a set, on average
    unlike_training: float | None = None  # share of the images, in their look or their content
    unlike_look: float | None = None  # None where the model knows no looks
    unlike_content: float | None = None
    typical_look: float | None = None  # share of the known sites' images that look less strange than the typical one
    prediction_powered: PredictionPowered | None = None
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def wilson(right: int, count: int) -> Share:
    """A share and its interval by Wilson (1927): where the true share would make this one not unlikely."""
    if count < 1:
        raise ValueError("a share of nothing has no interval")
    share, z2 = right / count, Z * Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return Share(share, max(0.0, centre - half), min(1.0, centre + half))


def prediction_powered_mean(values: Numbers, guesses: Numbers, guesses_alone: Numbers) -> Share:
    """A mean with its interval by prediction-powered inference (Angelopoulos et al., Science 2023), tuned (PPI++, 2023).

    `values` and their `guesses` are of labelled images, `guesses_alone` of images without a label. The mean guess of these is
    corrected by the mean error on the labelled ones (the rectifier). Guesses count by as much as makes the interval shortest,
    from 0, where they say nothing of the values, to 1. The interval is the normal distribution's: for n of
    about 30 and more. It is right whatever the guesses are worth; good guesses make it short.
    """
    n, N = len(values), len(guesses_alone)
    if n < 2 or N < 2:
        raise UserError(f"Prediction-powered inference needs two images of each kind, not {n} labelled and {N} others.")
    spread = float(guesses.var(ddof=1))
    together = float(((guesses - guesses.mean()) * (values - values.mean())).sum()) / (n - 1)
    power = min(1.0, max(0.0, together / ((1 + n / N) * spread))) if spread else 0.0
    rectifier = power * guesses - values
    mean = float(power * guesses_alone.mean() - rectifier.mean())
    half = Z * math.sqrt(power**2 * guesses_alone.var(ddof=1) / N + rectifier.var(ddof=1) / n)
    return Share(mean, mean - half, mean + half)


def check(
    trained: Trained,
    folder: Path,
    *,
    coverage: float = 0.9,
    unlabelled: Path | None = None,
    broken: list[str] | None = None,
    converted: Converted | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """FOLDER/CLASS/*: the model on labelled images; with a folder `unlabelled` in it, or elsewhere, also by its images.

    Files that cannot be read are left out, counted, and named in the list `broken`.
    """
    index = index_site(folder, trained.classes, apart=(UNLABELLED,))
    files = [index.root / path for path in index.paths]
    place = unlabelled if unlabelled is not None else folder / UNLABELLED
    others = find_images(place) if unlabelled is not None or place.is_dir() else []
    bad: list[str] = [] if broken is None else broken
    seen, total = 0, len(files) + len(others)

    def read(some: list[Path]) -> Iterable[Read]:
        nonlocal seen
        for part in read_files(trained, some, bad, converted):
            seen += len(part.files)
            if progress is not None:
                progress(seen, total)
            yield part

    label_of = dict(zip(files, index.label.tolist(), strict=True))
    parts = list(read(files))
    if not parts:
        raise UserError(f"None of the images in {folder} can be read.")
    logits_NK = np.concatenate([part.logits for part in parts])
    looks_ND = np.concatenate([part.looks for part in parts])
    labels_N = np.array([label_of[file] for part in parts for file in part.files], dtype=np.int64)
    alone = [part.logits for part in read(others)] if others else []
    enough = bool(alone) and len(labels_N) >= FEWEST_LABELS
    powered = _powered(trained, logits_NK, labels_N, np.concatenate(alone)) if enough else None
    return checked(trained, logits_NK, looks_ND, labels_N, coverage, len(bad), powered)


def checked(
    trained: Trained,
    logits_NK: Numbers,
    looks_ND: Numbers,
    labels_N: Labels,
    coverage: float = 0.9,
    unreadable: int = 0,
    powered: PredictionPowered | None = None,
) -> Checked:
    """All numbers, from the logits and looks of labelled images."""
    p_NK = trained.probabilities(logits_NK)
    right = int((logits_NK.argmax(axis=1) == labels_N).sum())
    found = measured(p_NK, labels_N)
    if found is None:
        raise UserError("The model gives no numbers for these images: its weights may hold NaN.")
    holds = size = unlike = look = content = typical = None
    if trained.calibration is not None:
        sets_NK = trained.calibration.sets(logits_NK, coverage)
        holds = wilson(int(sets_NK[np.arange(len(labels_N)), labels_N].sum()), len(labels_N))
        size = float(sets_NK.sum(axis=1).mean())
        strange = trained.calibration.strangeness(logits_NK, looks_ND)
        unlike = float(np.any([value > 1 for value in strange.values()], axis=0).mean())
        content = float((strange[CONTENT] > 1).mean())
        if LOOK in strange:
            look, typical = float((strange[LOOK] > 1).mean()), trained.calibration.typical_look(strange[LOOK])
    return Checked(
        images=len(labels_N),
        unreadable=unreadable,
        accuracy=wilson(right, len(labels_N)),
        measured=found,
        curve=calibration_curve(p_NK, labels_N),
        covers=coverage if trained.calibration is not None else None,
        coverage=holds,
        set_size=size,
        unlike_training=unlike,
        unlike_look=look,
        unlike_content=content,
        typical_look=typical,
        prediction_powered=powered,
    )


def _powered(trained: Trained, logits_NK: Numbers, labels_N: Labels, alone_NK: Numbers) -> PredictionPowered | None:
    """The guess of "this image is classified right" is the model's own probability of its answer."""
    if len(alone_NK) < 2:
        return None
    right_N = (logits_NK.argmax(axis=1) == labels_N).astype(np.float64)
    guesses_N = trained.probabilities(logits_NK).max(axis=1)
    alone_N = trained.probabilities(alone_NK).max(axis=1)
    found = prediction_powered_mean(right_N, guesses_N, alone_N)
    return PredictionPowered(Share(*(min(1.0, max(0.0, v)) for v in asdict(found).values())), len(alone_NK))
