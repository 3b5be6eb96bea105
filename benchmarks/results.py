"""The numbers in the documentation, from the records of runs. No number in a page is typed by hand.

    python benchmarks/results.py keep OUT NAME    # copy the small records of finished runs to benchmarks/results/NAME
    python benchmarks/results.py keep-audits OUT NAME    # copy every audit.json below OUT to benchmarks/results/audit/NAME
    python benchmarks/results.py keep-story WORK NAME    # copy what examples/new_site/story.py found in WORK
    python benchmarks/results.py write            # write every generated part of the pages anew (make results)
    python benchmarks/results.py check            # say which pages are not what would be written

A page has marks, and what stands between them is written by this file:

    <!-- results: leaderboard digits -->
    <!-- end -->

Parts: `leaderboard NAME [systems]`, `figure NAME [systems]` and `runs NAME [systems]` (of every method, or of FedAvg and the
papers' systems), `some NAME TARGET ...` (all that was run on these targets), `sentences NAME`, `inference NAME`,
`statistics NAME` (what averaged statistics cost FedAvg), `budget NAME` (budgets that were tried), `systems NAME ...` (the
README's table), `method METHOD NAME ...` (a method's own lines in its page),
`many NAME SOURCE` (30 clients, beside the paper's table), `longer NAME` (a longer budget), `precision NAME ...` (bfloat16
beside float32), `chosen NAME` (what `unseen tune` chose, beside the defaults),
`ablations NAME` (the papers' ablations in small, with verdicts), `robust DATA CLIENTS` (benchmarks/robust.py), `trust NAME`
and `familiarity NAME` (benchmarks/trust.py), `look NAME` (benchmarks/look.py), `regret NAME` (benchmarks/regret.py),
`compose NAME` (benchmarks/compose.py), `export` (benchmarks/export.py), `story NAME` (examples/new_site), `audit NAME`
(what leaks), `attacks` (benchmarks/attacks.py), `overhead` (benchmarks/checks.py), `flower NAME` (benchmarks/flower.py), `speed`,
`clients` and `cost BACKBONE` (benchmarks/speed.py), `plan` (how far docs/runs.md is).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tables import kept
from tables.ablations import ablations
from tables.accuracy import budget, figure, inference, leaderboard, method, runs, sentences, some, statistics, systems
from tables.choices import compose, regret
from tables.conditions import chosen, longer, many, precision
from tables.new_site import export, familiarity, look, story, trust
from tables.plan import plan
from tables.security import attacks, audit, flower, overhead, robust
from tables.speed import clients, cost, speed

from unseen.audits.findings import AUDIT_FILE, find_audits
from unseen.core.files import write_json
from unseen.runs.directory import RunDirectory, find_runs
from unseen.runs.results import RoundLine, UnseenScore, Validation

PAGES = [kept.TOP / "README.md", *sorted((kept.TOP / "docs").rglob("*.md"))]
MARK = re.compile(r"(<!-- results: ([^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


# --- records ---------------------------------------------------------------------------------------------------------
def keep(out: Path, name: str) -> int:
    """What tables and curves need of each finished run: settings, result, evaluations and a thin line per round."""
    count = 0
    for run in find_runs(out):
        if run.result() is None:
            continue
        own = RunDirectory(kept.RECORDS / name / run.path.name)
        own.path.mkdir(parents=True, exist_ok=True)
        config = json.loads(run.config_path.read_text())
        config["data"]["root"] = None  # where it lay on this machine is nobody's business
        config["net"]["weights"] = Path(config["net"]["weights"]).name
        write_json(own.config_path, _without_places(config))
        write_json(own.path / "result.json", _without_places(json.loads((run.path / "result.json").read_text())))
        (own.path / "results.jsonl").write_text("".join(f"{json.dumps(_thin(line))}\n" for line in run.rounds()))
        if (run.path / "evaluations.jsonl").exists():
            (own.path / "evaluations.jsonl").write_text((run.path / "evaluations.jsonl").read_text())
        count += 1
    if (out / "bench.json").exists():
        _keep_about(json.loads((out / "bench.json").read_text()), kept.RECORDS / name / "bench.json")
    return count


def _without_places(found: dict[str, Any]) -> dict[str, Any]:
    """Of a method's files (a style network's) the names alone."""
    fields = found.get("fields", {})
    return {**found, "fields": {k: Path(v).name if isinstance(v, str) else v for k, v in fields.items()}}


def _keep_about(found: dict[str, Any], file: Path) -> None:
    """What was asked for, beside what was asked for in sessions before; a folder of this machine by its last name."""
    known = json.loads(file.read_text()) if file.exists() else {}
    found = {**found, "commands": [re.sub(r"(?<=[\s=])/\S*/", "", command) for command in found.get("commands", [])]}
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
        write_json(kept.RECORDS / "audit" / name / one.run / AUDIT_FILE, one.to_json())
    return len(audits)


STORY = {"story.json": "story.json", "choice/choice.json": "choice.json", "check/metrics.json": "metrics.json"}


def keep_story(work: Path, name: str) -> int:
    """What was said, chosen and measured."""
    for source, name_here in STORY.items():
        write_json(kept.RECORDS / "story" / name / name_here, json.loads((work / source).read_text()))
    return len(STORY)


def _thin(line: RoundLine) -> dict[str, object]:
    """A round without its clients."""
    validation = Validation(line.validation.round, line.validation.accuracy) if line.validation else None
    unseen = UnseenScore(line.unseen.round, line.unseen.accuracy) if line.unseen else None
    thin = RoundLine(line.round, line.loss, validation=validation, unseen=unseen).to_json()
    return {key: value for key, value in thin.items() if value not in ({}, None)}


# --- pages -----------------------------------------------------------------------------------------------------------
PARTS: dict[str, Callable[..., str]] = {
    "leaderboard": leaderboard, "some": some, "sentences": sentences, "figure": figure, "runs": runs, "inference": inference,
    "statistics": statistics, "budget": budget,
    "many": many, "longer": longer, "plan": plan, "chosen": chosen, "precision": precision,
    "method": method, "systems": systems, "ablations": ablations,
    "robust": robust, "trust": trust, "familiarity": familiarity,
    "regret": regret, "compose": compose, "audit": audit, "look": look, "export": export, "story": story,
    "attacks": attacks, "overhead": overhead, "flower": flower,
    "speed": speed, "clients": clients, "cost": cost,
}  # fmt: skip


def generated(page: str, draws: bool = True) -> str:
    """A page with its generated parts as they should be; figures are drawn anew as well, unless only asked about."""
    parts = PARTS | {"figure": partial(figure, draws=draws)}

    def part(match: re.Match[str]) -> str:
        kind, *words = match[2].split()
        return match[1] + parts[kind](*words) + match[3]

    return MARK.sub(part, page)


def stale() -> list[Path]:
    """Pages that are not what would be written now."""
    return [page for page in PAGES if generated(page.read_text(), draws=False) != page.read_text()]


def main(words: Sequence[str]) -> int:
    if len(words) == 3 and words[0] == "keep":
        print(f"kept {keep(Path(words[1]), words[2])} runs in {kept.RECORDS / words[2]}")
        return 0
    if len(words) == 3 and words[0] == "keep-audits":
        print(f"kept {keep_audits(Path(words[1]), words[2])} audits in {kept.RECORDS / 'audit' / words[2]}")
        return 0
    if len(words) == 3 and words[0] == "keep-story":
        print(f"kept {keep_story(Path(words[1]), words[2])} files in {kept.RECORDS / 'story' / words[2]}")
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
