"""Other conditions than a protocol's: many clients, a longer budget, and settings that the sources chose."""

from __future__ import annotations

import math
from dataclasses import replace

from tables import kept
from tables.accuracy import commands
from tables.kept import NOTHING, filled, made_by, main_group, mean_on, named, remarks, row_of, seeds_of, top, whole

from unseen.experiments.collect import BASELINE, Group, Row
from unseen.experiments.published import SYSTEMS as PAPERS_NAMES
from unseen.experiments.published import TABLES
from unseen.experiments.statistics import Comparison, summarise
from unseen.experiments.tune import Choices
from unseen.reports.names import titled


def many(name: str, source: str) -> str:
    """Runs of benchmarks/paper/small-NAME.toml beside the paper's table ("StableFDG_Table_2b": spaces as _)."""
    group = main_group(f"many/{name}")
    if group is None:
        return NOTHING
    source = source.replace("_", " ")
    theirs = {
        PAPERS_NAMES.get(row.system): row.average
        for one in TABLES
        if (one.source, one.data) == (source, "pacs")
        for row in one.rows
    }
    targets = targets_of(group)
    rows = [row for one in group.rows if seeds_of(row := whole(one, targets), targets)]  # whole seeds alone
    compared = replace(group, rows=rows).comparisons()
    lines = top(["method", *targets, "mean", "in-domain", "Δ to FedAvg", "wins", "seeds", f"{source}, PACS"])
    for row in sorted(rows, key=lambda row: -_mean(row, targets)):
        cells = [named(row), *(f"{mean_on(row, target):.1f}" for target in targets)]
        cells += [f"{_mean(row, targets):.1f}", f"{_mean(row, targets, 'in_domain_accuracy'):.1f}"]
        published = theirs.get(row.method, math.nan)
        cells += [*_ahead(compared.get(row.label)), str(len(seeds_of(row, targets)))]
        cells += ["-" if math.isnan(published) else f"{published:.1f}"]
        lines.append(row_of(cells))
    plan = group.settings.plan
    seeds = ", ".join(map(str, sorted({seed for row in rows for _, seed in row.results})))
    about = (
        f"Accuracy in % on the unseen domain. {plan.participation:g} clients in a round, {plan.rounds} rounds of "
        f"{plan.local_steps} steps; seeds {seeds}; differences are paired by target and seed. The last column is the paper's "
        f"average, with a larger net. `unseen bench --file benchmarks/paper/small-{name}.toml --targets {','.join(targets)} "
        f"--seeds {seeds.replace(' ', '')} --out OUT`; {made_by(group)}."
    )
    return "\n".join([*lines, "", filled(about), *remarks(rows)]) + "\n"


def longer(name: str) -> str:
    """The same methods with the protocol's budget and with a longer one, on the same target and seed."""
    usual, long = main_group(name), main_group(f"long/{name}")
    if usual is None or long is None:
        return NOTHING
    rounds = [group.settings.plan.rounds for group in (usual, long)]
    pairs = [
        (before, row)
        for row in long.rows
        for before in usual.rows
        if (before.label, before.is_default) == (row.label, True)
    ]
    cells = sorted({cell for _, row in pairs for cell in row.results})
    lines = []
    for target, seed in cells:
        found = {
            row.label: (before.scores()[target, seed], row.scores()[target, seed], row)
            for before, row in pairs
            if (target, seed) in before.results and (target, seed) in row.results
        }
        if BASELINE not in found:
            continue
        own = found[BASELINE]
        lines += top(
            [
                f"`{name}`, unseen {target}, seed {seed}",
                *(f"{r} rounds" for r in rounds),
                "Δ to FedAvg",
                "Δ longer",
                "in-domain, longer",
            ]
        )
        for label, (short, far, row) in sorted(found.items(), key=lambda one: -one[1][1]):
            gains = ["", ""] if label == BASELINE else [f"{short - own[0]:+.1f}", f"{far - own[1]:+.1f}"]
            inside = row.scores("in_domain_accuracy")[target, seed]
            lines.append(row_of([named(row), f"{short:.1f}", f"{far:.1f}", *gains, f"{inside:.1f}"]))
        orders = [[label for label, _ in sorted(found.items(), key=lambda one: -one[1][at])] for at in (0, 1)]
        same = "The order is the same." if orders[0] == orders[1] else "The order changes."
        lines += [
            "",
            filled(
                f"{same} One target and one seed: differences of a point or two are noise. "
                f"{'; '.join(f'`{one}`' for one in commands(f'long/{name}', long, f' --rounds {rounds[1]}'))}; {made_by(long)}."
            ),
            *remarks(row for _, _, row in found.values()),
        ]
    return "\n".join(lines or [NOTHING.strip()]) + "\n"


