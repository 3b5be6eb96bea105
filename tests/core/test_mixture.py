from __future__ import annotations

import pytest

from unseen.core.mixture import joined, on_simplex


def test_projection_by_hand() -> None:
    assert on_simplex({"a": 0.5, "b": 0.5}) == {"a": 0.5, "b": 0.5}
    assert on_simplex({"a": 0.6, "b": 0.8}) == pytest.approx({"a": 0.4, "b": 0.6})  # both are lowered by 0.2
    # By 0.45 all three would sum to 1, but c would be negative: a and b alone are lowered by 0.4.
    assert on_simplex({"a": 1.0, "b": 0.8, "c": 0.1}) == pytest.approx({"a": 0.6, "b": 0.4, "c": 0.0})
    assert on_simplex({"a": 5.0, "b": 0.2}) == {"a": 1.0, "b": 0.0}


def test_new_clients_get_the_mean_weight() -> None:
    assert joined({}, ["b", "a"]) == {"a": 0.5, "b": 0.5}
    assert joined({"a": 0.75, "b": 0.25}, ["c"]) == pytest.approx({"a": 0.5, "b": 1 / 6, "c": 1 / 3})
    assert joined({"a": 3.0, "b": 1.0}, ["a"]) == {"a": 0.75, "b": 0.25}  # divided by their sum
