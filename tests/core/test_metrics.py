"""Measures beside accuracy, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unseen.core.metrics import auroc, calibration_curve, measured

# Six images of three classes; class 2 has none of them, and one image is taken for it.
LABELS = np.array([0, 0, 0, 0, 1, 1])
PROBABILITIES = np.array(
    [
        [0.90, 0.05, 0.05],
        [0.80, 0.10, 0.10],
        [0.30, 0.10, 0.60],
        [0.20, 0.70, 0.10],
        [0.10, 0.80, 0.10],
        [0.55, 0.40, 0.05],
    ]
)


def test_all_measures_by_hand() -> None:
    found = measured(PROBABILITIES, LABELS)
    assert found is not None
    assert found.confusion == [[2, 1, 1], [1, 1, 0], [0, 0, 0]]
    # Class 0: precision 2/3, recall 2/4, F1 = 4/7. Class 1: precision 1/2, recall 1/2, F1 = 1/2. Class 2 has no images.
    assert found.macro_f1 == pytest.approx((4 / 7 + 1 / 2) / 2)
    assert found.balanced_accuracy == pytest.approx((2 / 4 + 1 / 2) / 2)
    # Class 0 against the rest, 8 pairs of (0.9, 0.8, 0.3, 0.2) and (0.1, 0.55): 4 + 2 (against 0.1, 0.55).
    # Class 1: (0.8, 0.4) against (0.05, 0.1, 0.1, 0.7): 4 + 3.
    assert found.auroc == pytest.approx((6 / 8 + 7 / 8) / 2)
    # All in bins of their own but the two of 0.8: (0.733, 0.8] holds both, both right.
    gaps = abs(1 - 0.9) + abs(2 - 1.6) + 0.6 + 0.7 + 0.55
    assert found.calibration_error == pytest.approx(gaps / 6)


def test_a_bin_holds_its_upper_end_and_gaps_in_it_cancel() -> None:
    probabilities = np.array([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.49, 0.30, 0.21], [1.0, 0.0, 0.0]])
    curve = calibration_curve(probabilities, np.array([0, 1, 0, 0]))
    assert [b for b, count in enumerate(curve.images) if count] == [4, 7, 14] and sum(curve.images) == 4
    # 0.5 (wrong: the first of equals is class 0) and 0.49 (right) share (7/15, 8/15].
    assert curve.right[7] == 1 and curve.confidence[7] == pytest.approx(0.99)
    assert curve.error == pytest.approx(((1 - 1 / 3) + 0.01 + 0) / 4)


def test_what_cannot_be_measured_is_said_to_be_nothing() -> None:
    assert measured(np.zeros((0, 3)), np.zeros(0, dtype=np.int64)) is None
    assert measured(np.full((2, 3), np.nan), np.array([0, 1])) is None
    assert auroc(PROBABILITIES[:4], LABELS[:4]) is None  # all of one class
    two = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    assert auroc(two, np.array([0, 1, 1])) == pytest.approx(1.0)
