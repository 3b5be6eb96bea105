"""Liars, attacks, and what checks, engines and audits say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tables import kept
from tables.kept import filled, share, speed_record, top

from unseen.audits.findings import find_audits
from unseen.reports.audit import audit_grids
from unseen.reports.tables import markdown

ATTACKS = ("none", "scaled", "sign flip", "label flip", "backdoor")  # of benchmarks/robust.py, in the tables' order


def robust(data: str, clients: str) -> str:
    """Robust parts against liars: the unseen accuracy, and how often the backdoor opens. The budget with most records."""
    found = [
        json.loads(path.read_text()) for path in sorted((kept.RECORDS / "robust").glob(f"{data}-{clients}-*.json"))
    ]
    if not found:
        return f"No record yet: `python benchmarks/robust.py --data {data} --clients {clients}`.\n"
    budgets = Counter((record["target"], record["rounds"], record["steps"]) for record in found)
    ((target, rounds, steps), _), *_ = budgets.most_common(1)
    found = [r for r in found if (r["target"], r["rounds"], r["steps"]) == (target, rounds, steps)]
    attacks = [attack for attack in ATTACKS if any(record["attack"] == attack for record in found)]
    columns = [*attacks, "backdoor opens", "without one"] if "backdoor" in attacks else attacks
    lines = top(["method", *columns])
    methods = {record["method"] for record in found}
    for name in sorted(methods, key=lambda name: (name != "fedavg", name)):
        own = [record for record in found if record["method"] == name]
        cells = [share([r["accuracy"] for r in own if r["attack"] == attack]) for attack in attacks]
        if "backdoor" in attacks:
            cells += [share([r["backdoor"] for r in own if r["attack"] == attack]) for attack in ("backdoor", "none")]
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
    if not (kept.RECORDS / "attacks.json").exists():
        return "No record yet: `python -m benchmarks.attacks`.\n"
    record = json.loads((kept.RECORDS / "attacks.json").read_text())
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
    record = speed_record("checks")
    if record is None:
        return "No record yet: `python benchmarks/checks.py`.\n"
    counts = list(dict.fromkeys(row["clients"] for row in record["rows"]))
    lines = top(["in a round", *(f"{count} clients" for count in counts)])
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
    return "\n".join([*lines, "", filled(" ".join(notes))]) + "\n"


def flower(name: str) -> str:
    """Seconds per round by engine, and until the first one (benchmarks/flower.py)."""
    record = speed_record(name)
    if record is None:
        return "No record yet: `python -m benchmarks.flower`.\n"
    base = record["rows"][0]["seconds"]
    busy = "otherwise idle" if record["load"] is None else f"load {record['load']:.1f} before it began"
    busy += f", niceness {record['nice']}" if record.get("nice") else ""
    lines = top(["engine", "s per round", "overhead", "first round after"])
    for row in record["rows"]:
        over = f"{row['seconds'] - base:.2f} s" if "poc" not in row["engine"] and row["seconds"] != base else ""
        lines.append(f"| {row['engine']} | {row['seconds']:.2f} | {over} | {row['first']:.0f} s |")
    notes = [
        f"{record['megabytes']} MB up per client and round; median of {record['rounds'] - 1} rounds; "
        f"{record['cores']} cores, {busy}.",
        *(f"CPU seconds per round of the deployment: {_each(row['cpu'])}." for row in record["rows"] if row.get("cpu")),
        f"`python -m benchmarks.flower`, commit {record['commit']}.",
    ]
    return "\n".join([*lines, "", *notes]) + "\n"


def _each(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in sorted(seconds.items(), key=lambda pair: -pair[1]))


def audit(name: str) -> str:
    """What attacks found on the runs of a folder of audits."""
    audits = find_audits(kept.RECORDS / "audit" / name)
    if not audits:
        return "No audits are recorded yet.\n"
    said = (
        {one.data for one in audits},
        {f"target {one.target}" for one in audits},
        {f"seed {one.seed}" for one in audits},
        {one.budget for one in audits},
        {f"effort {one.effort:g}" for one in audits},
    )
    proved, commits = sum(one.same_bits is True for one in audits), sorted({one.commit for one in audits})
    lines = [
        ", ".join(" or ".join(sorted(words)) for words in said) + ".",
        f"Replayed rounds had the run's own bits in {proved} of {len(audits)} audits. Commits {', '.join(commits)}.",
        "",
    ]
    tables = [markdown(replace(grid, notes=[])) for grid in audit_grids(audits)]  # the page itself has the words
    return "\n".join([*lines, *tables])
