"""How pictures look: the numbers by hand, distances by hand, and styles told apart without a net."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unseen.core.look import (
    FURTHEST,
    LARGEST,
    LEAST_SPREAD,
    NUMBERS,
    PAIRS,
    SHRUNK,
    SOFT,
    Look,
    look_of,
    moments,
    nearest,
    whitening,
)


def test_numbers_of_a_picture_by_hand() -> None:
    x = np.zeros((2, 3, 4, 4), dtype=np.float32)
    x[0, 0] = np.array([[1, 0, 1, 0]] * 4)  # red stripes, one pixel wide; the second picture is black
    found = look_of(x)
    assert found.shape == (2, NUMBERS) == (2, 35)
    bright = found[0, :5]
    assert bright == pytest.approx([0, 0, 1 / 6, 1 / 3, 1 / 3])
    mean, spread, down, across = found[0, 5:9]
    assert mean == pytest.approx(1 / 6) and spread == pytest.approx(math.log(SOFT + 1 / 6))
    assert down == pytest.approx(math.log(SOFT)) and across == pytest.approx(math.log(SOFT + 1 / 3))
    assert found[0, 9:11] == pytest.approx([math.log(SOFT)] * 2), "at half the size, stripes are grey"
    assert found[0, 15] == pytest.approx(0.5) and found[0, 25] == pytest.approx(-0.25), "red - green, blue - yellow"
    black = found[1]
    assert set(np.round(black, 9)) == {0.0, round(math.log(SOFT), 9)}


def test_no_number_is_larger_than_said() -> None:
    rng = np.random.default_rng(0)
    wild = np.concatenate([rng.integers(0, 2, (8, 3, 8, 8)), np.zeros((1, 3, 8, 8)), np.ones((1, 3, 8, 8))])
    wild[0, :, ::2], wild[0, :, 1::2] = np.array([1, 0, 0])[:, None, None], np.array([0, 1, 1])[:, None, None]
    assert np.abs(look_of(wild)).max() < LARGEST
    looks = look_of(wild)
    site = Look(*(values.tolist() for values in moments(looks[:1])))
    assert site.distance(looks).max() < FURTHEST


def test_distances_by_hand() -> None:
    covariance = np.eye(NUMBERS)
    covariance[0, 0], covariance[1, 1], covariance[0, 1], covariance[2, 2] = 4.0, 1.0, 1.6, 0.0
    packed = covariance[np.triu_indices(NUMBERS)].tolist()
    site = Look([1.0] + [0.0] * (NUMBERS - 1), packed)
    asked = np.zeros((3, NUMBERS))
    asked[0, 0], asked[1, :2], asked[2, [0, 2]] = 1.0, (3.0, 1.0), (1.0, LEAST_SPREAD * 3)
    # The correlation is 0.8, of which a fifth counts: [[1, 0.16], [0.16, 1]] for (1, 1) in spreads.
    counts = (1 - SHRUNK) * 0.8
    together = np.array([1.0, 1.0]) @ np.linalg.inv([[1, counts], [counts, 1]]) @ np.array([1.0, 1.0])
    assert site.distance(asked) == pytest.approx([0, math.sqrt(together), 3])
    far = Look([9.0] * NUMBERS, packed)
    assert nearest([far, site], asked) == pytest.approx(site.distance(asked))
    assert len(packed) == PAIRS


def test_a_covariance_that_is_none_does_no_harm() -> None:
    made_up = np.full((NUMBERS, NUMBERS), -20.0)
    np.fill_diagonal(made_up, 1.0)
    assert np.isfinite(whitening(made_up)).all()


def test_a_style_is_told_from_two_others() -> None:
    """Drawn textures: smooth and grey, smooth and red; noise of the same brightness is like neither."""
    rng = np.random.default_rng(1)

    def drawn(red: float, rough: float) -> np.ndarray:
        soft = np.kron(rng.random((90, 1, 4, 4)), np.ones((1, 3, 4, 4))) * 0.5
        soft[:, 0] += red * rng.random((90, 1, 1))
        return look_of(np.clip(soft + rough * rng.standard_normal(soft.shape), 0, 1))

    sites = [Look(*(values.tolist() for values in moments(drawn(red, 0.02)))) for red in (0.0, 0.5)]
    known = np.concatenate([nearest(sites, drawn(red, 0.02)) for red in (0.0, 0.5)])
    assert (nearest(sites, drawn(0.25, 0.3)) > np.quantile(known, 0.975)).mean() > 0.95
