"""The numbers in the documentation, from the records of runs. No number in a page is typed by hand.

    python benchmarks/results.py keep OUT NAME    # copy the small records of finished runs to benchmarks/results/NAME
    python benchmarks/results.py keep-audits OUT NAME    # copy every audit.json below OUT to benchmarks/results/audit/NAME
    python benchmarks/results.py write            # write every generated part of the pages anew (make results)
    python benchmarks/results.py check            # say which pages are not what would be written

A page has marks, and what stands between them is written by this file:

    <!-- results: leaderboard digits -->
    <!-- end -->

Parts: `leaderboard NAME`, `sentences NAME`, `figure NAME`, `runs NAME`, `inference NAME`, `systems NAME ...` (the README's
table), `method METHOD NAME ...` (a method's own lines in its page), `robust CLIENTS` (benchmarks/robust.py), `trust NAME`
and `familiarity NAME` (benchmarks/trust.py), `regret NAME` (benchmarks/regret.py), `audit NAME` (what leaks); `speed`,
`clients` and `cost BACKBONE` (benchmarks/speed.py).
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen.audits.findings import AUDIT_FILE, find_audits
from unseen.core.files import write_json
from unseen.core.words import megabytes
from unseen.experiments.choose import Choice
from unseen.experiments.collect import CHOSEN, Collection, Group, Row, collect
from unseen.experiments.statistics import average_over_targets, summarise
from unseen.reports.audit import audit_grids
from unseen.reports.findings import compared_sentence, noise_floor
from unseen.reports.names import titled
from unseen.reports.tables import markdown, p_value
from unseen.runs.directory import RunDirectory, find_runs
from unseen.runs.results import RoundLine, UnseenScore, Validation

TOP = Path(__file__).parent.parent
RECORDS = TOP / "benchmarks" / "results"
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
MARK = re.compile(r"(<!-- results: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SYSTEMS = ("fedfd", "fedfd-a", "gperxan", "stablefdg", "fedadg")  # of the four papers
EASY = {"digits": "ink"}  # a target that is easier than the sources: the mean is also given without it


# --- records ---------------------------------------------------------------------------------------------------------
def keep(out: Path, name: str) -> int:
    """What tables and curves need of each finished run: settings, result, evaluations and a thin line per round."""
    count = 0
    for run in find_runs(out):
        if run.result() is None:
            continue
        kept = RunDirectory(RECORDS / name / run.path.name)
        kept.path.mkdir(parents=True, exist_ok=True)
        config = json.loads(run.config_path.read_text())
        config["data"]["root"] = None  # where it lay on this machine is nobody's business
        config["net"]["weights"] = Path(config["net"]["weights"]).name
        write_json(kept.config_path, config)
        (kept.path / "result.json").write_text((run.path / "result.json").read_text())
        (kept.path / "results.jsonl").write_text("".join(f"{json.dumps(_thin(line))}\n" for line in run.rounds()))
        if (run.path / "evaluations.jsonl").exists():
            (kept.path / "evaluations.jsonl").write_text((run.path / "evaluations.jsonl").read_text())
        count += 1
    if (out / "bench.json").exists():
        (RECORDS / name / "bench.json").write_text((out / "bench.json").read_text())
    return count


def keep_audits(out: Path, name: str) -> int:
    """The findings of each audited run, without its pictures."""
    audits = find_audits(out)
    for one in audits:
        write_json(RECORDS / "audit" / name / one.run / AUDIT_FILE, one.to_json())
    return len(audits)


def _thin(line: RoundLine) -> dict[str, object]:
    """A round without its clients."""
    validation = Validation(line.validation.round, line.validation.accuracy) if line.validation else None
    unseen = UnseenScore(line.unseen.round, line.unseen.accuracy) if line.unseen else None
    thin = RoundLine(line.round, line.loss, validation=validation, unseen=unseen).to_json()
    return {key: value for key, value in thin.items() if value not in ({}, None)}


def records(name: str) -> Collection | None:
    folder = RECORDS / name
    found = collect(folder) if folder.is_dir() else None
    return found if found is not None and found.groups else None


def main_group(name: str) -> Group | None:
    """The runs of a folder under one condition: those with most runs."""
    collection = records(name)
    if collection is None:
        return None
    return max(collection.groups, key=lambda group: sum(len(row.results) for row in group.rows))


# --- parts -----------------------------------------------------------------------------------------------------------
NOTHING = "No runs are recorded yet.\n"


def leaderboard(name: str) -> str:
    group = main_group(name)
    if group is None:
        return NOTHING
    easy = EASY.get(name)
    compared = group.comparisons()
    without = [f"without {easy}"] if easy else []
    head = ["method", *group.targets, "mean", *without, "in-domain", "worst", "Δ to FedAvg", "wins", "p"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    rows = group.best()
    best = {t: max(_mean(row, t) for row in rows) for t in group.targets}
    for place, row in enumerate(rows):
        average = group.average(row)
        cells = [titled(row.label).replace("*", "\\*") + (" \\*" if row.sends else "")]
        for target in group.targets:
            value = _mean(row, target)
            cells.append(_bold(f"{value:.1f}", value == best[target]) if not math.isnan(value) else "-")
        spread = "" if math.isnan(average.std) else f" ± {average.std:.1f}"
        cells.append(_bold(f"{average.mean:.1f}{spread}", place == 0) if average.count else "-")
        if easy:
            rest = average_over_targets(row.scores(), [t for t in group.targets if t != easy])
            cells.append(f"{rest.mean:.1f}" if rest.count else "-")
        inside = group.average(row, "in_domain_accuracy")
        cells.append(f"{inside.mean:.1f}" if inside.count else "-")
        worst = group.worst(row)
        cells.append(f"{worst.mean:.1f}" if worst.count else "-")
        one = compared.get(row.label)
        if one is None:
            cells += ["", "", ""]
        else:
            interval = "" if math.isnan(one.low) else f" ({one.low:+.1f} to {one.high:+.1f})"
            cells += [f"{one.difference:+.1f}{interval}", f"{one.wins}/{one.pairs}", p_value(one.corrected)]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [
        "Accuracy in % on the whole unseen domain, of the round that the sources' validation images chose; mean and",
        "standard deviation over seeds. In-domain: the same model on held-back images of the sources. Worst: the unseen",
        "domain where accuracy is lowest, the mean over seeds. Δ: paired by target and seed, with a 95 % interval by a",
        "bootstrap over seeds. p: Wilcoxon's signed-rank test, Holm-corrected for all methods of the table. \\* sends",
        "more than the model's weights.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def _bold(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted else text


def _mean(row: Row, target: str) -> float:
    return summarise(value for (name, _), value in row.scores().items() if name == target).mean


def sentences(name: str) -> str:
    """What the table says, in words."""
    group = main_group(name)
    if group is None:
        return NOTHING
    compared = group.comparisons()
    rows = {row.label: row for row in group.rows}
    ours = [label for label, row in rows.items() if row.method in SYSTEMS and label in compared and not row.fields]
    ours = sorted(
        (label for label in ours if not label.endswith(CHOSEN)), key=lambda label: -compared[label].difference
    )
    best = group.best()[0]
    lines = [f"**{titled(best.label)}** has the best mean over unseen domains, {group.average(best).mean:.1f} %."]
    lines += [compared_sentence(rows[label], compared[label], "fedavg") for label in ours]
    if (apart := noise_floor(group, "fedavg")) is not None:
        lines.append(
            f"FedAvg against itself: two seeds are {apart:.1f} points apart on the mean over targets (root mean square). "
            "A smaller difference between two single runs means nothing."
        )
    return "\n".join(f"- {line}" for line in lines) + "\n"


def runs(name: str) -> str:
    """Command, commits, seeds and kernels."""
    collection, group = records(name), main_group(name)
    if collection is None or group is None:
        return NOTHING
    results = [result for row in group.rows for result in row.results.values()]
    said = collection.about.get("commands", [])
    commits = sorted({result.commit for result in results if result.commit})
    seconds = sorted(result.seconds for row in group.rows if row.label == "fedavg" for result in row.results.values())
    lines = ["```", *said, f"unseen report benchmarks/results/{name}", "```", ""]
    lines.append(
        f"{len(results)} runs; seeds {', '.join(map(str, group.seeds))}; kernels "
        f"{', '.join(sorted({r.kernels for r in results}))}; commits {', '.join(commits) or 'not recorded'}; "
        + (f"a FedAvg run took {seconds[len(seconds) // 2]:.0f} s (median)." if seconds else "")
    )
    return "\n".join(lines) + "\n"


def inference(name: str) -> str:
    from unseen.reports.tables import inference_grid, markdown

    group = main_group(name)
    grid = inference_grid(group) if group is not None else None
    return NOTHING if grid is None else markdown(grid)


COVERAGE = "0.95"  # that is shown: at less, the sets of these models are plain answers


def trust_records(name: str) -> dict[str, list[dict[str, Any]]]:
    """By method: what `benchmarks/trust.py` found of each of its runs, FedAvg first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((RECORDS / "trust" / name).glob("*.json")):
        one = json.loads(file.read_text())
        found.setdefault(one["label"], []).append(one)
    return dict(sorted(found.items(), key=lambda pair: (pair[0] != "fedavg", pair[0])))


