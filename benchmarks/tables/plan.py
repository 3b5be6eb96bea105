"""How far the plan of runs is (benchmarks/plan.sh), by the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unseen.experiments.collect import BASELINE, Row

from .kept import RECORDS, SYSTEMS, records, row_of, top

Counts = Callable[[Row, int], bool]  # does a run of this row with this seed belong to the step?


@dataclass(frozen=True)
class Step:
    """One line of the plan: which runs it wants, and which records are its own."""

    protocol: str
    methods: str
    grid: str  # targets x seeds
    wanted: int
    minutes: str  # of one core for one run
    folders: tuple[str, ...]  # below benchmarks/results
    counts: Counts


def _six(seeds: range) -> Counts:
    """FedAvg and the papers' systems, with the fields that the protocol's main table has."""
    return lambda row, seed: seed in seeds and row.method in (BASELINE, *SYSTEMS) and row.is_default


def _six_on_pacs(seeds: range) -> Counts:
    """gPerXAN with its softer start, as plan.sh has it."""
    gentle = {"variant": "gentle"}
    six = _six(seeds)
    return lambda row, seed: (
        (seed in seeds and row.fields == gentle) if row.method == "gperxan" else six(row, seed)
    )  # fmt: skip


def _other(row: Row, seed: int) -> bool:
    return row.method not in (BASELINE, *SYSTEMS)


def _variant(row: Row, seed: int) -> bool:
    return row.method in SYSTEMS and not row.is_default


def _more_on_pacs(row: Row, seed: int) -> bool:
    return not _six_on_pacs(range(100))(row, seed)


def _all(row: Row, seed: int) -> bool:
    return True


STEPS = (
    Step("digits", "FedAvg, FedFD, FedFD-A, gPerXAN, StableFDG, FedADG", "4 x 3", 72, "0.6 to 2", ("digits",), _six(range(3))),
    Step("pacs", "the same six", "4 x 1", 24, "3 to 9", ("pacs",), _six_on_pacs(range(1))),
    Step("digits", "all other methods", "4 x 1", 204, "0.6 to 2", ("digits",), _other),
    Step("digits", "the six and the classics behind FedAvg, as `tune` chose them", "2 x 1", 24, "6 with the search",
         ("tuned/digits",), _all),
    Step("pacs", "the six", "4 x 2 more seeds", 48, "3 to 9", ("pacs",), _six_on_pacs(range(1, 3))),
    Step("digits", "the six", "4 x 2 more seeds", 48, "0.6 to 2", ("digits",), _six(range(3, 5))),
    Step("digits", "other variants of gPerXAN, FedADG, FedFD, StableFDG", "4 x 1 or 2", 48, "0.6 to 2", ("digits",), _variant),
    Step("pacs", "GA, ELCFS, CCST with its network, RandConv, MixStyle; variants", "4 x 1", 34, "3 to 20", ("pacs",),
         _more_on_pacs),
    Step("both", "a budget five times as long: FedAvg and the best two", "1 x 1", 6, "3 to 40", ("long/digits", "long/pacs"),
         _all),
    Step("digits", "the papers' ablations in small (`benchmarks/paper/small-*.toml`)", "2 x 3", 162, "0.6 to 2", ("ablations",),
         _all),
    Step("digits", "30 clients, partial participation, Dirichlet skew; clients of several domains", "2 x 2", 56, "1 to 3",
         ("many/fedfd-table10", "many/stablefdg-table2"), _all),
)  # fmt: skip


def plan() -> str:
    """The steps, in their order, with how many of their runs are recorded."""
    lines = top(["step", "protocol", "methods", "targets x seeds", "minutes per run", "runs", "recorded"], 4)
    for number, step in enumerate(STEPS, 1):
        found = sum(
            step.counts(row, seed)
            for folder in step.folders
            if (RECORDS / folder).is_dir() and (collection := records(folder)) is not None
            for group in collection.groups
            for row in group.rows
            for _, seed in row.results
        )
        cells = [step.protocol, step.methods, step.grid, step.minutes, str(step.wanted), str(found)]
        lines.append(row_of([str(number), *cells]))
    return "\n".join(lines) + "\n"
