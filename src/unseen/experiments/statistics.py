"""Numbers over seeds and targets: means with intervals, ranks, and paired comparisons with a baseline.

The paired test is Wilcoxon's signed-rank test, two-sided, over all pairs (target, seed) that a method and the baseline
both have: accuracies of different targets are on different scales, so that differences are not normal. Its p-values are
Holm's, corrected for all methods compared in a table, or for those of each family that was named before. Pairs of one
target share that target's images, so that a small p says "the same way on these targets", not "on any domain".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

Cell = tuple[str, int]  # a target and a seed
LEAST_SEEDS = 3  # for an interval: from two numbers it would say nothing, and look as if it did
LEAST_PAIRS = 6  # for a p-value: with fewer, no signed-rank test can fall below 0.05


@dataclass(frozen=True)
class Summary:
    """Several measurements of one thing. With one of them there is no spread: nan."""

    mean: float
    std: float  # of the sample: n - 1
    half_width: float  # of the 95 % interval of the mean, by Student's t; nan with fewer than LEAST_SEEDS
    count: int


def summarise(values: Iterable[float]) -> Summary:
    """Mean, standard deviation and 95 % interval."""
    numbers = [value for value in values if math.isfinite(value)]
    count = len(numbers)
    if count == 0:
        return Summary(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(numbers) / count
    if count == 1:
        return Summary(mean, math.nan, math.nan, 1)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in numbers) / (count - 1))
    half_width = _student(count - 1) * std / math.sqrt(count) if count >= LEAST_SEEDS else math.nan
    return Summary(mean, std, half_width, count)


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def average_over_targets(scores: Mapping[Cell, float], targets: Sequence[str]) -> Summary:
    """The mean over targets of each seed that has all of them, then over these seeds. A missing target is no average.

    Where no seed has all targets, but every target has a seed: the mean of the targets' means, without a spread.
    """
    seeds = sorted({seed for _, seed in scores})
    whole = [seed for seed in seeds if all((target, seed) in scores for target in targets)]
    if whole and targets:
        return summarise(math.fsum(scores[target, seed] for target in targets) / len(targets) for seed in whole)
    means = [summarise(scores[target, seed] for seed in seeds if (target, seed) in scores).mean for target in targets]
    if not means or any(math.isnan(mean) for mean in means):
        return summarise([])
    return Summary(math.fsum(means) / len(means), math.nan, math.nan, 1)


def worst_over_targets(scores: Mapping[Cell, float], targets: Sequence[str]) -> Summary:
    """The lowest target of each seed that has all of them, then the mean over these seeds."""
    seeds = sorted({seed for _, seed in scores})
    whole = [seed for seed in seeds if all((target, seed) in scores for target in targets)]
    return summarise(min(scores[target, seed] for target in targets) for seed in whole)


def average_ranks(scores: Mapping[str, Mapping[Cell, float]]) -> dict[str, float]:
    """Each method's mean rank (1 is best, ties share) over the pairs of target and seed that all methods have."""
    shared = set.intersection(*(set(own) for own in scores.values())) if scores else set()
    ranks: dict[str, list[float]] = {name: [] for name in scores}
    for cell in sorted(shared):
        for name in scores:
            own = scores[name][cell]
            above = sum(other[cell] > own for other in scores.values())
            level = sum(other[cell] == own for other in scores.values())
            ranks[name].append(above + (level + 1) / 2)
    return {name: math.fsum(own) / len(own) if own else math.nan for name, own in ranks.items()}


@dataclass(frozen=True)
class Comparison:
    """A method against the baseline over the pairs that both have."""

    difference: float  # mean, method - baseline
    wins: int
    losses: int
    pairs: int
    p: float  # two-sided, of this comparison alone; nan with fewer than LEAST_PAIRS
    corrected: float  # Holm's, for all comparisons of the table or of the family
    low: float = math.nan  # 95 % interval of the difference, by a bootstrap over seeds; nan with too few
    high: float = math.nan


