"""What a domain needs beside accuracy, from the probabilities of its images and their classes.

Every number of this kind is computed here: of a run's unseen domain, of an inference rule, of a folder at a new site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # numpy and scikit-learn are loaded by who has something to measure
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.float64]]
    Labels = np.ndarray[Any, np.dtype[np.int64]]

BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Measured:
    """A model on labelled images, as fractions. Means over classes are over those that have images there."""

    macro_f1: float
    balanced_accuracy: float  # the mean recall
    auroc: float | None  # each class against the rest, the mean; None where all images are of one class
    calibration_error: float  # expected, over 15 bins of the highest probability, all of one width
    confusion: list[list[int]]  # rows: the true class; columns: the predicted one


def measured(probabilities_NK: Numbers, labels_N: Labels) -> Measured | None:
    """All of them; None of no images, or of a model that gives no numbers."""
    import numpy as np
    from sklearn.metrics import confusion_matrix, f1_score

    if not len(labels_N) or not np.isfinite(probabilities_NK).all():
        return None
    predicted_N = probabilities_NK.argmax(axis=1)
    confusion = confusion_matrix(labels_N, predicted_N, labels=np.arange(probabilities_NK.shape[1]))
    there = np.flatnonzero(confusion.sum(axis=1))
    f1 = f1_score(labels_N, predicted_N, labels=there, average="macro", zero_division=0)
    recall = np.diag(confusion)[there] / confusion.sum(axis=1)[there]
    return Measured(
        macro_f1=float(f1),
        balanced_accuracy=float(recall.mean()),
        auroc=auroc(probabilities_NK, labels_N),
        calibration_error=calibration_curve(probabilities_NK, labels_N).error,
        confusion=confusion.tolist(),
    )


def auroc(probabilities_NK: Numbers, labels_N: Labels) -> float | None:
    """Each class that has images against the rest, the mean."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    classes = np.unique(labels_N)
    if len(classes) < 2:
        return None
    return float(np.mean([roc_auc_score(labels_N == k, probabilities_NK[:, k]) for k in classes]))


@dataclass(frozen=True)
class CalibrationCurve:
    """By bins of the highest probability: how many images, how many right, and the sum of that probability."""

    images: list[int]
    right: list[int]
    confidence: list[float]

    @property
    def error(self) -> float:
        """The mean over images of |share right - mean confidence| of their bin."""
        gaps = (abs(right - sure) for right, sure in zip(self.right, self.confidence, strict=True))
        return sum(gaps) / max(1, sum(self.images))


def calibration_curve(probabilities_NK: Numbers, labels_N: Labels) -> CalibrationCurve:
    """Bin b holds highest probabilities in (b / 15, (b + 1) / 15]."""
    import numpy as np

    confidence_N = probabilities_NK.max(axis=1)
    right_N = probabilities_NK.argmax(axis=1) == labels_N
    bin_N = np.clip(np.ceil(confidence_N * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return CalibrationCurve(
        images=np.bincount(bin_N, minlength=BINS).tolist(),
        right=np.bincount(bin_N, weights=right_N, minlength=BINS).astype(np.int64).tolist(),
        confidence=np.bincount(bin_N, weights=confidence_N, minlength=BINS).tolist(),
    )