def precision(*names: str) -> str:
    """The same runs in float32 and in bfloat16, paired by target and seed."""
    lines, notes = [], []
    for name in names:
        usual, low = main_group(name), main_group(f"bfloat16/{name}")
        if usual is None or low is None:
            continue
        for row in low.rows:
            before = next((one for one in usual.rows if one.label == row.label), None)
            shared = sorted({*row.results} & {*before.results}) if before is not None else []
            if before is None or not shared:
                continue
            cells = [f"`{name}`", titled(row.label), str(len(shared))]
            for what in ("accuracy", "in_domain_accuracy"):
                pairs = [(before.scores(what)[cell], row.scores(what)[cell]) for cell in shared]
                gap = summarise(after - own for own, after in pairs)
                spread = "" if math.isnan(gap.half_width) else f" ± {gap.half_width:.1f}"
                means = [f"{sum(side) / len(side):.1f}" for side in zip(*pairs, strict=True)]
                cells += [*means, f"{gap.mean:+.1f}{spread}"]
            lines.append(row_of(cells))
        notes += [f"`{one}`" for one in commands(f"bfloat16/{name}", low, " --precision bfloat16")] + [made_by(low)]
    if not lines:
        return NOTHING
    sides = ["float32", "bfloat16", "Δ"]
    head = ["protocol", "method", "pairs", *(f"unseen, {s}" for s in sides), *(f"in-domain, {s}" for s in sides)]
    about = f"Accuracy in %, paired by target and seed; ± is half of the 95 % interval over pairs. {'; '.join(notes)}."
    return "\n".join([*top(head, 2), *lines, "", filled(about)]) + "\n"


def chosen(name: str) -> str:
    """Defaults beside what `unseen tune` chose by the sources, the same effort for every method."""
    group = main_group(f"tuned/{name}")
    file = kept.RECORDS / "tuned" / f"{name}-choices.json"
    if group is None or not file.exists():
        return NOTHING
    flagship = main_group(name)
    groups = [group] if flagship is None or flagship.condition != group.condition else [group, flagship]
    choices = Choices.read(file)
    lines = top(
        [
            "method",
            "unseen",
            "chosen by the sources",
            "validation: default",
            "chosen",
            "unseen: default",
            "chosen",
            "Δ",
        ],
        3,
    )
    gains: dict[str, list[float]] = {}
    for one in choices.chosen:
        rows = [row for found in groups for row in found.rows if row.method == one.method]
        best = {c: v for row in rows if row.chosen for c, v in row.scores().items() if c[0] == one.target}
        default = {c: v for row in rows if row.is_default for c, v in row.scores().items() if c[0] == one.target}
        if one.trial.label == "default":
            best = best or default
        shared = sorted({*best} & {*default})
        longest = max(scored.rounds for scored in one.scores)
        by_sources = {s.trial.label: s.score for s in one.scores if s.rounds == longest and s.score is not None}
        cells = [titled(one.method), one.target, one.trial.label]
        cells += [_percent(by_sources.get(label)) for label in ("default", one.trial.label)]
        if shared:
            before, after = (sum(side[cell] for cell in shared) / len(shared) for side in (default, best))
            gains.setdefault(one.method, []).append(after - before)
            cells += [f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"]
        else:
            cells += ["-", "-", "-"]
        lines.append(row_of(cells))
    about = choices.about
    said = "; ".join(f"{titled(method)} {sum(values) / len(values):+.1f}" for method, values in gains.items())
    seeds = ", ".join(map(str, group.seeds))
    note = (
        f"Accuracy in %. {about['trials']} trials for each method and target, seed {about['seed']}, by validation images of "
        f"the sources: `unseen tune`. The unseen domain was measured once, afterwards, with seeds {seeds}. Gain by choosing, "
        f"mean over targets: {said or 'not measured yet'}."
    )
    return "\n".join([*lines, "", filled(note)]) + "\n"


def targets_of(group: Group) -> list[str]:
    """The targets that were run, which may be some of the dataset's."""
    ran = {target for row in group.rows for target, _ in row.results}
    return [target for target in group.targets if target in ran]


def _mean(row: Row, targets: list[str], what: str = "accuracy") -> float:
    scores = row.scores(what)
    means = [[v for (t, _), v in scores.items() if t == target] for target in targets]
    return sum(sum(values) / len(values) for values in means) / len(means) if all(means) else math.nan


def _ahead(one: Comparison | None) -> list[str]:
    if one is None:
        return ["", ""]
    interval = "" if math.isnan(one.low) else f" ({one.low:+.1f} to {one.high:+.1f})"
    return [f"{one.difference:+.1f}{interval}", f"{one.wins}/{one.pairs}"]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
