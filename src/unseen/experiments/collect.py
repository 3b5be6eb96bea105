"""The finished runs of a folder, side by side: one group per protocol, so that numbers of different budgets never
meet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unseen.core.files import read_json
from unseen.core.metrics import Measured
from unseen.core.options import options_of, value_of
from unseen.core.shown import Row as ShownRow
from unseen.core.shown import Shown
from unseen.data.catalog import CATALOG
from unseen.experiments.inference_rules import RULES
from unseen.experiments.statistics import (
    Cell,
    Comparison,
    Summary,
    average_over_targets,
    average_ranks,
    compare,
    summarise,
    worst_over_targets,
)
from unseen.runs.directory import RunDirectory, find_runs
from unseen.runs.protocols import PROTOCOLS
from unseen.runs.results import RunResult, label_of, label_of_chosen, mark_of
from unseen.runs.settings import Settings

BASELINE = "fedavg"


@dataclass
class Row:
    """One method (with its fields) under one protocol."""

    label: str
    method: str
    fields: dict[str, Any]
    runs: dict[Cell, RunDirectory] = field(default_factory=dict)
    results: dict[Cell, RunResult] = field(default_factory=dict)
    chosen: bool = False  # by `unseen tune`: other fields for each target perhaps, or the default's

    def scores(self, what: str = "accuracy") -> dict[Cell, float]:
        """A number of the results in percent points (for accuracies), where it was measured."""
        found = {cell: getattr(_owner(result, what), what, None) for cell, result in self.results.items()}
        return {cell: 100 * value for cell, value in found.items() if value is not None}

    def numbers(self, what: str) -> Summary:
        """Any number of the results, over all runs that have it."""
        found = (getattr(result, what) for result in self.results.values())
        return summarise(float(value) for value in found if value is not None)

    def by_rule(self) -> dict[str, dict[Cell, float]]:
        """Accuracies in percent by inference rule, the method's own first, where another one was tried."""
        found: dict[str, dict[Cell, float]] = {}
        for cell, run in self.runs.items():
            for rule, line in run.evaluations().items():
                if rule != "own" and line.accuracy is not None:
                    found.setdefault(rule, {})[cell] = 100 * line.accuracy
        return {"own": self.scores(), **dict(sorted(found.items()))} if found else {}

    def depends(self, rule: str) -> bool:
        """Does an answer by this rule depend on other images? Older records do not say so, but their rules do."""
        lines = [run.evaluations().get(rule) for run in self.runs.values()]
        kind = RULES.get(rule.partition(" ")[0])
        return any(line.depends for line in lines if line) or (kind is not None and bool(kind.depends))

    @property
    def sends(self) -> str:
        """What left a client beyond the model's weights, as the runs themselves recorded it."""
        return next((result.beyond_weights for result in self.results.values() if result.beyond_weights), "")

    @property
    def remark(self) -> str:
        """How the method differs from the published one, as the runs themselves recorded it."""
        return next((result.remark for result in self.results.values() if result.remark), "")

    @property
    def is_default(self) -> bool:
        """Is this the method with no field changed, of one folder? Its label is its name, and a remark perhaps."""
        return (
            not self.fields and not self.chosen and not self.label.endswith("]") and self.label.startswith(self.method)
        )

    @property
    def as_published(self) -> bool:
        """Is this the method as its paper has it, so that the paper's number may stand beside it?"""
        # Where its fields make it so, a file calls it by its plain name, or names the paper's or its code's variant.
        theirs = all(name == "variant" and value in ("paper", "official") for name, value in self.fields.items())
        return (theirs or self.label == self.method) and not self.remark


def _owner(result: RunResult, what: str) -> RunResult | Measured | None:
    """Where a number stands: with the result itself, or with what else was measured (older records have none)."""
    return result.measured if what in MEASURES else result


MEASURES = frozenset(field.name for field in fields(Measured))


