"""What was chosen by the sources alone, and what it is worth at the unseen domain: `unseen choose`, and compositions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tables import kept
from tables.accuracy import by_sources
from tables.kept import NOTHING, SYSTEMS, bold, filled, main_group, mean_on, named, records, remarks, row_of, top

from unseen.experiments.choose import Choice
from unseen.experiments.collect import BASELINE
from unseen.experiments.statistics import Comparison, compare, summarise
from unseen.registry import registered
from unseen.reports.findings import plain_name
from unseen.reports.names import titled


def regret(name: str) -> str:
    """For each target, the method that `choose` recommended by the other domains alone (benchmarks/regret.py)."""
    folder = kept.RECORDS / "regret"
    choices = {
        file.stem.removeprefix(f"{name}-"): Choice.read(file)
        for file in sorted(folder.glob(f"{name}-*.json"))
        if file.stem != f"{name}-hindsight"
    }
    lines = [
        "| unseen | recommended | its accuracy | best in hindsight | its accuracy | FedAvg | regret | gain over FedAvg |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    regrets: dict[str, list[float]] = {"recommended": [], "first": [], "fedavg": [], "random": []}
    for target, choice in choices.items():
        known = hindsight(name, target)
        means = {one.method: known[one.method] for one in choice.candidates if one.method in known}
        if choice.method not in means or "fedavg" not in means:
            continue
        best, own = max(means, key=lambda method: means[method]), means[choice.method]
        regrets["recommended"].append(means[best] - own)
        first = max((one for one in choice.candidates if one.method in means), key=lambda one: one.mean or 0)
        regrets["first"].append(means[best] - means[first.method])  # the best on left-out sites, however complicated
        regrets["fedavg"].append(means[best] - means["fedavg"])
        regrets["random"].append(means[best] - sum(means.values()) / len(means))
        cells = [
            target,
            titled(choice.method),
            f"{own:.1f}",
            titled(best),
            f"{means[best]:.1f}",
            f"{means['fedavg']:.1f}",
        ]
        lines.append(row_of([*cells, f"{means[best] - own:.1f}", f"{own - means['fedavg']:+.1f}"]))
    if not regrets["recommended"]:
        return NOTHING
    mean = {who: sum(values) / len(values) for who, values in regrets.items()}
    gain = mean["fedavg"] - mean["recommended"]
    lines.append(f"| mean | | | | | | {mean['recommended']:.1f} | {gain:+.1f} |")
    rounds = sorted({choice.rounds for choice in choices.values()})
    seeds = sorted({seed for choice in choices.values() for seed in choice.seeds})
    tried = sorted({titled(one.method) for choice in choices.values() for one in choice.candidates})
    notes = [
        "Accuracy in % on the unseen domain, of models that trained on the three others. Each recommendation comes from",
        "those three alone: one is left out in turn and two train, with runs of "
        f"{' and '.join(map(str, rounds))} rounds and seeds {', '.join(map(str, seeds))}.",
        f"Candidates: {', '.join(tried)}.",
        "Regret: how far a method is behind the best in hindsight. Mean regret of the best one on the sites left out",
        f"(`--rule best`): {mean['first']:.1f}; of always taking FedAvg: {mean['fedavg']:.1f}; of a candidate drawn at random: "
        f"{mean['random']:.1f}.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def hindsight(name: str, target: str) -> dict[str, float]:
    """Each method's mean accuracy on a target, in %: by runs of benchmarks/regret.py, else by the recorded runs of NAME."""
    own = kept.RECORDS / "regret" / f"{name}-hindsight.json"
    if own.exists():
        found = json.loads(own.read_text()).get(target, {})
        return {method: 100 * sum(values) / len(values) for method, values in found.items()}
    group = main_group(name)
    rows = group.rows if group is not None else []
    means = {row.method: mean_on(row, target) for row in rows if not row.fields and not row.chosen}
    return {method: value for method, value in means.items() if not math.isnan(value)}


def compose(name: str) -> str:
    """The composition that each unseen domain's sources chose, and what it is worth there (benchmarks/compose.py)."""
    file = kept.RECORDS / "compose" / f"{name}.json"
    if not file.exists():
        return "No search is recorded yet: `python benchmarks/compose.py`.\n"
    value = json.loads(file.read_text())
    found = [one for one in value["found"] if one["ranked"]]
    if not found:
        return "The search has begun and compared nothing yet.\n"
    sizes = {"1": "best method alone", "2": "best pair", "3": "best of three parts"}
    lines = top(["unseen", *sizes.values(), "FedAvg", "candidates"], 5)
    best = {}
    for one in found:
        ranked = {size: one["ranked"].get(size, []) for size in sizes}
        every = [pair for some in ranked.values() for pair in some]
        best[one["target"]] = max(every, key=lambda pair: pair[1])[0]
        cells = [
            bold(f"{some[0][0]} {100 * some[0][1]:.1f}", some[0][0] == best[one["target"]]) if some else "-"
            for some in ranked.values()
        ]
        own = next((f"{100 * score:.1f}" for method, score in ranked["1"] if method == "fedavg"), "-")
        lines.append(f"| {one['target']} | {' | '.join(cells)} | {own} | {one['looked']} |")
    answer, worth = _composed(name, best)
    return "\n".join([filled(answer), "", *lines, "", *_searched(value), *worth]) + "\n"  # the point first


