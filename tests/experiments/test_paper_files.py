"""benchmarks/paper: every file resolves to runs, and docs/reproductions.md leads to every file and every table."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from unseen.data.catalog import CATALOG, Dataset, Domain, load_index
from unseen.data.domains import DomainIndex
from unseen.data.split import partition, split
from unseen.experiments.collect import Row, label_of
from unseen.experiments.grid import plan_bench, read_file
from unseen.experiments.published import TABLES
from unseen.federation.client import epoch_cuts
from unseen.runs import images, planning
from unseen.runs.protocols import protocol_named

TOP = Path(__file__).parent.parent.parent
FILES = sorted((TOP / "benchmarks" / "paper").glob("*.toml"))
UNKNOWN = 200  # images of a class of which the catalog knows none (DomainNet's ten classes)


def counts_of(entry: Dataset, domain: Domain) -> tuple[int, ...]:
    """A domain's images by class: those that are published, or its images dealt out evenly."""
    if domain.per_class:
        return domain.per_class
    if domain.count is None:
        return (UNKNOWN,) * entry.class_count
    every, rest = divmod(domain.count, entry.class_count)
    return tuple(every + (number < rest) for number in range(entry.class_count))


@cache
def made_up(name: str) -> DomainIndex:
    """A dataset as large as the catalog says, without its images."""
    entry = CATALOG[name]
    counts = [counts_of(entry, domain) for domain in entry.domains]
    domain = np.repeat(np.arange(len(counts)), [sum(own) for own in counts])
    label = np.concatenate([np.repeat(np.arange(len(own)), own) for own in counts])
    return DomainIndex(
        name,
        tuple(domain.name for domain in entry.domains),
        tuple(map(str, range(entry.class_count))),
        tuple(f"{row}.png" for row in range(len(domain))),
        domain,
        label,
        np.arange(len(domain)),
        letters=entry.letters,
    )


def catalog_index(name: str, root: Path | None) -> DomainIndex:
    return made_up(name) if name in CATALOG else load_index(name, root)  # the built-in digits need no disk


@cache
def training_images(data: str, target: str, rule: str, validation: float, seed: int) -> dict[str, int]:
    """How many images each client of a partition trains on."""
    index = catalog_index(data, None)
    return {
        client: len(split(rows, index.label[rows], index.group[rows], validation, seed, client, index.domain[rows])[0])
        for client, rows in partition(index, index.sources(target), rule, seed).items()
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_resolves_to_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "load_index", catalog_index)
    monkeypatch.setattr(planning, "content_of", lambda index: "")
    given = read_file(path)
    plan = plan_bench(given)
    protocol = protocol_named(given["data"], given["protocol"])
    assert len(plan.runs) == len(given["methods"]) * len(plan.domains) * len(protocol.seeds)
    assert len(plan.labels) == len(given["methods"])


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_client_of_a_file_can_train(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the paper's batch size, for every target and seed: Dirichlet draws have clients with less than a batch."""
    monkeypatch.setattr(images, "load_index", catalog_index)
    monkeypatch.setattr(planning, "content_of", lambda index: "")
    plan = plan_bench(read_file(path))
    settings = {(run.settings.target, run.settings.seed): run.settings for run in plan.runs}
    drawn = any(run.data.partition.split(":")[0] in ("dirichlet", "mixed") for run in settings.values())
    large = len(catalog_index(plan.runs[0].settings.data.name, None)) > 100_000
    for number, run in enumerate(settings.values()):
        if number and (large or (not drawn and run.seed != plan.runs[0].settings.seed)):
            continue  # one draw of the large datasets; without a draw all seeds have clients of the same sizes
        clients = training_images(run.data.name, run.target, run.data.partition, run.data.validation, run.seed)
        assert clients and (run.plan.participation <= 1 or run.plan.participation <= len(clients))
        for client, count in clients.items():
            assert count >= 2, f"{client} of {path.name}, {run.target} unseen, seed {run.seed}, cannot train"
            sizes = [cut.stop - cut.start for cut in epoch_cuts(count, run.plan)]
            assert all(2 <= size <= run.plan.batch_size + 1 for size in sizes)
            assert sum(sizes) == count if run.plan.keep_last else sum(sizes) > count / 2


MAIN = {  # the papers' own systems, and the files of the tables that their published numbers are taken from
    "fedfd-a": ["fedfd-table5"],
    "gperxan": ["gperxan-table2", "gperxan-table2-office-home", "gperxan-table3", "gperxan-table4"],
    "stablefdg": ["stablefdg-table1", "stablefdg-table1-digits", "stablefdg-table2", "stablefdg-table5"],
    "fedadg": [f"fedadg-table{name}" for name in ("4-alexnet", "4-resnet18", "5-alexnet", "5-resnet18")]
    + ["fedadg-table6-resnet18", "fedadg-table6-resnet50"],
}


@pytest.mark.parametrize(("system", "stem"), [(system, stem) for system, stems in MAIN.items() for stem in stems])
def test_a_main_table_has_its_papers_system_as_published(
    system: str, stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default that is not the paper's has no published number beside it, so the paper's own must be there too."""
    monkeypatch.setattr(images, "load_index", catalog_index)
    monkeypatch.setattr(planning, "content_of", lambda index: "")
    plan = plan_bench(read_file(TOP / "benchmarks" / "paper" / f"{stem}.toml"))
    found = []
    for run in plan.runs[: len(plan.labels)]:  # one target, one seed
        settings, remark = run.settings, run.method.about.remark
        row = Row(plan.labels[label_of(settings, remark)], settings.method, dict(settings.fields))
        found += [row.label] if settings.method == system and row.as_published and not remark else []
    assert found


def test_some_clients_of_the_papers_have_less_than_a_batch() -> None:
    """What the test above is for: FedFD-A's Tables 10b and 10c, and StableFDG's clients of several domains."""
    for name, rule, batch in (
        ("fedfd-30", "dirichlet:10:0.5", 64),
        ("fedfd-30", "dirichlet:10:0.1", 64),
        ("stablefdg-multi", "mixed:30:0.5", 32),
    ):
        protocol = protocol_named("pacs", name)
        assert protocol.plan.batch_size == batch
        counts = training_images("pacs", "sketch", rule, protocol.data.validation, protocol.seeds[0])
        assert 2 <= min(counts.values()) < batch


def test_the_large_made_up_datasets_are_as_large_as_the_real_ones() -> None:
    assert len(made_up("office-home")) == 15588 and len(made_up("camelyon17")) == 455954
    assert len(made_up("pacs")) == 9991 and len(made_up("pacs").classes) == 7


def test_reproductions_leads_to_every_file_and_every_table() -> None:
    text = (TOP / "docs" / "reproductions.md").read_text()
    named = set(re.findall(r"`([a-z0-9-]+)\.toml`", text))
    assert named == {path.stem for path in FILES}
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for table in TABLES:
        number = table.table.removeprefix("Table ")
        found = [row for row in rows if row.startswith(f"| {table.paper} ") and re.search(rf"\b{number}\b", row)]
        assert found, f"{table.source} is not in docs/reproductions.md"