def compare(
    scores: Mapping[str, Mapping[Cell, float]], baseline: str, family: Callable[[str], object] = lambda name: None
) -> dict[str, Comparison]:
    """Every other method against the baseline; p-values are corrected for the methods of the same family."""
    found: dict[str, Comparison] = {}
    for name, own in scores.items():
        if name == baseline or baseline not in scores:
            continue
        shared = sorted(set(own) & set(scores[baseline]))
        differences = [own[cell] - scores[baseline][cell] for cell in shared]
        if not differences:
            continue
        wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
        paired = dict(zip(shared, differences, strict=True))
        mean = _mean_over_targets(paired)
        low, high = bootstrap_interval(paired)
        p = signed_rank(differences) if len(differences) >= LEAST_PAIRS else math.nan
        found[name] = Comparison(mean, wins, losses, len(shared), p, math.nan, low, high)
    families: dict[object, list[str]] = {}
    for name in found:
        families.setdefault(family(name), []).append(name)
    for names in families.values():
        for name, p in zip(names, holm([found[name].p for name in names]), strict=True):
            found[name] = replace(found[name], corrected=p)
    return found


def _by_target(differences: Mapping[Cell, float]) -> list[list[float]]:
    found: dict[str, list[float]] = {}
    for (target, _), value in sorted(differences.items()):
        found.setdefault(target, []).append(value)
    return list(found.values())


def _mean_over_targets(differences: Mapping[Cell, float]) -> float:
    """Each target counts the same, whatever seeds it has: what the bootstrap draws anew."""
    targets = _by_target(differences)
    return math.fsum(math.fsum(values) / len(values) for values in targets) / len(targets)


DRAWS = 10_000  # of a bootstrap


def bootstrap_interval(differences: Mapping[Cell, float]) -> tuple[float, float]:
    """A 95 % interval of the mean over targets: seeds are drawn anew within each target, targets stay as they are.

    The targets of a dataset are not a sample of anything, so what is uncertain is the seed. (nan, nan) if a target has
    fewer than LEAST_SEEDS. The same differences give the same interval.
    """
    targets = _by_target(differences)
    if not targets or min(map(len, targets)) < LEAST_SEEDS:
        return math.nan, math.nan
    dice = np.random.default_rng(0)
    means = np.zeros(DRAWS)
    for values in targets:
        drawn = dice.integers(len(values), size=(DRAWS, len(values)))
        means += np.asarray(values)[drawn].mean(axis=1) / len(targets)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


EXACT = 20  # differences up to which every assignment of signs is counted


def signed_rank(differences: Sequence[float]) -> float:
    """Wilcoxon's p-value, two-sided. Zeros are left out (Wilcoxon's own way); no difference at all gives 1.

    Exact, ties included, up to `EXACT` differences; by the normal approximation above.
    """
    numbers = [d for d in differences if d != 0 and math.isfinite(d)]
    if not numbers:
        return 1.0
    ranks = _ranks([abs(d) for d in numbers])
    positive = sum(rank for rank, d in zip(ranks, numbers, strict=True) if d > 0)
    if len(numbers) > EXACT:
        from scipy.stats import wilcoxon

        return float(wilcoxon(numbers, method="asymptotic").pvalue)
    # Twice the ranks are whole numbers, also with ties: the distribution of their sum by adding one rank at a time.
    doubled = [round(2 * rank) for rank in ranks]
    ways = [1] + [0] * sum(doubled)
    for rank in doubled:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    observed = round(2 * positive)
    tail = min(sum(ways[: observed + 1]), sum(ways[observed:]))
    return float(min(1.0, 2 * tail / 2 ** len(numbers)))


def _ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; ties share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given. A nan is no test: it stays one and does not count."""
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    corrected = [math.nan] * len(p_values)
    largest = 0.0
    for position, i in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - position) * p_values[i]))
        corrected[i] = largest
    return corrected
