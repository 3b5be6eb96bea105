"""The numbers in the documentation, from the records of runs. No number in a page is typed by hand.

    python benchmarks/results.py keep OUT NAME    # copy the small records of finished runs to benchmarks/results/NAME
    python benchmarks/results.py keep-audits OUT NAME    # copy every audit.json below OUT to benchmarks/results/audit/NAME
    python benchmarks/results.py keep-story WORK NAME    # copy what examples/new_site/story.py found in WORK
    python benchmarks/results.py write            # write every generated part of the pages anew (make results)
    python benchmarks/results.py check            # say which pages are not what would be written

A page has marks, and what stands between them is written by this file:

    <!-- results: leaderboard digits -->
    <!-- end -->

Parts: `leaderboard NAME`, `sentences NAME`, `figure NAME`, `runs NAME`, `inference NAME`, `systems NAME ...` (the README's
table), `method METHOD NAME ...` (a method's own lines in its page), `robust DATA CLIENTS` (benchmarks/robust.py), `trust NAME`
and `familiarity NAME` (benchmarks/trust.py), `look NAME` (benchmarks/look.py), `regret NAME` (benchmarks/regret.py),
`compose NAME` (benchmarks/compose.py), `export` (benchmarks/export.py), `story NAME` (examples/new_site), `audit NAME`
(what leaks), `attacks` (benchmarks/attacks.py), `overhead` (benchmarks/checks.py), `flower NAME` (benchmarks/flower.py), `speed`,
`clients` and `cost BACKBONE` (benchmarks/speed.py).
"""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen.audits.findings import AUDIT_FILE, find_audits
from unseen.core.files import write_json
from unseen.core.words import megabytes
from unseen.experiments.choose import Choice
from unseen.experiments.collect import CHOSEN, Collection, Group, Row, collect
from unseen.experiments.statistics import average_over_targets, compare, summarise
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
        _keep_about(json.loads((out / "bench.json").read_text()), RECORDS / name / "bench.json")
    return count


def _keep_about(found: dict[str, Any], file: Path) -> None:
    """What was asked for, beside what was asked for in sessions before."""
    known = json.loads(file.read_text()) if file.exists() else {}
    for key, value in found.items():
        if isinstance(value, list):
            known[key] = [*(before := known.get(key, [])), *(one for one in value if one not in before)]
        else:
            known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
    write_json(file, known)


def keep_audits(out: Path, name: str) -> int:
    """The findings of each audited run, without its pictures."""
    audits = find_audits(out)
    for one in audits:
        write_json(RECORDS / "audit" / name / one.run / AUDIT_FILE, one.to_json())
    return len(audits)


STORY = {"story.json": "story.json", "choice/choice.json": "choice.json", "check/metrics.json": "metrics.json"}


