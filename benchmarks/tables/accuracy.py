"""Accuracy on unseen domains: leaderboards, sentences, figures, and the lines of a method's own page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tables import kept
from tables.kept import (
    NOTHING,
    SYSTEMS,
    bold,
    filled,
    made_by,
    main_group,
    mean_on,
    named,
    part_of,
    records,
    remarks,
    row_of,
    seeds_of,
    top,
    whole,
    whole_group,
)

from unseen.experiments.collect import BASELINE, Group, Row
from unseen.experiments.statistics import Comparison, average_over_targets, summarise
from unseen.reports.findings import compared_sentence, noise_floor, plain_name
from unseen.reports.names import titled
from unseen.reports.tables import inference_grid, markdown, p_value
from unseen.runs.directory import find_runs
from unseen.runs.results import RunResult

CLEARLY = 2  # points of source validation: about twice the standard error of the thousand images of a run
FARTHEST = -12  # points behind FedAvg that the figure has room for
Which = Literal["all", "systems"]  # rows of a table or figure
EASY = {"digits": "ink"}  # a target that is easier than the sources: the mean is also given without it


def group_of(name: str, which: Which = "all") -> Group | None:
    """The recorded runs: all rows, or FedAvg and the papers' systems, each as the sources would have it."""
    group = whole_group(name)
    if group is None or which == "all":
        return group
    shown = [row for row in (by_sources(group, method) for method in (BASELINE, *SYSTEMS)) if row is not None]
    return replace(group, rows=shown)


def leaderboard(name: str, which: Which = "all") -> str:
    """What was asked comes first: the mean, and how far ahead of FedAvg."""
    every, group = whole_group(name), group_of(name, which)
    if every is None or group is None:
        return NOTHING
    easy = EASY.get(name)
    compared = comparisons(every)
    without = [f"without {easy}"] if easy else []
    ranked, least = rows_to_rank(group)
    best = {t: max((mean_on(row, t) for row in ranked), default=math.nan) for t in group.targets}
    lines = top(
        [
            "method",
            "mean",
            "Δ to FedAvg",
            "wins",
            "p",
            *group.targets,
            *without,
            "worst",
            "in-domain",
            "last round",
            "seeds",
        ]
    )
    for row in group.best():
        average, one = group.average(row), compared.get(row.label)
        if not average.count:
            continue  # of some targets: `some` has it
        spread = "" if math.isnan(average.std) else f" ± {average.std:.1f}"
        cells = [named(row), bold(f"{average.mean:.1f}{spread}", row in ranked[:1])]
        if one is None:
            cells += ["", "", ""]
        else:
            interval = "" if math.isnan(one.low) else f" ({one.low:+.1f} to {one.high:+.1f})"
            cells += [f"{one.difference:+.1f}{interval}", f"{one.wins}/{one.pairs}", p_value(one.corrected)]
        for target in group.targets:
            value = mean_on(row, target)
            cells.append(
                bold(f"{value:.1f}", row in ranked and value == best[target]) if not math.isnan(value) else "-"
            )
        others = [average_over_targets(row.scores(), [t for t in group.targets if t != easy])] if easy else []
        others += [group.worst(row), *(group.average(row, what) for what in ("in_domain_accuracy", "last_accuracy"))]
        cells += [f"{one.mean:.1f}" if one.count else "-" for one in others]
        lines.append(row_of([*cells, str(len({seed for _, seed in row.results}))]))
    notes = [
        "Accuracy in % on the whole unseen domain, of the round that the sources' validation images chose. Mean over unseen",
        "domains; ±: standard deviation over seeds. Δ: paired by target and seed, with a 95 % interval by a bootstrap over",
        "seeds. p: Wilcoxon's signed-rank test, from six pairs on, with Holm's correction, for the papers' five systems and",
        "apart from them for all other rows. Worst: the unseen domain where accuracy is lowest, the mean over seeds.",
        "In-domain: the same model on held-back images of the sources. Last round: the mean if no round had been chosen.",
        f"Bold: the best of those with {least} seeds or more." if least > 1 else "Bold: the best.",
    ]
    full = [row for row in group.rows if group.average(row).count]
    return "\n".join([*lines, "", *notes, *remarks(full)]) + "\n"


