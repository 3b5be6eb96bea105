"""benchmarks/paper: every file resolves to runs, and docs/reproductions.md leads to every file and every table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from unseen.data.catalog import CATALOG, load_index
from unseen.data.domains import DomainIndex
from unseen.data.split import partition
from unseen.experiments.grid import plan_bench, read_file
from unseen.experiments.published import TABLES
from unseen.runs import images, planning
from unseen.runs.protocols import protocol_named

TOP = Path(__file__).parent.parent.parent
FILES = sorted((TOP / "benchmarks" / "paper").glob("*.toml"))
CLASSES, IMAGES = 7, 200  # of a dataset whose images by class the catalog does not list


def catalog_index(name: str, root: Path | None) -> DomainIndex:
    """A dataset as large as the catalog says, without its images."""
    if name not in CATALOG:  # the built-in digits need no disk
        return load_index(name, root)
    entry = CATALOG[name]
    counts = [domain.per_class or (IMAGES,) * CLASSES for domain in entry.domains]
    domain = np.repeat(np.arange(len(counts)), [sum(own) for own in counts])
    label = np.concatenate([np.repeat(np.arange(len(own)), own) for own in counts])
    return DomainIndex(
        name,
        tuple(domain.name for domain in entry.domains),
        tuple(map(str, range(max(map(len, counts))))),
        tuple(f"{row}.png" for row in range(len(domain))),
        domain,
        label,
        np.arange(len(domain)),
        letters=entry.letters,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_resolves_to_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "load_index", catalog_index)
    monkeypatch.setattr(planning, "content_of", lambda index: "")
    given = read_file(path)
    plan = plan_bench(given)
    protocol = protocol_named(given["data"], given["protocol"])
    assert len(plan.runs) == len(given["methods"]) * len(plan.domains) * len(protocol.seeds)
    assert len(plan.labels) == len(given["methods"])
    first = plan.runs[0].settings
    index = catalog_index(first.data.name, None)
    clients = partition(index, index.sources(first.target), first.data.partition, first.seed)
    assert clients and (first.plan.participation <= 1 or first.plan.participation <= len(clients))


def test_reproductions_leads_to_every_file_and_every_table() -> None:
    text = (TOP / "docs" / "reproductions.md").read_text()
    named = set(re.findall(r"`([a-z0-9-]+)\.toml`", text))
    assert named == {path.stem for path in FILES}
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for table in TABLES:
        number = table.table.removeprefix("Table ")
        found = [row for row in rows if row.startswith(f"| {table.paper} ") and re.search(rf"\b{number}\b", row)]
        assert found, f"{table.source} is not in docs/reproductions.md"
