"""Temperature, prediction sets and familiarity, by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unseen.core.calibration import LEVELS, LOWEST, ODDS_BINS, TEMPERATURES, WIDTH, Calibration, log_odds
from unseen.core.errors import UserError
from unseen.core.files import read_sealed_json, write_sealed_json
from unseen.core.look import NUMBERS, Look


def calibration(counts: dict[int, int], clients: int = 2, temperature: float = 2.0) -> Calibration:
    odds = [counts.get(place, 0) for place in range(ODDS_BINS)]
    points = [float(level) for level in range(1, LEVELS + 1)]
    return Calibration(temperature, 0.1, 0.05, sum(odds), clients, odds, points)


def test_the_grid_holds_temperature_one() -> None:
    assert len(TEMPERATURES) == 31 and TEMPERATURES[12] == 1.0 and (TEMPERATURES[0], TEMPERATURES[-1]) == (0.25, 8.0)


def test_probabilities_are_of_logits_over_the_temperature() -> None:
    logits = np.array([[2.0, 0.0, 0.0], [800.0, 0.0, -800.0]])
    p = calibration({50: 9}).probabilities(logits)
    assert p[0] == pytest.approx(np.array([math.e, 1, 1]) / (math.e + 2))
    assert p[1] == pytest.approx([1, 0, 0])


def test_log_odds_also_where_the_probability_is_one_to_all_digits() -> None:
    odds = log_odds(np.array([[1.0, 2.0, 3.0], [100.0, 0.0, 0.0]]))
    p = np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum()
    assert odds[0] == pytest.approx(np.log(p / (1 - p)))
    assert odds[1, 0] == pytest.approx(100 - math.log(2))
    assert log_odds(np.array([[3.0, 1.0]]))[0] == pytest.approx([2.0, -2.0])


def test_the_threshold_is_the_pooled_quantile_of_lu_et_al() -> None:
    # 18 images of 2 clients: at 0.9, ceil(0.9 * 20) = 18 of them must be above; at 0.5, 10.
    own = calibration({80: 10, 60: 7, 40: 1})
    assert own.threshold(0.5) == LOWEST + WIDTH * 80 == 8.0
    assert own.threshold(0.55) == LOWEST + WIDTH * 60 == 3.0  # 11 are needed
    assert own.threshold(0.85) == 3.0  # 17
    assert own.threshold(0.9) == LOWEST + WIDTH * 40
    assert own.threshold(0.95) == -math.inf  # 19 of 18: nothing can be ruled out
    assert calibration({0: 1, 90: 17}).threshold(0.9) == -math.inf  # the lowest bin has no lower end
    with pytest.raises(UserError, match="between 0 and 1"):
        own.threshold(90)


def test_sets_hold_what_cannot_be_ruled_out_and_the_answer_always() -> None:
    own = calibration({60: 20})  # from log-odds 3.0 on
    logits = np.array([[5.0, 0.0, 0.0], [1.0, 0.9, 0.0], [9.0, 9.0, -9.0]])
    assert own.sets(logits, 0.5).tolist() == [[True, False, False], [True, False, False], [True, False, False]]
    wide = calibration({47: 20})  # from -0.25 on
    assert wide.sets(logits, 0.5).tolist() == [[True, False, False], [True, False, False], [True, True, False]]
    assert calibration({0: 20}).sets(logits, 0.9).all()


def test_content_is_unlike_below_the_lowest_five_percent_and_half_of_them_where_looks_are_known() -> None:
    own = calibration({50: 9})  # its points are 1, 2, ..., 99
    assert own.least_familiar == 5.0
    logits, looks = np.array([[4.9, 0.0], [5.0, -1.0], [0.0, 77.0]]), np.zeros((3, NUMBERS))
    assert own.unlike(own.strangeness(logits, looks)) == [("content",), (), ()]
    far = np.zeros((3, NUMBERS))
    far[1, 4] = 9.0
    site = Look([0.0] * NUMBERS, np.eye(NUMBERS)[np.triu_indices(NUMBERS)].tolist())
    known = replace(own, looks=[site], look_distance=[8 / 97.5 * level for level in range(1, LEVELS + 1)])
    assert known.least_familiar == 2.5 and known.furthest_look == pytest.approx(8)
    strange = known.strangeness(np.array([[2.4, 0.0], [2.4, 0.0], [2.6, 0.0]]), far)
    assert known.unlike(strange) == [("content",), ("look", "content"), ()]
    strange = known.strangeness(np.array([[50.0, 0.0], [2.5, 0.0], [99.0, 0.0]]), far)
    assert strange["content"] == pytest.approx([0, 1, -49 / 47.5]) and strange["look"] == pytest.approx([0, 9 / 8, 0])
    assert known.typical_look(strange["look"]) == 0.0 and known.typical_look([1.1, 1.1, 0.0]) == 0.99
    assert known.typical_look([4.05 / 8]) == 0.49, "49 of the points are at 4.02 and below"
    assert Calibration.from_json(json.loads(json.dumps(known.to_json()))) == known
    assert Calibration.from_json({**own.to_json(), "version": 1}).looks == []
    limited = {**own.to_json(), "version": 2, "looks": [{"mean": [0.0], "covariance": [1.0], "limit": 1.0}]}
    assert Calibration.from_json(limited).looks == []


def test_a_damaged_or_newer_record_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    own = calibration({50: 9})
    write_sealed_json(path, own.to_json())
    assert Calibration.from_json(read_sealed_json(path)) == own
    path.write_text(path.read_text().replace('"temperature": 2.0', '"temperature": 2.5'))
    with pytest.raises(UserError, match="damaged"):
        read_sealed_json(path)
    with pytest.raises(UserError, match="newer unseen"):
        Calibration.from_json({**own.to_json(), "version": 4})