def trust(name: str) -> str:
    """Prediction sets and probabilities, in-domain and at the unseen site; familiarity against three strangers."""
    found = trust_records(name)
    if not found:
        return NOTHING
    head = ["method", "unseen domains", "sets hold, in-domain", "unseen", "classes in a set, in-domain", "unseen"]
    head += ["calibration error in-domain", "after", "unseen", "after", "AUROC unseen", "noise", "letters"]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for label, ones in found.items():

        def mean(read: Callable[[dict[str, Any]], float], ones: list[dict[str, Any]] = ones) -> float:
            return sum(read(one) for one in ones) / len(ones)

        cells = [label.replace("*", "\\*"), ", ".join(sorted({one["target"] for one in ones}))]
        for what, show in (("coverage", "{:.1%}"), ("set_size", "{:.2f}")):
            for where in ("in_domain", "unseen"):
                value = mean(lambda one, where=where, what=what: one[where][what][COVERAGE])
                cells.append(show.format(value).replace("%", " %"))
        for where in ("in_domain", "unseen"):
            for when in ("error_before", "error_after"):
                value = mean(lambda one, where=where, when=when: one[where][when])
                cells.append(f"{100 * value:.1f} %")
        for stranger in ("unseen", "noise", "letters"):
            value = mean(lambda one, stranger=stranger: one["auroc"][stranger]["largest logit"])
            cells.append(f"{100 * value:.0f} %")
        lines.append("| " + " | ".join(cells) + " |")
    count = sum(len(ones) for ones in found.values())
    notes = [
        f"{count} runs, means over the unseen domains named. Sets at coverage {COVERAGE}. In-domain: held-back test images of the",
        "sources. Calibration error: at temperature 1, and after temperature scaling. AUROC of the largest logit: in-domain",
        "images against those of the unseen domain, noise, and letters; 50 % is chance, and below 50 % the model is surer",
        "of the strangers.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def familiarity(name: str) -> str:
    """Three functions of the logits that could tell the unfamiliar, by strangers that are no unseen domain."""
    ones = [one for each in trust_records(name).values() for one in each]
    if not ones:
        return NOTHING
    lines = ["| score | noise | letters | own mistakes |", "|---|---:|---:|---:|"]
    for kind in ones[0]["auroc"]["noise"]:
        strangers = [sum(one["auroc"][s][kind] for one in ones) / len(ones) for s in ("noise", "letters")]
        mistaken = [one["mistakes"][kind] for one in ones if one["mistakes"]]
        values = [*strangers, sum(mistaken) / len(mistaken) if mistaken else math.nan]
        lines.append(f"| {kind} | " + " | ".join(f"{100 * value:.1f} %" for value in values) + " |")
    note = f"AUROC against in-domain images, the mean over {len(ones)} runs; own mistakes: right answers against wrong ones."
    return "\n".join([*lines, "", note]) + "\n"


def figure(name: str) -> str:
    """Differences to FedAvg with their intervals, as docs/img/results-NAME.svg."""
    group = main_group(name)
    if group is None:
        return NOTHING
    if not CHECKING:
        draw(group, TOP / "docs" / "img" / f"results-{name}.svg")
    return f"![Difference to FedAvg of every method on {name}](img/results-{name}.svg)\n"


def draw(group: Group, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "unseen"  # the same picture for the same numbers
    compared = sorted(group.comparisons().items(), key=lambda pair: pair[1].difference)
    shown, axes = plt.subplots(figsize=(7, 0.6 + 0.24 * len(compared)))
    for place, (label, one) in enumerate(compared):
        row = next(row for row in group.rows if row.label == label)
        colour = "#b3541e" if row.method in SYSTEMS else "#4c6a8a"
        if not math.isnan(one.low):
            axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
        axes.plot([one.difference], [place], "o", color=colour, markersize=5)
    axes.axvline(0, color="#888888", linewidth=1)
    axes.set_yticks(range(len(compared)), [titled(label) for label, _ in compared], fontsize=8)
    axes.set_xlabel("points ahead of FedAvg, mean over unseen domains (95 % interval over seeds)", fontsize=8)
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
        group = main_group(name)
        for row in group.rows if group is not None else []:
            if group is not None and row.method == label and (average := group.average(row)).count:
                one = group.comparisons().get(row.label)
                words = "" if one is None else f", {one.difference:+.1f} to FedAvg ({one.wins} of {one.pairs} pairs)"
                spread = "" if math.isnan(average.std) else f" ± {average.std:.1f}"
                lines.append(f"- `{name}`: {titled(row.label)} {average.mean:.1f}{spread} %{words}")
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
    lines = [
        "| system | idea | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|---|" + "---:|" * len(names),
    ]
    for label, (venue, idea) in PAPERS.items():
        page = "fedfd" if label == "fedfd-a" else label
        cells = []
        for name in names:
            group = main_group(name)
            row = next((row for row in group.rows if row.label.partition(" (")[0] == label), None) if group else None
            average = group.average(row) if group is not None and row is not None else None
            spread = "" if average is None or math.isnan(average.std) else f" ± {average.std:.1f}"
            cells.append("-" if average is None or not average.count else f"{average.mean:.1f}{spread}")
        lines.append(f"| [{titled(label)}](docs/methods/{page}.md), {venue} | {idea} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def robust(clients: str) -> str:
    """Robust parts against liars, for so many clients: the unseen accuracy, and how often the backdoor opens."""
    found = [json.loads(path.read_text()) for path in sorted((RECORDS / "robust").glob("*.json"))]
    found = [record for record in found if record["clients"] == int(clients)]
    if not found:
        return "No record yet: `python benchmarks/robust.py`.\n"
    order = ("none", "scaled", "sign flip", "label flip", "backdoor")
    attacks = [attack for attack in order if any(record["attack"] == attack for record in found)]
    columns = [*attacks, "backdoor opens"] if "backdoor" in attacks else attacks
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(record["method"] for record in found):
        own = [record for record in found if record["method"] == name]
        cells = [_share([r["accuracy"] for r in own if r["attack"] == attack]) for attack in attacks]
        cells += [_share([r["backdoor"] for r in own if r["attack"] == "backdoor"])] * ("backdoor" in attacks)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    targets, seeds, rounds = (sorted({record[key] for record in found}) for key in ("target", "seed", "rounds"))
    spelled = [", ".join(map(str, values)) for values in (targets, seeds, rounds)]
    return "\n".join(lines) + (
        f"\n\nUnseen {spelled[0]}; seeds {spelled[1]}; {spelled[2]} rounds; the last round's model, in %. "
        f"{len(found)} records; `stopped`: the run ended with an error.\n"
    )


def _share(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{100 * sum(there) / len(there):.1f}" if there else "stopped" if values else "-"


def regret(name: str) -> str:
    """For each target, the method that `choose` recommended by the other domains alone (benchmarks/regret.py)."""
    group = main_group(name)
    files = sorted((RECORDS / "regret").glob(f"{name}-*.json")) if (RECORDS / "regret").is_dir() else []
    if group is None or not files:
        return NOTHING
    choices = {file.stem.removeprefix(f"{name}-"): Choice.read(file) for file in files}
    lines = [
        "| unseen | recommended | its accuracy | best in hindsight | its accuracy | FedAvg | regret | gain over FedAvg |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    regrets, gains = [], []
    for target in [t for t in group.targets if t in choices]:
        choice = choices[target]
        candidates = {one.method for one in choice.candidates}
        means = {r.label: m for r in group.rows if r.label.partition(" (")[0] in candidates and not r.fields
                 and not math.isnan(m := _mean(r, target))}  # fmt: skip
        own = next((m for label, m in means.items() if label.partition(" (")[0] == choice.method), None)
        if own is None or "fedavg" not in means:
            continue
        best = max(means, key=lambda label: means[label])
        regrets.append(means[best] - own)
        gains.append(own - means["fedavg"])
        cells = [target, choice.recommended.label, f"{own:.1f}", best, f"{means[best]:.1f}", f"{means['fedavg']:.1f}"]
        lines.append("| " + " | ".join([*cells, f"{regrets[-1]:.1f}", f"{gains[-1]:+.1f}"]) + " |")
    if not regrets:
        return NOTHING
    mean = [f"{sum(values) / len(values):+.1f}" for values in (regrets, gains)]
    lines.append(f"| mean | | | | | | {mean[0].removeprefix('+')} | {mean[1]} |")
    rounds = sorted({choice.rounds for choice in choices.values()})
    seeds = sorted({seed for choice in choices.values() for seed in choice.seeds})
    notes = [
        "Accuracy in % on the unseen domain, of models that trained on the three others. Each recommendation comes from",
        "those three alone: one is left out in turn and two train, with runs of "
        f"{' and '.join(map(str, rounds))} rounds and seeds {', '.join(map(str, seeds))}.",
        "Regret: how far the recommended method is behind the best in hindsight.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def audit(name: str) -> str:
    """What attacks found on the runs of a folder of audits."""
    audits = find_audits(RECORDS / "audit" / name)
    if not audits:
        return "No audits are recorded yet.\n"
    whole = f"target {audits[0].target}, seed {audits[0].seed}, {audits[0].budget}, effort {audits[0].effort:g}"
    proved = sum(one.same_bits is True for one in audits)
    lines = [
        f"{audits[0].data}, {whole}.",
        f"Replayed rounds had the run's own bits in {proved} of {len(audits)} audits.",
        "",
    ]
    tables = [markdown(replace(grid, notes=[])) for grid in audit_grids(audits)]  # the page itself has the words
    return "\n".join([*lines, *tables])


# --- speed -----------------------------------------------------------------------------------------------------------
def speed_record(name: str) -> dict[str, Any] | None:
    """What a benchmark of speed kept (benchmarks/speed.py)."""
    file = RECORDS / "speed" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def _net(record: Mapping[str, Any]) -> str:
    return f"{record['backbone']} at {record['image_size']} px"


def speed() -> str:
    """One row per benchmark."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for file in sorted((RECORDS / "speed").glob("overhead-*.json")):
        one = json.loads(file.read_text())
        rows.append((
            "FedAvg through `unseen` against a bare PyTorch loop over the same batches",
            f"{one['ratio']:.2f}x, half of {one['pairs']} pairs of rounds from {one['low']:.2f} to {one['high']:.2f} "
            f"({_net(one)}; {one['clients']} clients x {one['steps']} steps of {one['batch_size']})",
            one,
        ))  # fmt: skip
    for file in sorted((RECORDS / "speed").glob("store-*.json")):
        one = json.loads(file.read_text())
        rows.append((
            "an epoch from JPEG files: PIL and per-image torchvision against the store and batched augmentation",
            f"{one['ratio']:.1f}x faster ({one['images']:,} images at {one['size']} px; {one['of']})",
            one,
        ))  # fmt: skip
    if one := speed_record("allocator"):
        ratio = one["default"] / one["kept"]
        rows.append((
            "a training step with freed memory kept, against glibc's default",
            f"{ratio:.2f}x faster ({_net(one)}, batch 32)",
            one,
        ))  # fmt: skip
    if one := speed_record("kernels"):
        nets = (f"{n['avx2'] / n['native']:.2f}x ({net} at {n['image_size']} px)" for net, n in one["nets"].items())
        rows.append((
            "a training step by AVX2's kernels, which every run takes, against those of an AVX-512 CPU "
            "(`UNSEEN_CPU=native`): the price of [the same bits on every machine](architecture.md#same-bits)",
            ", ".join(nets),
            one,
        ))  # fmt: skip
    if one := speed_record("server"):
        rows.append((
            "the server's part of a GA round against the weighted mean of the replies alone",
            f"{one['ours'] / one['plain']:.1f}x ({one['parameters'] / 1e6:.1f} million numbers, {one['clients']} clients): "
            f"of {1e3 * one['ours']:.0f} ms the mean in float64 takes {1e3 * one['mean']:.0f}, checks of the replies "
            f"{1e3 * one['checks']:.0f} and norms of their updates {1e3 * one['norms']:.0f}; the mean alone in float32 "
            f"{1e3 * one['plain']:.0f} ms",
            one,
        ))  # fmt: skip
    if not rows:
        return NOTHING
    lines = ["| what | measured | by |", "|---|---|---|"]
    lines += [f"| {what} | {measured} | `{one['command']}` |" for what, measured, one in rows]
    return "\n".join([*lines, "", filled(_machine([one for _, _, one in rows]))]) + "\n"


def filled(text: str) -> str:
    """A paragraph in lines that a page may have."""
    return textwrap.fill(text, width=118, break_long_words=False, break_on_hyphens=False)


def _machine(ones: Sequence[Mapping[str, Any]]) -> str:
    loads = [one["load"] for one in ones]
    cpus = sorted({f"{one['cpu']}, {one['cores']} cores" for one in ones})
    busy = f"{min(loads):g}" if min(loads) == max(loads) else f"{min(loads):g} to {max(loads):g}"
    return f"{'; '.join(cpus)}; load {busy} meanwhile; commits {', '.join(sorted({one['commit'] for one in ones}))}."


def clients() -> str:
    """Peak memory and time per selected client, by the number of clients (benchmarks/clients.py)."""
    record = speed_record("clients")
    if record is None:
        return NOTHING
    counts = list(next(iter(record["methods"].values())))
    head = [f"{what}, {int(count):,} clients" for what in ("peak memory", "per selected client") for count in counts]
    lines = ["| method | " + " | ".join(head) + " |", "|---" + "|---:" * len(head) + "|"]
    for name, found in record["methods"].items():
        few = found[counts[0]]
        cells = [f"{one['peak']:.0f} MB ({one['peak'] / few['peak']:.2f}x)" for one in found.values()]
        cells += [f"{1e3 * one['seconds']:.1f} ms ({one['seconds'] / few['seconds']:.2f}x)" for one in found.values()]
        lines.append(f"| {titled(name)} | " + " | ".join(cells) + " |")
    note = (
        f"{record['selected']} clients take part in each of {record['rounds']} rounds; CPU time. `{record['command']}`; "
        f"{_machine([record])}"
    )
    return "\n".join([*lines, "", filled(note)]) + "\n"


def cost(backbone: str) -> str:
    """Every method's step, inference and bytes beside FedAvg's."""
    record = speed_record(f"cost-{backbone}")
    if record is None:
        return NOTHING
    lines = [
        "| method | parameters | step | inference | up, per client and round | beyond weights | down |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in record["methods"]:
        cells = [titled(one["method"]), f"{one['parameters']:,}", f"{one['step_ratio']:.2f}x"]
        cells.append(f"{one['inference_ratio']:.2f}x")
        cells += [megabytes(one[key]) for key in ("bytes_up", "bytes_up_statistics", "bytes_down")]
        lines.append("| " + " | ".join(cells) + " |")
    base, settings = record["methods"][0], record["settings"]
    notes = [
        f"{_net(settings)}, batch {settings['batch_size']}; FedAvg's step takes {1e3 * base['step_seconds']:.1f} ms of "
        f"CPU, its inference {1e3 * base['inference_seconds']:.1f} ms a batch; the fastest of {settings['repeats']} "
        f"measurements of {settings['steps']} steps.",
        *(f"Left out: {sentence}" for sentence in record["left_out"]),
        f"`{record['command']}`; {_machine([record])}",
    ]
    return "\n".join([*lines, "", filled(" ".join(notes))]) + "\n"


PARTS: dict[str, Callable[..., str]] = {
    "leaderboard": leaderboard, "sentences": sentences, "figure": figure, "runs": runs, "inference": inference,
    "method": method, "systems": systems, "robust": robust, "trust": trust, "familiarity": familiarity,
    "regret": regret, "audit": audit, "speed": speed, "clients": clients, "cost": cost,
}  # fmt: skip
CHECKING = False


def generated(page: str) -> str:
    """A page with its generated parts as they should be."""

    def part(match: re.Match[str]) -> str:
        kind, *words = match[2].split()
        return match[1] + PARTS[kind](*words) + match[3]

    return MARK.sub(part, page)


def stale() -> list[Path]:
    """Pages that are not what would be written now."""
    global CHECKING
    CHECKING = True
    return [page for page in PAGES if generated(page.read_text()) != page.read_text()]


def main(words: Sequence[str]) -> int:
    if len(words) == 3 and words[0] == "keep":
        print(f"kept {keep(Path(words[1]), words[2])} runs in {RECORDS / words[2]}")
        return 0
    if len(words) == 3 and words[0] == "keep-audits":
        print(f"kept {keep_audits(Path(words[1]), words[2])} audits in {RECORDS / 'audit' / words[2]}")
        return 0
    if words in (["write"], ["check"]):
        if words == ["check"]:
            pages = stale()
            print("\n".join(f"{page} is not what its records say: make results" for page in pages) or "all as recorded")
            return 1 if pages else 0
        for page in PAGES:
            text = page.read_text()
            if (new := generated(text)) != text:
                page.write_text(new)
                print(f"wrote {page}")
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