def some(name: str, *targets: str) -> str:
    """All that was run on these targets, whatever else it was run on: the best of them first."""
    group = main_group(name)
    if group is None:
        return NOTHING
    rows = [whole(part_of(row, lambda cell: cell[0] in targets), targets) for row in group.rows]
    part = replace(group, targets=list(targets), rows=[row for row in rows if seeds_of(row, targets)])
    compared = part.comparisons()
    gains = {row.label: compared[row.label].difference if row.label in compared else 0.0 for row in part.rows}
    lines = top(["method", "Δ to FedAvg", "wins", *targets, "in-domain", "seeds"])
    for row in sorted(part.rows, key=lambda row: -gains[row.label]):
        one = compared.get(row.label)
        cells = ["", ""] if one is None else [f"{one.difference:+.1f}", f"{one.wins}/{one.pairs}"]
        cells += [*(f"{mean_on(row, target):.1f}" for target in targets)]
        cells += [f"{part.average(row, 'in_domain_accuracy').mean:.1f}", str(len(seeds_of(row, targets)))]
        lines.append(row_of([named(row), *cells]))
    words = (
        f"Accuracy in % on {' and '.join(f'`{target}`' for target in targets)} alone. Δ: paired by target and seed; the rows "
        "are in its order. A method with one seed is compared with FedAvg's run of that seed."
    )
    return "\n".join([*lines, "", filled(words), *remarks(part.rows)]) + "\n"


def comparisons(group: Group) -> dict[str, Comparison]:
    """Every row against FedAvg.

    The question of the page is whether the papers' systems are ahead. So their p-values are corrected for one another, and
    do not change with what else the table comes to hold.
    """
    asked = {row.label for system in SYSTEMS if (row := by_sources(group, system)) is not None}
    return group.comparisons(family=lambda label: label in asked)


