"""At the new site: prediction sets, familiarity, exported models, and the story that is told of one."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from tables import kept
from tables.kept import NOTHING, percent, row_of, top

from unseen.experiments.choose import Choice
from unseen.reports.names import titled

COVERAGE = "0.95"  # that is shown: at less, the sets of these models are plain answers


BOTH = "look or largest logit"  # what `unseen predict` calls unlike training


def trust_records(name: str) -> dict[str, list[dict[str, Any]]]:
    """By method: what `benchmarks/trust.py` found of each of its runs, FedAvg first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted((kept.RECORDS / "trust" / name).glob("*.json")):
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
    lines = top(head, 2)
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
        lines.append(row_of(cells))
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
    lines = top(["score", "unseen domain", "noise", "letters", "own mistakes", "runs"])
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
    file = kept.RECORDS / "look" / f"{name}.json"
    if not file.exists():
        return "No record yet: `python benchmarks/look.py`.\n"
    record = json.loads(file.read_text())
    targets = list(dict.fromkeys(one["targets"][0] for one in record["found"]))
    head = ["numbers", "distance", *(f"for {target}" for target in targets)]
    head += ["flagged", "known", "as JPEG", "darker"]
    lines = top(head, 2)
    for kind, words in dict.fromkeys((one["numbers"], one["distance"]) for one in record["found"]):
        own = [one for one in record["found"] if (one["numbers"], one["distance"]) == (kind, words)]
        cells = [percent([one["auroc"] for one in own if target in one["targets"]]) for target in targets]
        cells += [percent([one[what] for one in own]) for what in ("found", "flagged")]
        cells += [percent([one["flagged_changed"][change] for one in own]) for change in ("jpeg", "darker")]
        lines.append(f"| {kind} | {words} | " + " | ".join(cells) + " |")
    notes = [
        "AUROC by sources alone, for each choice of a target: of the three other domains one is left out, and told from the",
        f"two that are known; means over the three. {record['images_of_a_domain']} images of each domain. Flagged: images of the",
        "domain that was left out that are beyond the limit; of known domains 2.5 % should be.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def export() -> str:
    """Exported models beside torch on one thread (benchmarks/export.py)."""
    file = kept.RECORDS / "export.json"
    if not file.exists():
        return "No record yet: `python benchmarks/export.py`.\n"
    record = json.loads(file.read_text())
    lines = top(["net", "method", "torch, ms per image", "exported / torch", "look / torch"], 2)
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
    folder = kept.RECORDS / "story" / name
    if not folder.is_dir():
        return NOTHING
    told = json.loads((folder / "story.json").read_text())
    metrics = json.loads((folder / "metrics.json").read_text())
    choice = Choice.read(folder / "choice.json")
    lines = ["```", *(line for said in told["said"] for line in textwrap.wrap(said, 110)), "```", ""]
    lines += ["What it chose from: the accuracy in % on each site when it was left out.", ""]
    head = ["method", "", *choice.sites, "mean", "behind the best", "sends beyond weights", "seconds per run"]
    lines += [row_of(head), "|---|---" + "|---:" * (len(head) - 4) + "|---|---:|"]
    for one in sorted(choice.candidates, key=lambda c: -(c.mean or 0)):
        cells = [titled(one.method), one.standing, *(f"{100 * sum(v) / len(v):.1f}" for v in one.accuracy.values())]
        cells += [f"{100 * (one.mean or 0):.1f}", f"{100 * (one.behind or 0):.1f} ± {100 * (one.error or 0):.1f}"]
        lines.append(row_of([*cells, one.sends or "nothing", f"{one.seconds or 0:.0f}"]))
    lines += ["", "What `unseen check` says of the new site (`metrics.json`):", ""]
    lines += top(["measure", "value"])
    for words, value in (
        ("accuracy", _interval(metrics["accuracy"])),
        ("accuracy, also by images without labels", _interval(metrics["prediction_powered"]["accuracy"])),
        ("macro F1", percent([metrics["measured"]["macro_f1"]])),
        ("AUROC", percent([metrics["measured"]["auroc"]])),
        ("calibration error", percent([metrics["measured"]["calibration_error"]])),
        (f"sets hold the class, should be {100 * metrics['covers']:.0f} %", _interval(metrics["coverage"])),
        ("classes in a set", f"{metrics['set_size']:.2f}"),
        ("unlike training", percent([metrics["unlike_training"]])),
        ("unlike in look", percent([metrics["unlike_look"]])),
        ("unlike in content", percent([metrics["unlike_content"]])),
        ("the typical look is stranger than so many images of the known sites", percent([metrics["typical_look"]])),
    ):
        lines.append(f"| {words} | {value} |")
    return "\n".join(lines) + "\n"


def _interval(share: dict[str, float]) -> str:
    return f"{100 * share['value']:.1f} % ({100 * share['low']:.1f} to {100 * share['high']:.1f})"