@dataclass
class Group:
    """Runs that may be compared: same data, net, budget and selection."""

    condition: dict[str, Any]
    settings: Settings  # of one of its runs
    targets: list[str]
    rows: list[Row]

    @property
    def peeks(self) -> bool:
        return self.settings.plan.server_selection == "oracle"

    @property
    def title(self) -> str:
        s = self.settings
        return f"{s.data.name}, protocol {s.protocol}{self.changes}{mark_of(s)}"

    @property
    def name(self) -> str:
        """For file names."""
        return f"{self.settings.data.name}-{self.settings.protocol}"

    @property
    def changes(self) -> str:
        """Where these runs differ from the protocol they name."""
        if self.settings.protocol not in PROTOCOLS:
            return ""
        protocol = PROTOCOLS[self.settings.protocol]
        usual = replace(self.settings, data=protocol.data, net=protocol.net, plan=protocol.plan)
        found = []
        for name, setting in options_of(Settings).items():
            value = value_of(self.settings, setting)
            if name not in ELSEWHERE and value != value_of(usual, setting) and value is not None:
                found.append(f"{name} {_plain_weights(value) if name == 'weights' else value}")
        return f" with {', '.join(found)}" if found else ""

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for row in self.rows for _, seed in row.results})

    def baseline(self, wanted: str | None = None) -> str | None:
        """The label of the row that others are compared with. Of several folders, the first folder's."""
        for label in (wanted, BASELINE):
            for row in self.rows if label is not None else []:
                if row.label == label or row.label.startswith(f"{label} ["):
                    return row.label
        return None

    def target(self, row: Row, target: str, what: str = "accuracy") -> Summary:
        return summarise(value for (name, _), value in sorted(row.scores(what).items()) if name == target)

    def average(self, row: Row, what: str = "accuracy") -> Summary:
        return average_over_targets(row.scores(what), self.targets)

    def worst(self, row: Row) -> Summary:
        """Of the target that is worst."""
        return worst_over_targets(row.scores(), self.targets)

    def ranks(self) -> dict[str, float]:
        return average_ranks({row.label: row.scores() for row in self.rows})

    def comparisons(
        self, baseline: str | None = None, family: Callable[[str], object] = lambda label: None
    ) -> dict[str, Comparison]:
        label = self.baseline(baseline)
        return compare({row.label: row.scores() for row in self.rows}, label, family) if label is not None else {}

    def hardest(self) -> str:
        """The target with the lowest mean accuracy, of those that most methods have."""
        means = {}
        for target in self.targets:
            own = [s.mean for row in self.rows if (s := self.target(row, target)).count]
            means[target] = (-len(own), sum(own) / len(own) if own else 0.0)
        return min(self.targets, key=lambda target: means[target])

    def best(self, what: str = "accuracy") -> list[Row]:
        """Rows by their average, best first; those without one last."""

        def key(row: Row) -> float:
            mean = self.average(row, what).mean
            return math.inf if math.isnan(mean) else -mean

        return sorted(self.rows, key=key)


def _plain_weights(weights: str) -> str:
    return Path(weights).name if weights not in ("none", "imagenet") else weights


# Where a run was made, on what engine and machine and how often it looked at the target do not change what is compared.
ELSEWHERE = ("data", "root", "engine", "device", "test_every", "skip_broken", "minimum_clients")


def condition_of(settings: Settings) -> dict[str, Any]:
    """All that must be the same for two runs to stand in one table."""
    value = {
        name: value_of(settings, setting) for name, setting in options_of(Settings).items() if name not in ELSEWHERE
    }
    # What was chosen for a method is the method's; the table is that of the settings before.
    return (
        value
        | (settings.chosen_from or {})
        | {
            "data": settings.data.name,
            "protocol": settings.protocol,
            "weights": _plain_weights(settings.net.weights),
            "data content": settings.data.content,
        }
    )


@dataclass(repr=False)
class Collection(Shown):
    """All runs of a folder."""

    folder: Path
    groups: list[Group]
    unfinished: list[RunDirectory]
    about: dict[str, Any]  # bench.json: commands, labels, order; {} where there is none
    beside: Sequence[str] = ()  # the names of the folders, where there are several

    def lines(self) -> list[str]:
        count = sum(len(row.results) for group in self.groups for row in group.rows)
        waiting = f", {len(self.unfinished)} not finished" if self.unfinished else ""
        said = [f"{count} finished runs in {self.folder}{waiting}"]
        for group in self.groups:
            seeds = f"{len(group.seeds)} seed{'s' if len(group.seeds) != 1 else ''}"
            said.append(f"{group.title}: {len(group.rows)} methods, {len(group.targets)} unseen domains, {seeds}")
            ranked = [(row.label, group.average(row).mean) for row in group.best()]
            said.append("  " + ", ".join(f"{label} {mean:.1f} %" for label, mean in ranked[:4] if not math.isnan(mean)))
        return said

    def rows(self) -> list[ShownRow]:
        """A row per finished run. Accuracies are fractions."""
        return [
            {
                "data": result.data,
                "protocol": result.protocol,
                "method": row.label,
                "target": target,
                "seed": seed,
                "accuracy": result.accuracy,
                "in_domain_accuracy": result.in_domain_accuracy,
                "last_accuracy": result.last_accuracy,
                "selected_round": result.selected_round,
                "rounds": result.rounds,
                "peeks": result.peeks,
                "bytes_up": result.bytes_up,
                "bytes_down": result.bytes_down,
                "beyond_weights": result.beyond_weights,
                "parameters": result.parameters,
                "seconds": result.seconds,
                "directory": str(row.runs[target, seed].path),
            }
            for group in self.groups
            for row in group.rows
            for (target, seed), result in sorted(row.results.items())
        ]

    def draw(self, axes: Any) -> None:
        """Of the largest group: a dot per run, and each method's mean over unseen domains."""
        if not self.groups:
            return
        group = max(self.groups, key=lambda one: sum(len(row.results) for row in one.rows))
        ranked = group.best()[::-1]
        for place, row in enumerate(ranked):
            scores = list(row.scores().values())
            axes.plot(scores, [place] * len(scores), "o", color="#8aa4c2", markersize=4)
            mean = group.average(row).mean
            axes.plot([mean], [place], "D", color="#1f2933", markersize=6)
        axes.set_yticks(range(len(ranked)), [row.label for row in ranked])
        axes.set(xlabel="accuracy on the unseen domain (%)", title=group.title)


