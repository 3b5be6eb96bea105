"""Means, intervals, ranks and paired tests, against answers written out by hand or by SciPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unseen.experiments.statistics import (
    average_over_targets,
    average_ranks,
    bootstrap_interval,
    compare,
    holm,
    signed_rank,
    summarise,
)


def test_mean_deviation_and_interval_of_three_seeds() -> None:
    found = summarise([80.0, 82.0, 84.0])
    assert (found.mean, found.std, found.count) == (82.0, 2.0, 3)
    assert found.half_width == pytest.approx(4.302653 * 2.0 / math.sqrt(3), rel=1e-6)  # t with 2 degrees of freedom


def test_one_seed_has_no_spread_and_none_has_no_mean() -> None:
    assert summarise([5.0]).mean == 5.0 and math.isnan(summarise([5.0]).std)
    assert summarise([]).count == 0 and math.isnan(summarise([]).mean)
    assert summarise([1.0, math.nan]).count == 1


def test_the_average_is_over_targets_first_then_over_seeds() -> None:
    scores = {("a", 0): 10.0, ("b", 0): 20.0, ("a", 1): 30.0, ("b", 1): 40.0, ("a", 2): 99.0}
    found = average_over_targets(scores, ["a", "b"])  # seed 2 lacks b
    assert found.mean == 25.0 and found.count == 2
    assert found.std == pytest.approx(math.sqrt(200))  # of 15 and 35


def test_an_average_needs_every_target() -> None:
    assert average_over_targets({("a", 0): 10.0}, ["a", "b"]).count == 0
    apart = average_over_targets({("a", 0): 10.0, ("b", 1): 20.0}, ["a", "b"])
    assert apart.mean == 15.0 and math.isnan(apart.std)


def test_ranks_over_shared_cells_with_ties() -> None:
    scores = {
        "x": {("a", 0): 3.0, ("b", 0): 1.0, ("c", 0): 9.0},
        "y": {("a", 0): 2.0, ("b", 0): 1.0},
        "z": {("a", 0): 1.0, ("b", 0): 0.0},
    }
    assert average_ranks(scores) == {"x": (1 + 1.5) / 2, "y": (2 + 1.5) / 2, "z": 3.0}
    assert average_ranks({}) == {}
    assert math.isnan(average_ranks({"x": {("a", 0): 1.0}, "y": {}})["x"])


def test_signed_rank_of_all_positive_differences() -> None:
    assert signed_rank([1.0, 2.0, 3.0]) == pytest.approx(2 / 2**3)
    assert signed_rank([0.0, 0.0]) == 1.0
    assert signed_rank([]) == 1.0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
def test_signed_rank_counts_every_assignment_of_signs(values: list[int]) -> None:
    numbers = [v for v in values if v]
    if not numbers:
        assert signed_rank(values) == 1.0
        return
    ranks = stats.rankdata(np.abs(numbers))
    observed = ranks[np.array(numbers) > 0].sum()
    sums = [
        sum(r for r, up in zip(ranks, signs, strict=True) if up)
        for signs in itertools.product([0, 1], repeat=len(ranks))
    ]
    tail = min(sum(s <= observed + 1e-9 for s in sums), sum(s >= observed - 1e-9 for s in sums))
    assert signed_rank([float(v) for v in values]) == pytest.approx(min(1.0, 2 * tail / len(sums)))


def test_signed_rank_is_scipys_without_ties() -> None:
    numbers = [0.7, -0.2, 1.9, 2.4, -0.4, 3.1, 0.9, 1.2, -2.0, 0.1, 5.0, 1.1]
    assert signed_rank(numbers) == pytest.approx(stats.wilcoxon(numbers, method="exact").pvalue)
    many = list(np.random.default_rng(0).normal(0.4, 1, 40))
    assert signed_rank(many) == pytest.approx(stats.wilcoxon(many, method="asymptotic").pvalue)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_comparisons_are_paired_and_corrected() -> None:
    cells = [(target, seed) for target in "abcd" for seed in (0, 1)]
    base = {cell: 50.0 + i for i, cell in enumerate(cells)}
    scores = {
        "fedavg": base,
        "up": {c: v + 1 + i / 10 for i, (c, v) in enumerate(base.items())},
        "same": dict(base),
        "other": {},
    }
    found = compare(scores, "fedavg")
    assert set(found) == {"up", "same"}
    assert found["up"].wins == 8 and found["up"].losses == 0 and found["up"].pairs == 8
    assert found["up"].difference == pytest.approx(1.35)
    assert found["up"].p == pytest.approx(2 / 2**8) and found["up"].corrected == pytest.approx(4 / 2**8)
    assert found["same"].p == 1.0 and found["same"].corrected == 1.0
    assert compare(scores, "nobody") == {}


def test_families_are_corrected_apart() -> None:
    """What was asked before the runs keeps its p-value whatever else is compared beside it."""
    cells = [("a", seed) for seed in range(6)]
    scores = {"fedavg": dict.fromkeys(cells, 50.0)}
    scores |= {name: dict.fromkeys(cells, 51.0) for name in ("asked", "asked too", "beside", "beside too", "third")}
    found = compare(scores, "fedavg", family=lambda name: name.startswith("asked"))
    alone = 2 / 2**6
    assert found["asked"].p == found["beside"].p == pytest.approx(alone)
    assert found["asked"].corrected == found["asked too"].corrected == pytest.approx(2 * alone)
    assert found["beside"].corrected == pytest.approx(3 * alone)
    assert compare(scores, "fedavg")["asked"].corrected == pytest.approx(5 * alone)


def test_the_bootstrap_draws_seeds_within_targets() -> None:
    """Targets that differ from each other add nothing: only what seeds do within a target is uncertain."""
    steady = {(target, seed): value for target, value in (("a", 1.0), ("b", 9.0)) for seed in (0, 1, 3)}
    assert bootstrap_interval(steady) == pytest.approx((5.0, 5.0))
    # One target, seeds at 0, 2 and 4: of 27 equal draws, one has the mean 0 and one the mean 4 (3.7 % each).
    assert bootstrap_interval({("a", 0): 0.0, ("a", 1): 2.0, ("a", 2): 4.0}) == pytest.approx((0.0, 4.0))
    assert all(math.isnan(end) for end in bootstrap_interval({("a", 0): 0.0, ("a", 1): 2.0}))  # two say nothing
    assert bootstrap_interval(steady | {("b", 2): 3.0}) == bootstrap_interval(steady | {("b", 2): 3.0})
