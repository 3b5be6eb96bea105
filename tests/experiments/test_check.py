"""A model at a new site: intervals by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unseen.core.errors import UserError
from unseen.experiments.check import Z, prediction_powered_mean, wilson


def test_wilsons_interval_by_hand() -> None:
    # 8 of 10: centre (0.8 + z2 / 20) / (1 + z2 / 10), half width z / (1 + z2 / 10) * sqrt(0.016 + z2 / 400), z2 = 3.8415
    found = wilson(8, 10)
    assert (found.value, found.low, found.high) == (
        0.8,
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )
    assert wilson(10, 10).high == pytest.approx(1) and wilson(10, 10).low == pytest.approx(1 / (1 + Z * Z / 10))
    assert wilson(0, 10).low == pytest.approx(0)


def test_the_prediction_powered_mean_by_hand() -> None:
    values, guesses = np.array([1.0, 1.0, 0.0, 1.0]), np.array([0.9, 0.8, 0.6, 0.9])
    alone = np.array([0.8, 0.6, 0.9, 0.7, 0.5])
    found = prediction_powered_mean(values, guesses, alone)
    # Guesses vary by 0.02 around 0.8, and by 0.2 / 3 with the values: 0.2 / 3 / (1.8 * 0.02) is above 1, so they count whole.
    # The rectifier: -0.1, -0.2, 0.6, -0.1, with mean 0.05; the mean guess alone is 0.7.
    assert found.value == pytest.approx(0.65)
    spread = np.array([-0.15, -0.25, 0.55, -0.15])
    half = 1.959964 * math.sqrt(0.025 / 5 + (spread**2).sum() / 3 / 4)
    assert (found.low, found.high) == (pytest.approx(0.65 - half, abs=1e-6), pytest.approx(0.65 + half, abs=1e-6))
    # Guesses that say the opposite of the values count nothing: the plain mean is left.
    plain = prediction_powered_mean(values, 1 - guesses, alone)
    assert plain.value == 0.75 and plain.high - plain.low == pytest.approx(2 * 1.959964 * math.sqrt(0.25 / 4), abs=1e-6)
    # Half of the power: values 1, 1, 0, 0 and guesses 1, 0, 0, 0 vary together by 1 / 6, guesses by 1 / 4.
    half_known = prediction_powered_mean(np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 0, 0]), np.array([1.0, 0, 0, 1]))
    power = (1 / 6) / (2 * 0.25)
    assert half_known.value == pytest.approx(power * 0.5 + 0.5 - power * 0.25)
    with pytest.raises(UserError, match="not 1 labelled"):
        prediction_powered_mean(values[:1], guesses[:1], alone)


def test_good_guesses_make_the_interval_shorter_than_wilsons_and_it_holds_the_truth() -> None:
    """1,000 times 60 labels and 2,000 images without: the interval should hold the true accuracy in about 95 %."""
    rng = np.random.default_rng(0)
    held, shorter = 0, 0
    for _ in range(1000):
        sure = rng.beta(0.4, 0.15, 2060)  # near 0 or 1: a model that knows what it knows
        right = (rng.random(2060) < sure).astype(np.float64)
        found = prediction_powered_mean(right[:60], sure[:60], sure[60:])
        held += found.low <= 0.4 / 0.55 <= found.high
        plain = wilson(int(right[:60].sum()), 60)
        shorter += found.high - found.low < plain.high - plain.low
    assert 920 <= held <= 980 and shorter > 950