def collect(folder: Path, only: Container[str] | None = None) -> Collection:
    """Group the runs at and below a folder. The order of methods and targets is the one they were asked for in.

    `only`: the names of those that are wanted, if not all.
    """
    about = read_json(folder / "bench.json") if (folder / "bench.json").exists() else {}
    labels: dict[str, str] = about.get("labels", {})
    groups: dict[str, Group] = {}
    unfinished: list[RunDirectory] = []
    for run in find_runs(folder):
        if only is not None and run.path.name not in only:
            continue
        result, settings = run.result(), run.settings()
        if result is None:
            unfinished.append(run)
            continue
        condition = condition_of(settings)
        key = json.dumps(condition, sort_keys=True)
        group = groups.setdefault(key, Group(condition, settings, [], []))
        label = label_of(settings, result.remark)
        label = labels.get(label, label)
        row = next((row for row in group.rows if row.label == label), None)
        if row is None:
            row = Row(label, settings.method, dict(settings.fields), chosen=settings.chosen_from is not None)
            group.rows.append(row)
        row.runs[settings.target, settings.seed] = run
        row.results[settings.target, settings.seed] = result
        if settings.target not in group.targets:
            group.targets.append(settings.target)
    for group in groups.values():
        _fill_chosen(group, about.get("chosen_defaults", []))
        _order(group, about)
    return Collection(folder, sorted(groups.values(), key=lambda g: g.title), unfinished, about)


def collect_beside(folders: Sequence[Path]) -> Collection:
    """Several folders as one collection: each method says in square brackets which folder its runs are from."""
    if len(folders) == 1:
        return collect(folders[0])
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    groups: dict[str, Group] = {}
    found = [collect(folder) for folder in folders]
    for name, one in zip(names, found, strict=True):
        for group in one.groups:
            key = json.dumps(group.condition, sort_keys=True)
            whole = groups.setdefault(key, Group(group.condition, group.settings, [], []))
            whole.rows += [replace(row, label=f"{row.label} [{name}]") for row in group.rows]
            whole.targets += [target for target in group.targets if target not in whole.targets]
    about = {"commands": [command for one in found for command in one.about.get("commands", [])]}
    unfinished = [run for one in found for run in one.unfinished]
    return Collection(folders[0], sorted(groups.values(), key=lambda group: group.title), unfinished, about, names)


def _fill_chosen(group: Group, defaults: Sequence[Sequence[str]]) -> None:
    """Where `unseen tune` chose the default there is no second run: the default's run is the chosen one's too."""
    for method, target in defaults:
        own = [row for row in group.rows if row.method == method]
        default = next((row for row in own if row.is_default), None)
        if default is None:
            continue
        chosen = next((row for row in own if row.chosen), None)
        if chosen is None:
            chosen = Row(label_of_chosen(method, default.remark), method, {}, chosen=True)
            group.rows.append(chosen)
        for cell in [cell for cell in default.results if cell[0] == target]:
            chosen.runs[cell], chosen.results[cell] = default.runs[cell], default.results[cell]


def _order(group: Group, about: dict[str, Any]) -> None:
    data = group.settings.data.name
    known = [domain.name for domain in CATALOG[data].domains] if data in CATALOG else []
    targets = _ordered(group.targets, [*known, *about.get("targets", [])])
    group.targets[:] = targets
    labels = _ordered([row.label for row in group.rows], [*about.get("methods", []), BASELINE])
    group.rows.sort(key=lambda row: labels.index(row.label))


def _ordered(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    places = {name: place for place, name in reversed(list(enumerate(wanted)))}
    return sorted(names, key=lambda name: (places.get(name, len(wanted)), name))
