"""What a table says, in sentences. They say no more than the numbers do: no winner where runs are missing."""

from __future__ import annotations

import math

from unseen.core.terminal import percent
from unseen.experiments.collect import Group, Row
from unseen.experiments.statistics import LEAST_SEEDS, Comparison
from unseen.reports.names import titled
from unseen.reports.tables import lacking, p_value

MOST = 8  # comparisons that are said; the table has them all


def findings(group: Group, baseline: str | None = None) -> list[str]:
    """The best, each method against the baseline, how large chance is, and who sends more than weights."""
    said = []
    ranked = [row for row in group.best() if not math.isnan(group.average(row).mean)]
    if (missing := lacking(group)) and len(group.rows) > 1:
        said.append(f"{len(missing)} of {len(group.rows)} methods lack runs, so this page names no winner.")
    elif len(ranked) > 1:
        best, second = ranked[:2]
        ahead = group.average(best).mean - group.average(second).mean
        behind = f"follows {ahead:.1f} points behind" if round(ahead, 1) else "is level with it"
        said.append(
            f"{plain_name(best)} has the best mean over unseen domains, {group.average(best).mean:.1f} %; "
            f"{plain_name(second)} {behind}."
        )
    against = group.baseline(baseline)
    compared = sorted(group.comparisons(baseline).items(), key=lambda pair: -pair[1].difference)
    rows = {row.label: row for row in group.rows}
    said += [compared_sentence(rows[label], one, str(against)) for label, one in compared[:MOST]]
    if len(compared) > MOST:
        said.append(f"{len(compared) - MOST} more methods are in the table.")
    if against is not None and (apart := noise_floor(group, against)) is not None:
        said.append(
            f"{titled(against)} against itself: two seeds are {apart:.1f} points apart on the mean over unseen domains "
            "(root mean square). A smaller difference between two single runs means nothing."
        )
    elif len(group.seeds) < LEAST_SEEDS and len(group.rows) > 1:
        word = "seed" if len(group.seeds) == 1 else "seeds"
        said.append(f"There are runs of {len(group.seeds)} {word}: too few to say what is chance.")
    gap = _gap(ranked[0], group) if ranked else None
    if gap is not None:
        said.append(gap)
    more = [plain_name(row) for row in group.rows if row.sends]
    if more:
        said.append(f"{', '.join(more)} send{'s' if len(more) == 1 else ''} more than the model's weights.")
    return said


def plain_name(row: Row) -> str:
    """The method without its remark, which stands in the table: the sentence is about the method."""
    return titled(row.method) if row.is_default else titled(row.label)


def compared_sentence(row: Row, one: Comparison, against: str) -> str:
    """`FedFD-A is ahead of FedAvg by 9.2 points, 11 of 12 pairs (95 %: +7.1 to +11.0; p = 0.004)`."""
    if round(one.difference, 1) == 0:
        pairs = f"{one.pairs} pair{'s' if one.pairs > 1 else ''}"
        return f"{plain_name(row)} and {titled(against)} are level over {pairs} (less than 0.1 points apart)."
    ahead = one.difference > 0
    sure = []
    if not math.isnan(one.low):
        sure.append(f"95 %: {one.low:+.1f} to {one.high:+.1f}")
    if not math.isnan(one.corrected):
        sure.append(
            f"p {'' if p_value(one.corrected).startswith('<') else '= '}{p_value(one.corrected)} after Holm's correction"
        )
    beside = f" ({'; '.join(sure)})" if sure else " (too few seeds for an interval)"
    return (
        f"{plain_name(row)} is {'ahead of' if ahead else 'behind'} {titled(against)} by {abs(one.difference):.1f} points, "
        f"{'in' if ahead else 'ahead in'} {one.wins} of {one.pairs} pair{'s' if one.pairs > 1 else ''}{beside}."
    )


def noise_floor(group: Group, label: str) -> float | None:
    """How far two runs of a method are apart that differ in their seed alone."""
    row = next((row for row in group.rows if row.label == label), None)
    if row is None or len(group.seeds) < LEAST_SEEDS:
        return None
    std = group.average(row).std
    return None if math.isnan(std) else math.sqrt(2) * std


def _gap(best: Row, group: Group) -> str | None:
    outside, inside = group.average(best).mean, group.average(best, "in_domain_accuracy").mean
    if math.isnan(inside) or len(group.rows) < 2:
        return None
    lost = f"unseen domains cost {inside - outside:.1f} points"
    return f"On its sources {plain_name(best)} reaches {percent(inside / 100)}: {lost}."