def _searched(value: Mapping[str, Any]) -> list[str]:
    """What was searched, with how many runs, and what was not."""
    about, runs = value["about"], value["runs"]
    done = [run for run in runs if run["accuracy"]]
    budget = f"{about['rounds']} rounds"
    budget += f" of {about['local_steps']} steps" if about.get("local_steps") else ""
    budget += f" at {about['image_size']} px" if about.get("image_size") else ""
    tried = {size: {r["method"] for r in runs if r["method"].count("+") + 1 == size} for size in (1, 2, 3)}
    words = [
        "Mean accuracy in % over the sources that were left out in turn, while the two others trained: nothing of the "
        "unseen domain is in it. Bold: chosen. "
        f"{len(tried[1])} methods, {len(tried[2])} pairs and {len(tried[3])} of three parts were tried, "
        f"in {len(done)} runs of {budget} each, seed {about['seed']}, "
        f"{sum(run['seconds'] for run in done) / 60:.0f} minutes; {len(runs) - len(done)} runs failed.",
        f"Methods: {', '.join(about['methods'])}.",
    ]
    if fields := about.get("fields"):
        words.append(f"Not at their defaults: {', '.join(f'{name}={value}' for name, value in fields.items())}.")
    if "widths" in about:
        kept, stems, partners = (about["widths"][name] for name in ("kept", "stems", "partners"))
        words[0] += (
            " At first each candidate meets one left-out source. "
            f"The best {kept[0]} methods, {kept[1]} pairs and {kept[2]} of three parts meet the others. "
            f"The best {stems} methods get a second part, and the best {stems} pairs a third: each is tried with the best "
            f"{partners} methods that compose with it."
        )
    known = {name for names in about.get("left_out", {}).values() for name in names}
    ours = [name for name, kind in registered().items() if kind.__module__.startswith("unseen.")]  # no own file's
    if rest := [name for name in ours if name not in known and name not in about["methods"]]:
        words.append(f"Not searched, for want of time: {', '.join(rest)}.")
    words += [f"Not searched because {why}: {', '.join(names)}." for why, names in about.get("left_out", {}).items()]
    if not all(one["finished"] for one in value["found"]):
        words.append("**The search is not finished.**")
    return "\n\n".join(filled(some) for some in words).split("\n")


def _composed(name: str, best: Mapping[str, str]) -> tuple[str, list[str]]:
    """The chosen compositions on the unseen domains themselves, beside FedAvg and the systems of the four papers.

    Returns whether they beat those, in a sentence, and the lines with their numbers.
    """
    collection = records(f"compose/{name}")
    if collection is None:
        return "The chosen compositions have not been trained on all sources yet.", []
    own = max(collection.groups, key=lambda group: sum(len(row.results) for row in group.rows))
    others = records(name)
    # Only runs under the same protocol, data and budget can stand beside them.
    group = next((one for one in others.groups if one.condition == own.condition), None) if others else None
    scores = {cell: v for row in own.rows for cell, v in row.scores().items() if best.get(cell[0]) == row.method}
    rows = [by_sources(group, method) for method in ("fedavg", *SYSTEMS)] if group is not None else []
    shown = [row for row in rows if row is not None]
    beside = {plain_name(row): row.scores() for row in shown}
    targets = [target for target in best if any(cell[0] == target for cell in scores)]
    lines = ["", *top(["unseen", "chosen", "its accuracy", *map(named, shown)], 2)]
    for target in targets:
        cells = [target, best[target]]
        for some in (scores, *beside.values()):
            told = summarise(v for cell, v in some.items() if cell[0] == target and cell in scores)
            spread = "" if math.isnan(told.half_width) else f" ± {told.half_width:.1f}"
            cells.append("-" if math.isnan(told.mean) else f"{told.mean:.1f}{spread}")
        lines.append(row_of(cells))
    seeds = sorted({cell[1] for cell in scores})
    lines += [
        "",
        f"Accuracy in % on the unseen domain itself, with the whole budget of the protocol `{own.settings.protocol}`,",
        f"seeds {', '.join(map(str, seeds))}; ± is half of the 95 % interval over seeds, from three on. What was chosen:",
        "",
    ]
    found = {
        label: one
        for label, other in beside.items()
        if (one := compare({"composed": scores, label: other}, label).get("composed")) is not None
    }
    for label, one in found.items():
        interval = "" if math.isnan(one.low) else f", 95 % interval over seeds {one.low:+.1f} to {one.high:+.1f}"
        words = f"{one.difference:+.1f} points{interval}; ahead in {one.wins} of {one.pairs} pairs of target and seed"
        lines.append(filled(f"- against {label}: {words}", "  "))
    return _beats_all(found), [*lines, *remarks(shown)]


def _beats_all(found: Mapping[str, Comparison]) -> str:
    """Is the choice by the sources ahead of the papers' systems?"""
    systems = {label: one for label, one in found.items() if label != titled(BASELINE)}
    if not systems:
        return "No system of the four papers has been run under the same protocol yet."
    behind = [label for label, one in systems.items() if one.difference <= 0]
    open_yet = [label for label, one in systems.items() if one.difference > 0 and not one.low > 0]
    if behind:
        return (
            f"**What the sources chose does not beat all of the papers' systems: it is not ahead of {_and(behind)}.**"
        )
    if open_yet:
        return (
            "**What the sources chose is ahead of every system of the four papers in the mean, but not beyond doubt: "
            f"no interval is above zero against {_and(open_yet)}.**"
        )
    return "**What the sources chose beats every system of the four papers: each interval is above zero.**"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
