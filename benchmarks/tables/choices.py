"""What was chosen by the sources alone, and what it is worth at the unseen domain: `unseen choose`, and compositions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from tables import kept
from tables.kept import NOTHING, SYSTEMS, bold, main_group, mean_on, records, row_of, top

from unseen.experiments.choose import Choice
from unseen.experiments.collect import CHOSEN
from unseen.experiments.statistics import compare, summarise
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
    means = {row.method: mean_on(row, target) for row in rows if not row.fields and not row.label.endswith(CHOSEN)}
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
    done, about = [run for run in value["runs"] if run["accuracy"]], value["about"]
    finished = all(one["finished"] for one in value["found"]) and len(found) == len(value["found"])
    notes = [
        "Mean accuracy in % over the sources that were left out in turn, while the two others trained: nothing of the unseen",
        f"domain is in it. Bold: chosen. {len(about['methods'])} methods; {len(done)} runs of {about['rounds']} rounds each, "
        f"seed {about['seed']}, {sum(run['seconds'] for run in done) / 60:.0f} minutes; "
        f"{len(value['runs']) - len(done)} runs failed." + ("" if finished else " **The search is not finished.**"),
    ]
    return "\n".join([*lines, "", *notes, *_composed(name, best)]) + "\n"


def _composed(name: str, best: Mapping[str, str]) -> list[str]:
    """The chosen compositions on the unseen domains themselves, beside FedAvg and the systems of the four papers."""
    collection, group = records(f"compose/{name}"), main_group(name)
    if collection is None or group is None:
        return ["", "The chosen compositions have not been trained on all sources yet."]
    rows = [row for one in collection.groups for row in one.rows]
    scores = {cell: v for row in rows for cell, v in row.scores().items() if best.get(cell[0]) == row.method}
    beside = {row.label: row.scores() for row in group.rows if row.method in ("fedavg", *SYSTEMS) and not row.fields}
    targets = [target for target in group.targets if any(cell[0] == target for cell in scores)]
    head = ["unseen", "chosen", "its accuracy", *map(titled, beside)]
    lines = ["", *top(head, 2)]
    for target in targets:
        cells = [target, best[target]]
        for own in (scores, *beside.values()):
            mean = summarise(v for cell, v in own.items() if cell[0] == target and cell in scores).mean
            cells.append("-" if math.isnan(mean) else f"{mean:.1f}")
        lines.append(row_of(cells))
    seeds = sorted({cell[1] for cell in scores})
    lines += [
        "",
        f"On the unseen domain itself, with the whole budget, seeds {', '.join(map(str, seeds))}. What was chosen:",
        "",
    ]
    for label, own in beside.items():
        one = compare({"composed": scores, label: own}, label).get("composed")
        if one is not None:
            interval = "" if math.isnan(one.low) else f", 95 % interval over seeds {one.low:+.1f} to {one.high:+.1f}"
            words = (
                f"{one.difference:+.1f} points{interval}; ahead in {one.wins} of {one.pairs} pairs of target and seed"
            )
            lines.append(f"- against {titled(label)}: {words}")
    return lines