def rows_to_rank(group: Group) -> tuple[list[Row], int]:
    """The best first, of those with as many seeds as most of FedAvg and the papers' systems have; and how many those are.

    A mean of fewer seeds, or of some targets, is not to be called the best.
    """
    counts = {row.label: len(seeds_of(row, group.targets)) for row in group.rows}
    usual = sorted(counts[row.label] for row in group.rows if row.method in (BASELINE, *SYSTEMS) and row.is_default)
    least = max(1, usual[(len(usual) - 1) // 2] if usual else max(counts.values()))
    return [row for row in group.best() if counts[row.label] >= least], least


def by_sources(group: Group, method: str) -> Row | None:
    """A method's default, or the variant that the sources' validation images clearly prefer to it in the same runs."""
    rows = [row for row in group.rows if row.method == method and not row.chosen]
    default = next((row for row in rows if row.is_default), None)
    if default is None:
        return None

    def gain(row: Row) -> float:
        shared = [(row.results[cell], default.results[cell]) for cell in {*row.results} & {*default.results}]
        return summarise(100 * (_validation(own) - _validation(other)) for own, other in shared).mean

    return max((row for row in rows if gain(row) > CLEARLY), key=gain, default=default)


def _validation(result: RunResult) -> float:
    last = result.validation_last
    return last.accuracy if last is not None and last.accuracy is not None else math.nan


def sentences(name: str) -> str:
    """What the table says, in words."""
    group = whole_group(name)
    if group is None:
        return NOTHING
    compared = comparisons(group)
    ours = [
        row for row in (by_sources(group, method) for method in SYSTEMS) if row is not None and row.label in compared
    ]
    ours = sorted(ours, key=lambda row: -compared[row.label].difference)
    ranked, _ = rows_to_rank(group)
    lines = [
        f"**{plain_name(best)}** has the best mean over unseen domains, {group.average(best).mean:.1f} %."
        for best in ranked[:1]
    ]
    lines += [compared_sentence(row, compared[row.label], "fedavg") for row in ours]
    if (apart := noise_floor(group, "fedavg")) is not None:
        lines.append(
            f"FedAvg against itself: two seeds are {apart:.1f} points apart on the mean over targets (root mean square). "
            "A smaller difference between two single runs means nothing."
        )
    return "\n".join(filled(f"- {line}", "  ") for line in lines) + "\n"


def commands(name: str, group: Group, more: str = "") -> list[str]:
    """What makes these runs: one command for all methods that were run on the same targets with the same seeds.

    `more` are settings that are not the protocol's.
    """
    settings = group.settings
    drawn = settings.data.root is None and settings.protocol == settings.data.name == "digits"
    where = "--data digits" if drawn else f"--protocol {settings.protocol} --root {settings.data.name.upper()}"
    weights = f" --weights {Path(settings.net.weights).name}" if "." in settings.net.weights else ""
    collection = records(name)
    every = {*(collection.about.get("targets", []) if collection is not None else []), *group.targets}
    asked: dict[tuple[str, str, str], list[str]] = {}
    for row in group.rows:
        seeds: dict[str, list[int]] = {}
        for target, seed in sorted(row.results):
            seeds.setdefault(target, []).append(seed)
        for own in sorted({tuple(s) for s in seeds.values()}):
            targets = [target for target in group.targets if tuple(seeds.get(target, ())) == own]
            some = "" if {*targets} == every else f" --targets {','.join(targets)}"
            chosen = f" --tuned {name}-choices.json" if row.chosen else ""
            asked.setdefault((some, _spelled(own), chosen), []).append(_with_fields(row))
    return [
        f"unseen bench {where}{weights} --methods {','.join(methods)}{targets} --seeds {seeds}{more}{chosen} --out {name}"
        for (targets, seeds, chosen), methods in asked.items()
    ]


def _spelled(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole and len(seeds) > 1 else ",".join(map(str, seeds))


def _with_fields(row: Row) -> str:
    """`gperxan:variant=gentle`; a file by its name alone."""
    return ":".join([row.method, *(f"{name}={Path(str(value)).name}" for name, value in row.fields.items())])


def runs(name: str, which: Which = "all") -> str:
    """Commands, commits, seeds and kernels."""
    collection, group = records(name), group_of(name, which)
    if collection is None or group is None:
        return NOTHING
    results = [result for row in group.rows for result in row.results.values()]
    others = [one for one in collection.about.get("commands", []) if not one.startswith("unseen bench ")]
    seconds = sorted(result.seconds for row in group.rows if row.label == "fedavg" for result in row.results.values())
    lines = ["```", *commands(name, group), *others, f"unseen report benchmarks/results/{name}", "```", ""]
    about = f"{len(results)} runs; seeds {', '.join(map(str, group.seeds))}; {made_by(group)}; " + (
        f"a FedAvg run took {seconds[len(seconds) // 2]:.0f} s (median)." if seconds else ""
    )
    return "\n".join([*lines, filled(about)]) + "\n"


def inference(name: str) -> str:
    group = main_group(name)
    grid = inference_grid(group) if group is not None else None
    if grid is None:
        return NOTHING
    return markdown(replace(grid, notes=[])) + "\n" + filled(" ".join(grid.notes)) + "\n"


def budget(name: str) -> str:
    """FedAvg with other budgets, on images of the sources: what a protocol was chosen by."""
    runs = [(run.settings(), run.result()) for run in find_runs(kept.RECORDS / "budget" / name)]
    found = [(settings.plan, result) for settings, result in runs if result is not None]
    lines = top(["rounds", "steps", "batch", "images seen by a client", "validation", "in-domain test"], 0)
    for plan, result in sorted(found, key=lambda one: -one[0].rounds * one[0].local_steps * one[0].batch_size):
        numbers = [plan.rounds, plan.local_steps, plan.batch_size]
        scores = [result.validation_last.accuracy, result.in_domain_accuracy]
        lines.append(
            row_of([*map(str, numbers), f"{math.prod(numbers):,}", *(f"{100 * score:.1f}" for score in scores)])
        )
    return "\n".join(lines) + "\n"


def statistics(name: str) -> str:
    """What the averaged BatchNorm statistics cost FedAvg: its own models, tested by other statistics."""
    group = main_group(name)
    row = next((row for row in group.rows if row.label == "fedavg"), None) if group is not None else None
    rules = row.by_rule() if row is not None else {}
    if row is None or not {"tbn", "iabn"} <= set(rules):
        return NOTHING
    own = row.scores()

    def both(rule: str) -> str:
        pairs = [(own[cell], value) for cell, value in rules[rule].items()]
        before, after = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        return f"from {before:.1f} to {after:.1f} %"

    return (
        filled(
            "**Averaged BatchNorm statistics are what holds FedAvg down.** The same FedAvg models, not trained again, go "
            f"{both('tbn')} on unseen `{name}` with the statistics of the images at hand, and {both('iabn')} where those "
            f"of each single image correct the averaged ones ({len(rules['tbn'])} of {len(own)} models). This may be why "
            "methods that use statistics of single images lead."
        )
        + "\n"
    )


def figure(name: str, which: Which = "all", draws: bool = True) -> str:
    """Differences to FedAvg with their intervals, as docs/img/results-NAME.svg; the systems' as results-NAME-systems.svg."""
    group = group_of(name, which)
    if group is None:
        return NOTHING
    picture = f"results-{name}{'' if which == 'all' else f'-{which}'}.svg"
    if draws:
        draw(group, kept.TOP / "docs" / "img" / picture)
    words = (
        "Points ahead of FedAvg, mean over unseen domains. Lines: 95 % intervals over seeds, where there are three seeds "
        "or more. Full dots: defaults; rings: other variants. An arrow: farther behind than the axis goes."
    )
    if any(not group.average(row).count for row in group.rows):
        words += " What was run on some of the domains is not shown."
    who = "every method" if which == "all" else "the papers' systems"
    return f"![Difference to FedAvg of {who} on {name}](img/{picture})\n\n" + filled(words) + "\n"


def draw(group: Group, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "unseen"  # the same picture for the same numbers
    full = {row.label for row in group.rows if group.average(row).count}
    compared = sorted((one for one in comparisons(group).items() if one[0] in full), key=lambda one: one[1].difference)
    shown, axes = plt.subplots(figsize=(8, 0.7 + 0.26 * len(compared)))
    for place, (label, one) in enumerate(compared):
        row = next(row for row in group.rows if row.label == label)
        colour = "#b3541e" if row.method in SYSTEMS else "#4c6a8a"
        if one.difference < FARTHEST:
            axes.plot([FARTHEST], [place], "<", color=colour, markersize=5)
            axes.annotate(f"{one.difference:.0f}", (FARTHEST, place), (6, -3), textcoords="offset points", fontsize=8)
            continue
        if not math.isnan(one.low):
            axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
        axes.plot(
            [one.difference], [place], "o", color=colour, fillstyle="full" if row.is_default else "none", markersize=5
        )
    axes.axvline(0, color="#888888", linewidth=1)
    names = ["\n".join(textwrap.wrap(titled(label), 46)) for label, _ in compared]
    axes.set_yticks(range(len(compared)), names, fontsize=8)
    axes.set_xlabel("points ahead of FedAvg", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    shown.tight_layout()
    path.parent.mkdir(exist_ok=True)
    shown.savefig(path, metadata={"Date": None})
    plt.close(shown)


def method(label: str, *names: str) -> str:
    """A method's own numbers, for its page."""
    lines = []
    for name in names:
        group = whole_group(name)
        if group is None:
            continue
        compared = comparisons(group)
        for row in group.rows:
            if row.method != label or not row.results:
                continue
            average, one = group.average(row), compared.get(row.label)
            where, found = "", average
            if not average.count:  # of some targets only
                targets = [target for target in group.targets if group.target(row, target).count]
                where, found = f", unseen {', '.join(targets)} only", average_over_targets(row.scores(), targets)
            words = "" if one is None else f", {one.difference:+.1f} to FedAvg ({one.wins} of {one.pairs} pairs)"
            spread = "" if math.isnan(found.std) else f" ± {found.std:.1f}"
            line = f"- `{name}`{where}: {titled(row.label)} {found.mean:.1f}{spread} %{words}"
            lines.append(filled(line, "  "))
    return "\n".join([*(lines or ["No runs of this version are recorded yet."]), ""])


PAPERS = {
    "fedavg": ("AISTATS 2017", "the mean of the sites' models: what all others are compared with"),
    "fedfd": ("ECCV 2024", "trains on features whose statistics are mixed with those of all sites"),
    "fedfd-a": ("ECCV 2024", "and adapts the statistics to each image at test time"),
    "gperxan": ("CVPR 2024", "mixes instance and batch normalisation; the shared head guides the features"),
    "stablefdg": ("NeurIPS 2023", "shares and explores styles; attends to what a class has in common"),
    "fedadg": ("arXiv 2021", "aligns all sites' features to one learned reference"),
}


def systems(*names: str) -> str:
    """The four papers' systems: idea and numbers, for the README."""
    lines = top(["system", "idea", *(f"`{name}`" for name in names)], 2)
    for label, (venue, idea) in PAPERS.items():
        page = "fedfd" if label == "fedfd-a" else label
        cells = []
        for name in names:
            group = whole_group(name)
            row = by_sources(group, label) if group is not None else None
            average = group.average(row) if group is not None and row is not None else None
            spread = "" if average is None or math.isnan(average.std) else f" ± {average.std:.1f}"
            variant = "" if row is None or row.is_default else f" (`{row.fields.get('variant', titled(row.label))}`)"
            cells.append("-" if average is None or not average.count else f"{average.mean:.1f}{spread}{variant}")
        lines.append(f"| [{titled(label)}](docs/methods/{page}.md), {venue} | {idea} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
