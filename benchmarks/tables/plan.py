"""How far the plan of runs is (benchmarks/plan.sh), by the records."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass

from tables import kept
from tables.kept import SYSTEMS, TOP, records, row_of, top

from unseen.experiments.collect import BASELINE, Row

Counts = Callable[[Row], bool]  # is this one of the step's rows?
HARDEST = ("street", "outline")


@dataclass(frozen=True)
class Step:
    """One line of the plan: which runs it wants, and which records are its own."""

    protocol: str
    methods: str
    grid: str  # targets x seeds
    wanted: int
    minutes: str  # of one core for one run, about
    folders: tuple[str, ...]  # below benchmarks/results
    counts: Counts
    seeds: tuple[int, ...] = (0,)
    targets: tuple[str, ...] = ()  # all by default


def _six(row: Row) -> bool:
    return row.method in (BASELINE, *SYSTEMS) and row.is_default


def _six_on_pacs(row: Row) -> bool:
    """With gPerXAN's softer start, which the sources' validation images prefer on a pretrained net."""
    return row.fields == {"variant": "gentle"} if row.method == "gperxan" else _six(row)


def _others(row: Row) -> bool:
    return row.method not in (BASELINE, *SYSTEMS) and not row.chosen


def _more_on_pacs(row: Row) -> bool:
    variants = {"gperxan": ({}, {"variant": "paper"}), "fedadg": ({"variant": "paper"},)}
    others = ("ga", "elcfs", "ccst", "randconv", "mixstyle")
    return row.method in others or row.fields in variants.get(row.method, ())


def _of_file(name: str) -> Counts:
    """The methods of a file of benchmarks/paper."""
    found = tomllib.loads((TOP / "benchmarks" / "paper" / f"{name}.toml").read_text())["methods"]
    wanted = [(one, {}) if isinstance(one, str) else (one["name"], one.get("set", {})) for one in found]
    return lambda row: (row.method, row.fields) in wanted and not row.chosen


def _any(row: Row) -> bool:
    return True


STEPS = (
    Step("digits", "FedAvg, FedFD, FedFD-A, gPerXAN, StableFDG, FedADG", "4 x 3", 72, "1 to 2", ("digits",), _six, (0, 1, 2)),
    Step("pacs", "the same six, with gPerXAN's softer start", "4 x 1", 24, "3 to 9", ("pacs",), _six_on_pacs),
    Step("digits", "all other methods", "4 x 1", 208, "1 to 5", ("digits",), _others),
    Step("digits", "the six and classics behind FedAvg, as `tune` chose them", "2 x 1", 24, "6 with the search",
         ("tuned/digits",), lambda row: row.chosen),
    Step("pacs", "the six", "4 x 2 more seeds", 48, "3 to 9", ("pacs",), _six_on_pacs, (1, 2)),
    Step("digits", "the six", "4 x 2 more seeds", 48, "1 to 2", ("digits",), _six, (3, 4)),
    Step("digits", "other variants of the four systems", "4 x 2", 40, "1 to 2", ("digits",), _of_file("small-variants"), (0, 1)),
    Step("pacs", "GA, ELCFS, RandConv, MixStyle, variants; CCST with its network on sketch", "4 x 1", 30, "3 to 40", ("pacs",),
         _more_on_pacs),
    Step("both", "a budget five times as long: FedAvg and the best two", "1 x 1", 6, "3 to 40", ("long/digits", "long/pacs"),
         _any),
    Step("digits", "the papers' ablations in small, where the tables above do not have them", "2 x 3", 198, "1 to 2",
         ("digits", "ablations/digits"), _of_file("small-ablations"), (0, 1, 2), HARDEST),
    Step("digits", "30 clients, partial participation, Dirichlet skew; clients of several domains", "2 x 2", 72, "1 to 3",
         ("many/fedfd-table10", "many/stablefdg-table2"), _any, (0, 1), HARDEST),
    Step("digits-vit", "on a ViT that has learnt letters: FedAvg, DoPrompt, PromptFL, FedIns, FedDG-MoE, FedCLIP", "2 x 1", 12,
         "1 to 6", ("towers",), _any, (0,), HARDEST),
)  # fmt: skip


def plan() -> str:
    """The steps, in their order, with how many of their runs are recorded."""
    lines = top(["step", "protocol", "methods", "targets x seeds", "minutes per run", "runs", "recorded"], 4)
    for number, step in enumerate(STEPS, 1):
        found = {
            (folder if step.counts is _any else "", row.label, row.chosen, target, seed)
            for folder in step.folders
            if (kept.RECORDS / folder).is_dir() and (collection := records(folder)) is not None
            for group in collection.groups
            for row in group.rows
            if step.counts(row)
            for target, seed in row.results
            if seed in step.seeds and target in (step.targets or group.targets)
        }
        cells = [step.protocol, step.methods, step.grid, step.minutes, f"{step.wanted}", f"{len(found)}"]
        lines.append(row_of([f"{number}", *cells]))
    return "\n".join(lines) + "\n"
