"""The papers' ablations in small: does the proposal beat what it is compared with, as in the paper?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tables.kept import NOTHING, filled, made_by, main_group, row_of, top

from unseen.experiments.collect import Group
from unseen.experiments.published import TABLES
from unseen.experiments.statistics import Cell, compare


@dataclass(frozen=True)
class Tried:
    """A method with fields, and the name that its row has in the paper."""

    system: str
    method: str
    fields: dict[str, Any] = field(default_factory=dict)

    def scores(self, groups: Sequence[Group]) -> dict[Cell, float]:
        rows = (
            row for group in groups for row in group.rows if row.method == self.method and row.fields == self.fields
        )
        return {cell: score for row in rows for cell, score in row.scores().items()}


FEDFD, FEDFD_A = Tried("FedFD", "fedfd"), Tried("FedFD-A", "fedfd-a")
GPERXAN, STABLEFDG, FEDADG = Tried("gPerXAN", "gperxan"), Tried("StableFDG", "stablefdg"), Tried("FedADG", "fedadg")
AS_WRITTEN = {"variant": "paper", "generator_lr": 0.007, "discriminator_lr": 0.007}  # as in small-ablations.toml

# The paper's table, its proposal, and what the table compares it with.
CLAIMS: tuple[tuple[str, Tried, tuple[Tried, ...]], ...] = (
    (
        "FedFD-A Table 2",
        Tried("FedFD (u ~ U(0, 1))", "fedfd"),
        tuple(Tried(f"FedFD (u = {u:g})", "fedfd", {"u": [u, u]}) for u in (0.0, 1.0, 0.5)),
    ),
    (
        "FedFD-A Table 3",
        FEDFD,
        (
            Tried("SiloBN", "silobn"),
            Tried("SiloBN + FedProx", "silobn+fedprox"),
            Tried("MixStyle, CAL", "fedfd", {"second": "mixstyle"}),
        ),
    ),
    (
        "FedFD-A Table 3",
        FEDFD_A,
        (FEDFD, Tried("SiloBN, adapter", "adapter"), Tried("FedFD, BIN", "fedfd+bin"), Tried("FedFD, DSON", "fedfd+dson")),
    ),
    (
        "FedFD-A Table 9",
        Tried("FedFD-A (u ~ U(0, 1))", "fedfd-a"),
        tuple(
            Tried(f"FedFD-A (u ~ U({low:g}, {high:g}))", "fedfd-a", {"u": [low, high]})
            for low, high in ((0.0, 0.5), (0.5, 1.0), (-0.1, 1.1))
        ),
    ),
    (
        "gPerXAN Table 4",
        GPERXAN,
        (Tried("guide", "guide"), Tried("guide + I-BN", "guide+ibn"), Tried("guide + DSON", "guide+dson")),
    ),
    (
        "StableFDG Table 3",
        STABLEFDG,
        (
            Tried("MixStyle", "mixstyle"),
            Tried("DSU", "dsu"),
            Tried("StableFDG (only style)", "stablefdg", {"style_only": True}),
            Tried("StableFDG (only attention)", "stablefdg", {"attention_only": True}),
        ),
    ),
    (
        "StableFDG Table 9",
        Tried("StableFDG (random)", "stablefdg"),
        (Tried("StableFDG (largest distance)", "stablefdg", {"sharing": "distance"}),),
    ),
    (
        "StableFDG Table 11",
        Tried("StableFDG (k-means++)", "stablefdg"),
        (Tried("StableFDG (random)", "stablefdg", {"keeping": "random"}),),
    ),
    (
        "FedADG Table 8",
        FEDADG,
        tuple(
            Tried(f"FedADG ({words})", "fedadg", {"reference": name})
            for words, name in (("normal", "normal"), ("uniform", "uniform"), ("Laplace", "laplace"))
        ),
    ),
    (
        "FedADG Figure 5",
        Tried("FedADG", "fedadg", AS_WRITTEN),
        (
            Tried("without one-hot", "fedadg", AS_WRITTEN | {"one_hot": 0.0}),
            Tried("without RP", "fedadg", AS_WRITTEN | {"projection": "none"}),
            Tried("without G and D", "fedadg", AS_WRITTEN | {"adversarial": False}),
        ),
    ),
)  # fmt: skip


def published(source: str, system: str) -> float:
    """A system's average in a paper's table, on PACS; nan where it cannot be read (Figure 5 has bars, no numbers)."""
    tables = [one for one in TABLES if one.source == source and one.data == "pacs"]
    return next((row.average for one in tables for row in one.rows if row.system == system), math.nan)


def verdict(theirs: float, low: float, high: float) -> str:
    """Ours is told from zero by its interval; the paper's direction is its sign, ahead where it cannot be read."""
    if math.isnan(low) or low <= 0 <= high:
        return "cannot tell"
    return "agrees" if (low > 0) == (math.isnan(theirs) or theirs > 0) else "**disagrees**"


def ablations(name: str) -> str:
    """Every comparison that a paper's ablation makes: its difference, ours with an interval, and a verdict."""
    group, flagship = main_group(f"ablations/{name}"), main_group(name)
    if group is None:
        return NOTHING
    # What the flagship table has is not run again for the ablations, which are of some of its targets.
    groups = [group] if flagship is None or flagship.condition != group.condition else [flagship, group]
    cells_here = {cell for row in group.rows for cell in row.results}
    targets = [target for target in group.targets if target in {unseen for unseen, _ in cells_here}]
    lines = top(["paper", "proposal", "against", "paper, PACS", "here", "95 % interval", "wins", "verdict"], 3)
    for source, proposal, others in CLAIMS:
        for other in others:
            found = {"proposal": proposal.scores(groups), "other": other.scores(groups)}
            scores = {side: {c: v for c, v in own.items() if c[0] in targets} for side, own in found.items()}
            one = compare(scores, "other").get("proposal")
            if one is None:
                continue
            theirs = published(source, proposal.system) - published(source, other.system)
            cells = [source, proposal.system, other.system, "-" if math.isnan(theirs) else f"{theirs:+.1f}"]
            cells += [f"{one.difference:+.1f}", "-" if math.isnan(one.low) else f"{one.low:+.1f} to {one.high:+.1f}"]
            lines.append(row_of([*cells, f"{one.wins}/{one.pairs}", verdict(theirs, one.low, one.high)]))
    seeds = ", ".join(map(str, sorted({seed for _, seed in cells_here})))
    note = (
        f"Points by which the proposal is ahead. Here: `{name}`, unseen {', '.join(targets)}, seeds {seeds}, paired; "
        "the interval is a bootstrap over seeds. Agrees: the interval lies on the paper's side of zero; disagrees: on the "
        "other; cannot tell: it holds zero. The papers' numbers are averages on PACS with larger nets. `unseen bench --file "
        f"benchmarks/paper/small-ablations.toml --targets {','.join(targets)} --seeds {seeds.replace(' ', '')} --out OUT`; "
        f"{made_by(group)}."
    )
    return "\n".join([*lines, "", filled(note)]) + "\n"
