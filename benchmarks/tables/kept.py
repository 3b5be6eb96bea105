"""Records under benchmarks/results, and what every table has in common."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen.experiments.collect import Collection, Group, Row, collect
from unseen.experiments.statistics import Cell, summarise
from unseen.reports.names import titled

TOP = Path(__file__).parents[2]


RECORDS = TOP / "benchmarks" / "results"


NOTHING = "No runs are recorded yet.\n"


SYSTEMS = ("fedfd", "fedfd-a", "gperxan", "stablefdg", "fedadg")  # of the four papers


def records(name: str) -> Collection | None:
    folder = RECORDS / name
    found = _collected(folder, _state_of(folder)) if folder.is_dir() else None
    return found if found is not None and found.groups else None


@functools.lru_cache(maxsize=32)
def _collected(folder: Path, state: int) -> Collection:
    """Read once, and again when a record has changed: a hundred parts of pages are made of the same few folders."""
    return collect(folder)


def _state_of(folder: Path) -> int:
    """Another number when a record came, went or changed."""
    return hash(tuple((str(file), file.stat().st_mtime_ns) for file in sorted(folder.rglob("*"))))


def whole_group(name: str) -> Group | None:
    """The main group without seeds that are half done: they would weigh one target more than another."""
    group = main_group(name)
    return None if group is None else replace(group, rows=[whole(row, group.targets) for row in group.rows])


def seeds_of(row: Row, targets: Sequence[str]) -> list[int]:
    """The seeds that a row has on every target."""
    cells = row.results.keys()
    return [seed for seed in sorted({seed for _, seed in cells}) if all((target, seed) in cells for target in targets)]


def whole(row: Row, targets: Sequence[str]) -> Row:
    """A row with its whole seeds alone; as it is if it has none, which is a row of some targets."""
    seeds = seeds_of(row, targets)
    if not seeds:
        return row
    return part_of(row, lambda cell: cell[1] in seeds)


def part_of(row: Row, wanted: Callable[[Cell], bool]) -> Row:
    """A row with some of its runs."""
    kept = {cell: result for cell, result in row.results.items() if wanted(cell)}
    return replace(row, results=kept, runs={cell: run for cell, run in row.runs.items() if cell in kept})


def main_group(name: str) -> Group | None:
    """The runs of a folder under one condition: those with most runs."""
    collection = records(name)
    if collection is None:
        return None
    return max(collection.groups, key=lambda group: sum(len(row.results) for row in group.rows))


def speed_record(name: str) -> dict[str, Any] | None:
    """What a benchmark of speed kept (benchmarks/speed.py)."""
    file = RECORDS / "speed" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def made_by(group: Group) -> str:
    """Kernels and commits of the runs."""
    results = [result for row in group.rows for result in row.results.values()]
    kernels = sorted({f"{r.kernels} on {r.cpu or 'a CPU that was not recorded'}" for r in results})
    commits = sorted({result.commit for result in results if result.commit})
    return f"kernels {', '.join(kernels)}; commits {', '.join(commits) or 'not recorded'}"


def row_of(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def top(head: Sequence[str], words: int = 1) -> list[str]:
    """The first two lines of a table: the first columns hold words, all others numbers."""
    return [row_of(head), "|---" * words + "|---:" * (len(head) - words) + "|"]


def bold(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted else text


def percent(values: Sequence[float]) -> str:
    return f"{100 * sum(values) / len(values):.1f} %"


def share(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{100 * sum(there) / len(there):.1f}" if there else "stopped" if values else "-"


def named(row: Row) -> str:
    """With a cross where the method's default is not the paper's: `remarks` says how."""
    name = f"{titled(row.method)} †" if row.is_default and row.remark else titled(row.label).replace("*", "\\*")
    return name + (" \\*" if row.sends else "")


def remarks(rows: Iterable[Row]) -> list[str]:
    """A paragraph with what the marks of `named` mean, if there are any."""
    rows, found = list(rows), dict[str, list[str]]()
    for row in rows:
        if row.is_default and row.remark:
            found.setdefault(row.remark, []).append(titled(row.method))
    said = "; ".join(f"{', '.join(methods)}: {remark}" for remark, methods in found.items())
    words = [f"† The default is not the paper's. {said}."] if said else []
    words += ["\\* sends more than the model's weights."] if any(row.sends for row in rows) else []
    return ["", filled(" ".join(words))] if words else []


def mean_on(row: Row, target: str) -> float:
    return summarise(value for (name, _), value in row.scores().items() if name == target).mean


def filled(text: str, indent: str = "") -> str:
    """A paragraph in lines that a page may have."""
    return textwrap.fill(text, width=118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