def keep_story(work: Path, name: str) -> int:
    """What was said, chosen and measured."""
    for source, kept in STORY.items():
        write_json(RECORDS / "story" / name / kept, json.loads((work / source).read_text()))
    return len(STORY)


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
ATTACKS = ("none", "scaled", "sign flip", "label flip", "backdoor")  # of benchmarks/robust.py, in the tables' order


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
    kernels = sorted({f"{r.kernels} on {r.cpu or 'a CPU that was not recorded'}" for r in results})
    lines.append(
        f"{len(results)} runs; seeds {', '.join(map(str, group.seeds))}; kernels "
        f"{', '.join(kernels)}; commits {', '.join(commits) or 'not recorded'}; "
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


BOTH = "look or largest logit"  # what `unseen predict` calls unlike training


def trust(name: str) -> str:
    """Prediction sets and probabilities, in-domain and at the unseen site; familiarity against three strangers."""
    found = trust_records(name)
    if not found:
        return NOTHING
    head = ["method", "unseen domains", "sets hold, in-domain", "unseen", "classes in a set, in-domain", "unseen"]
    head += ["calibration error in-domain", "after", "unseen", "after", "AUROC unseen", "noise", "letters"]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for label, ones in found.items():
        cells = [label.replace("*", "\\*"), ", ".join(sorted({one["target"] for one in ones}))]
        for what, show in (("coverage", "{:.1%}"), ("set_size", "{:.2f}")):
            for where in ("in_domain", "unseen"):
                value = sum(one[where][what][COVERAGE] for one in ones) / len(ones)
                cells.append(show.format(value).replace("%", " %"))
        for where in ("in_domain", "unseen"):
            for when in ("error_before", "error_after"):
                cells.append(f"{100 * sum(one[where][when] for one in ones) / len(ones):.1f} %")
        cells += [_auroc(ones, stranger, BOTH, 0) for stranger in ("unseen", "noise", "letters")]
        lines.append("| " + " | ".join(cells) + " |")
    count = sum(len(ones) for ones in found.values())
    notes = [
        f"{count} runs, means over the unseen domains named. Sets at coverage {COVERAGE}. In-domain: held-back test images of the",
        "sources. Calibration error: at temperature 1, and after temperature scaling. AUROC of what `unlike training` says:",
        "in-domain images against those of the unseen domain, noise, and letters; 50 % is chance.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def _auroc(ones: Sequence[dict[str, Any]], stranger: str, kind: str, digits: int = 1) -> str:
    """The mean over the runs that have it; those of earlier versions had no looks."""
    values = [one["auroc"][stranger][kind] for one in ones if kind in one["auroc"][stranger]]
    return f"{100 * sum(values) / len(values):.{digits}f} %" if values else "-"


def familiarity(name: str) -> str:
    """Scores that could tell the unfamiliar."""
    ones = [one for each in trust_records(name).values() for one in each]
    if not ones:
        return NOTHING
    kinds = dict.fromkeys(kind for one in ones for kind in one["auroc"]["noise"])
    lines = ["| score | unseen domain | noise | letters | own mistakes | runs |", "|---|---:|---:|---:|---:|---:|"]
    for kind in kinds:
        own = [one for one in ones if kind in one["auroc"]["noise"]]
        cells = [_auroc(own, stranger, kind) for stranger in ("unseen", "noise", "letters")]
        mistaken = [one["mistakes"][kind] for one in own if one["mistakes"]]
        cells.append(f"{100 * sum(mistaken) / len(mistaken):.1f} %" if mistaken else "-")
        lines.append(f"| {kind} | " + " | ".join([*cells, str(len(own))]) + " |")
    note = "AUROC against in-domain images, means over runs; own mistakes: right answers against wrong ones."
    return "\n".join([*lines, "", note]) + "\n"


def look(name: str) -> str:
    """Which numbers and which distance tell a domain that was left out, by sources alone (benchmarks/look.py)."""
    file = RECORDS / "look" / f"{name}.json"
    if not file.exists():
        return "No record yet: `python benchmarks/look.py`.\n"
    record = json.loads(file.read_text())
    targets = list(dict.fromkeys(one["targets"][0] for one in record["found"]))
    head = ["numbers", "distance", *(f"for {target}" for target in targets)]
    head += ["flagged", "known", "as JPEG", "darker"]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for kind, words in dict.fromkeys((one["numbers"], one["distance"]) for one in record["found"]):
        own = [one for one in record["found"] if (one["numbers"], one["distance"]) == (kind, words)]
        cells = [_percent([one["auroc"] for one in own if target in one["targets"]]) for target in targets]
        cells += [_percent([one[what] for one in own]) for what in ("found", "flagged")]
        cells += [_percent([one["flagged_changed"][change] for one in own]) for change in ("jpeg", "darker")]
        lines.append(f"| {kind} | {words} | " + " | ".join(cells) + " |")
    notes = [
        "AUROC by sources alone, for each choice of a target: of the three other domains one is left out, and told from the",
        f"two that are known; means over the three. {record['images_of_a_domain']} images of each domain. Flagged: images of the",
        "domain that was left out that are beyond the limit; of known domains 2.5 % should be.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def export() -> str:
    """Exported models beside torch on one thread (benchmarks/export.py)."""
    file = RECORDS / "export.json"
    if not file.exists():
        return "No record yet: `python benchmarks/export.py`.\n"
    record = json.loads(file.read_text())
    lines = ["| net | method | torch, ms per image | exported / torch | look / torch |", "|---|---|---:|---:|---:|"]
    for one in record["rows"]:
        took = one["seconds"]
        net = f"{one['backbone']}, {one['image_size']} px, batches of {one['batch']}"
        ratios = " | ".join(f"{took[what] / took['torch']:.2f}" for what in ("exported", "look"))
        lines.append(f"| {net} | {titled(one['method'])} | {1e3 * took['torch'] / one['batch']:.2f} | {ratios} |")
    versions = " and ".join(f"{name} {version}" for name, version in record["versions"].items())
    note = f"One thread, the fastest of seven turns each; {versions}, torch by its kernels for {record['kernels']}."
    return "\n".join([*lines, "", note]) + "\n"


def story(name: str) -> str:
    """What examples/new_site/story.py said, what it chose from, and what the new site's labels say."""
    folder = RECORDS / "story" / name
    if not folder.is_dir():
        return NOTHING
    told = json.loads((folder / "story.json").read_text())
    metrics = json.loads((folder / "metrics.json").read_text())
    choice = Choice.read(folder / "choice.json")
    lines = ["```", *(line for said in told["said"] for line in textwrap.wrap(said, 110)), "```", ""]
    lines += ["What it chose from: the accuracy in % on each site when it was left out.", ""]
    head = ["method", "", *choice.sites, "mean", "behind the best", "sends beyond weights", "seconds per run"]
    lines += ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 4) + "|---|---:|"]
    for one in sorted(choice.candidates, key=lambda c: -(c.mean or 0)):
        cells = [titled(one.method), one.standing, *(f"{100 * sum(v) / len(v):.1f}" for v in one.accuracy.values())]
        cells += [f"{100 * (one.mean or 0):.1f}", f"{100 * (one.behind or 0):.1f} ± {100 * (one.error or 0):.1f}"]
        lines.append("| " + " | ".join([*cells, one.sends or "nothing", f"{one.seconds or 0:.0f}"]) + " |")
    lines += ["", "What `unseen check` says of the new site (`metrics.json`):", ""]
    lines += ["| measure | value |", "|---|---:|"]
    for words, value in (
        ("accuracy", _interval(metrics["accuracy"])),
        ("accuracy, also by images without labels", _interval(metrics["prediction_powered"]["accuracy"])),
        ("macro F1", _percent([metrics["measured"]["macro_f1"]])),
        ("AUROC", _percent([metrics["measured"]["auroc"]])),
        ("calibration error", _percent([metrics["measured"]["calibration_error"]])),
        (f"sets hold the class, should be {100 * metrics['covers']:.0f} %", _interval(metrics["coverage"])),
        ("classes in a set", f"{metrics['set_size']:.2f}"),
        ("unlike training", _percent([metrics["unlike_training"]])),
        ("unlike in look", _percent([metrics["unlike_look"]])),
        ("unlike in content", _percent([metrics["unlike_content"]])),
        ("the typical look is stranger than so many images of the known sites", _percent([metrics["typical_look"]])),
    ):
        lines.append(f"| {words} | {value} |")
    return "\n".join(lines) + "\n"


def _interval(share: dict[str, float]) -> str:
    return f"{100 * share['value']:.1f} % ({100 * share['low']:.1f} to {100 * share['high']:.1f})"


def _percent(values: Sequence[float]) -> str:
    return f"{100 * sum(values) / len(values):.1f} %"


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


def robust(data: str, clients: str) -> str:
    """Robust parts against liars: the unseen accuracy, and how often the backdoor opens. The budget with most records."""
    found = [json.loads(path.read_text()) for path in sorted((RECORDS / "robust").glob(f"{data}-{clients}-*.json"))]
    if not found:
        return f"No record yet: `python benchmarks/robust.py --data {data} --clients {clients}`.\n"
    budgets = Counter((record["target"], record["rounds"], record["steps"]) for record in found)
    ((target, rounds, steps), _), *_ = budgets.most_common(1)
    found = [r for r in found if (r["target"], r["rounds"], r["steps"]) == (target, rounds, steps)]
    attacks = [attack for attack in ATTACKS if any(record["attack"] == attack for record in found)]
    columns = [*attacks, "backdoor opens", "without one"] if "backdoor" in attacks else attacks
    lines = [f"| method | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    methods = {record["method"] for record in found}
    for name in sorted(methods, key=lambda name: (name != "fedavg", name)):
        own = [record for record in found if record["method"] == name]
        cells = [_share([r["accuracy"] for r in own if r["attack"] == attack]) for attack in attacks]
        if "backdoor" in attacks:
            cells += [_share([r["backdoor"] for r in own if r["attack"] == attack]) for attack in ("backdoor", "none")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seeds, commits = (", ".join(map(str, sorted({r[key] for r in found}))) for key in ("seed", "commit"))
    notes = [
        f"`{data}`, {clients} clients, unseen {target}; seeds {seeds}; {rounds} rounds of {steps} steps; accuracy of the last",
        "round's model in %. Backdoor opens: unseen images of other classes that the square sends to its class; without",
        "one: the same of the model that nobody lied to. `stopped`: the run ended with an error.",
        f"{len(found)} records, commits {commits}.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def attacks() -> str:
    """Attack by attack: attempts, held, failed (benchmarks/attacks.py)."""
    if not (RECORDS / "attacks.json").exists():
        return "No record yet: `python -m benchmarks.attacks`.\n"
    record = json.loads((RECORDS / "attacks.json").read_text())
    files = record["files"]
    lines = ["| attack or fault | attempts | held | failed | tests |", "|---|---:|---:|---:|---|"]
    for kind, words in record["kinds"].items():
        own = {Path(file).name: one["attempts"][kind] for file, one in files.items() if kind in one["attempts"]}
        tried, held = (sum(row[column] for row in own.values()) for column in (0, 1))
        if tried:
            tests = ", ".join(f"`{name}`" for name in sorted(own))
            lines.append(f"| {words} | {tried:,} | {held:,} | {tried - held:,} | {tests} |")
    skipped = sum(one["tests"]["skipped"] for one in files.values())
    commits = ", ".join(sorted({one["commit"] for one in files.values()}))
    note = f"`python -m benchmarks.attacks`, also with `--deployed`; {skipped} tests skipped; commits {commits}."
    return "\n".join([*lines, "", note]) + "\n"


def overhead() -> str:
    """What checks and robust parts cost in a round (benchmarks/checks.py)."""
    record = _speed("checks")
    if record is None:
        return "No record yet: `python benchmarks/checks.py`.\n"
    counts = list(dict.fromkeys(row["clients"] for row in record["rows"]))
    lines = [
        "| in a round | " + " | ".join(f"{count} clients" for count in counts) + " |",
        "|---" + "|---:" * len(counts) + "|",
    ]
    for way in dict.fromkeys(row["way"] for row in record["rows"]):
        own = {row["clients"]: row for row in record["rows"] if row["way"] == way}
        name = "checks and audit log, against none" if way == "fedavg" else f"`{way}`, against FedAvg"
        lines.append(f"| {name} | " + " | ".join(f"{own[count]['ratio']:.3f}x" for count in counts) + " |")
    base = [row for row in record["rows"] if row["way"] == "fedavg"]
    rounds = "; ".join(f"{r['clients']} clients with {r['steps']} steps each, {r['seconds']:.2f} s" for r in base)
    notes = [
        f"CPU time of whole rounds on `digits`, medians of {base[0]['pairs']} rounds played in turn. A round of FedAvg: {rounds}.",
        f"`python benchmarks/checks.py`, commit {record['commit']}.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def flower(name: str) -> str:
    """Seconds per round by engine, and until the first one (benchmarks/flower.py)."""
    record = _speed(name)
    if record is None:
        return "No record yet: `python -m benchmarks.flower`.\n"
    base = record["rows"][0]["seconds"]
    busy = "otherwise idle" if record["load"] is None else f"load {record['load']:.1f} before it began"
    lines = ["| engine | s per round | overhead | first round after |", "|---|---:|---:|---:|"]
    for row in record["rows"]:
        over = f"{row['seconds'] - base:.2f} s" if "poc" not in row["engine"] and row["seconds"] != base else ""
        lines.append(f"| {row['engine']} | {row['seconds']:.2f} | {over} | {row['first']:.0f} s |")
    notes = [
        f"{record['megabytes']} MB up per client and round; median of {record['rounds'] - 1} rounds; "
        f"{record['cores']} cores, {busy}.",
        f"`python -m benchmarks.flower`, commit {record['commit']}.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def _speed(name: str) -> dict[str, Any] | None:
    path = RECORDS / "speed" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _share(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{100 * sum(there) / len(there):.1f}" if there else "stopped" if values else "-"


def regret(name: str) -> str:
    """For each target, the method that `choose` recommended by the other domains alone (benchmarks/regret.py)."""
    folder = RECORDS / "regret"
    choices = {
        file.stem.removeprefix(f"{name}-"): Choice.read(file)
        for file in sorted(folder.glob(f"{name}-*.json"))
        if file.stem != f"{name}-hindsight"
    }
    lines = [
        "| unseen | recommended | its accuracy | best in hindsight | its accuracy | FedAvg | regret | gain over FedAvg |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    regrets: dict[str, list[float]] = {"recommended": [], "fedavg": [], "random": []}
    for target, choice in choices.items():
        known = hindsight(name, target)
        means = {one.method: known[one.method] for one in choice.candidates if one.method in known}
        if choice.method not in means or "fedavg" not in means:
            continue
        best, own = max(means, key=lambda method: means[method]), means[choice.method]
        regrets["recommended"].append(means[best] - own)
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
        lines.append("| " + " | ".join([*cells, f"{means[best] - own:.1f}", f"{own - means['fedavg']:+.1f}"]) + " |")
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
        "Regret: how far a method is behind the best in hindsight. Always taking FedAvg has a mean regret of "
        f"{mean['fedavg']:.1f},",
        f"a candidate drawn at random {mean['random']:.1f}.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def compose(name: str) -> str:
    """The composition that each unseen domain's sources chose, and what it is worth there (benchmarks/compose.py)."""
    file = RECORDS / "compose" / f"{name}.json"
    if not file.exists():
        return "No search is recorded yet: `python benchmarks/compose.py`.\n"
    value = json.loads(file.read_text())
    found = [one for one in value["found"] if one["ranked"]]
    if not found:
        return "The search has begun and compared nothing yet.\n"
    sizes = {"1": "best method alone", "2": "best pair", "3": "best of three parts"}
    lines = ["| unseen | " + " | ".join(sizes.values()) + " | FedAvg | candidates |", "|---" * 5 + "|---:|"]
    best = {}
    for one in found:
        ranked = {size: one["ranked"].get(size, []) for size in sizes}
        every = [pair for some in ranked.values() for pair in some]
        best[one["target"]] = max(every, key=lambda pair: pair[1])[0]
        cells = [
            _bold(f"{some[0][0]} {100 * some[0][1]:.1f}", some[0][0] == best[one["target"]]) if some else "-"
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
    lines = ["", "| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for target in targets:
        cells = [target, best[target]]
        for own in (scores, *beside.values()):
            mean = summarise(v for cell, v in own.items() if cell[0] == target and cell in scores).mean
            cells.append("-" if math.isnan(mean) else f"{mean:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
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


def hindsight(name: str, target: str) -> dict[str, float]:
    """Each method's mean accuracy on a target, in %: by runs of benchmarks/regret.py, else by the recorded runs of NAME."""
    own = RECORDS / "regret" / f"{name}-hindsight.json"
    if own.exists():
        found = json.loads(own.read_text()).get(target, {})
        return {method: 100 * sum(values) / len(values) for method, values in found.items()}
    group = main_group(name)
    rows = group.rows if group is not None else []
    means = {row.method: _mean(row, target) for row in rows if not row.fields and not row.label.endswith(CHOSEN)}
    return {method: value for method, value in means.items() if not math.isnan(value)}


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
    "regret": regret, "compose": compose, "audit": audit, "look": look, "export": export, "story": story,
    "attacks": attacks, "overhead": overhead, "flower": flower,
    "speed": speed, "clients": clients, "cost": cost,
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
    if len(words) == 3 and words[0] == "keep-story":
        print(f"kept {keep_story(Path(words[1]), words[2])} files in {RECORDS / 'story' / words[2]}")
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
