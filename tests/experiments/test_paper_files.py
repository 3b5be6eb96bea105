"""benchmarks/paper: every file resolves to runs, and docs/reproductions.md leads to every file and every table."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unseen.data.catalog import CATALOG, Dataset, Domain, load_index
from unseen.data.domains import DomainIndex
from unseen.data.split import partition, split
from unseen.experiments.collect import Row
from unseen.experiments.grid import plan_bench, read_file
from unseen.experiments.published import SYSTEMS, TABLES
from unseen.federation.client import epoch_cuts
from unseen.methods.fedfd import FedFD
from unseen.methods.gperxan import GPerXAN
from unseen.nets.backbones import create_net
from unseen.registry import parse
from unseen.runs import images, planning
from unseen.runs.protocols import protocol_named
from unseen.runs.results import label_of
from unseen.runs.settings import NetSettings

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


def taken_elsewhere() -> list[tuple[Path, str]]:
    """The files that docs/reproductions.md takes to other data, by `--data`, to fill further tables."""
    rows = (TOP / "docs" / "reproductions.md").read_text().splitlines()
    named = {
        (stem, data)
        for row in rows
        for stem in re.findall(r"`([a-z0-9-]+)\.toml`", row)[:1]
        for data in re.findall(r"--data ([a-z-]+)", row)
    }
    return [(path, data) for path in FILES for data in sorted(data for stem, data in named if stem == path.stem)]


ELSEWHERE = taken_elsewhere()


@pytest.mark.parametrize(
    ("path", "data"), [*((path, None) for path in FILES), *ELSEWHERE],
    ids=[path.stem for path in FILES] + [f"{path.stem}-{data}" for path, data in ELSEWHERE],
)  # fmt: skip
def test_every_client_of_a_file_can_train(path: Path, data: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the paper's batch size, for every target and seed: Dirichlet draws have clients with less than a batch."""
    monkeypatch.setattr(images, "load_index", catalog_index)
    monkeypatch.setattr(planning, "content_of", lambda index: "")
    plan = plan_bench(read_file(path) | ({} if data is None else {"data": data}))
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


@cache
def assembled(method: str, fields: str, net: NetSettings, classes: int, size: int) -> int:
    """How many entries of a system's state clients send. Without numbers (`meta`), so that large nets cost nothing."""
    made = parse(method, json.loads(fields))
    with torch.device("meta") if "l2d" not in method else nullcontext():  # L2D's build looks at its numbers
        built = made.build(
            create_net(net.backbone, classes, image_size=size, bottleneck=net.bottleneck, weights="none", seed=0)
        )
    return len(made.share(built).up)


@pytest.mark.parametrize("path", [path for path in FILES if not path.stem.startswith("small-")], ids=lambda p: p.stem)
def test_every_system_of_a_file_fits_its_net(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the image size and with as many classes as there are: stages, kinds of norms, prompts, heads.

    The nets of the small files are those of all other tests.
    """
    monkeypatch.setattr(images, "load_index", catalog_index)
    monkeypatch.setattr(planning, "content_of", lambda index: "")
    for run in plan_bench(read_file(path)).runs:
        chosen = run.settings
        fields = json.dumps(dict(chosen.fields), sort_keys=True)
        classes = len(catalog_index(chosen.data.name, None).classes)
        assert assembled(chosen.method, fields, chosen.net, classes, chosen.data.image_size) > 0


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


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_stablefdg_has_30_clients_wherever_it_does_not_say_otherwise(path: Path) -> None:
    """DomainNet has five source domains where the others have three: ten clients each would be 50."""
    given = read_file(path)
    if not given["protocol"].startswith("stablefdg") or "participation" in given:  # Tables 4a, 7 and 17 change it
        return
    index = catalog_index(given["data"], None)
    rule = given.get("partition") or protocol_named(given["data"], given["protocol"]).data.partition
    for target in index.domains[:1] if len(index) > 100_000 else index.domains:
        assert len(partition(index, index.sources(target), rule, seed=0)) == 30


def published_rows(path: Path) -> set[str]:
    """The federated systems of the table that a file is named after, by our names; none where it has none of them."""
    paper, _, number = path.stem.partition("-table")
    given = read_file(path)
    backbone = given.get("backbone") or protocol_named(given["data"], given["protocol"]).net.backbone
    return {
        SYSTEMS[row.system]
        for table in TABLES
        if table.paper.lower().removesuffix("-a") == paper and table.data == given["data"]
        if table.backbone == backbone and table.table == f"Table {number.partition('-')[0]}"
        for row in table.rows
        if row.system in SYSTEMS and not row.centralised
    }


@pytest.mark.parametrize("path", [path for path in FILES if "-centralized" not in path.stem], ids=lambda p: p.stem)
def test_a_file_has_every_system_of_its_table(path: Path) -> None:
    methods = {word if isinstance(word, str) else word["name"] for word in read_file(path)["methods"]}
    assert published_rows(path) <= methods


def test_tables_have_rows_to_be_found() -> None:
    """What the tests above stand on."""
    assert {("fedfd-table5", "office-home"), ("stablefdg-table2", "vlcs"), ("stablefdg-table7", "office-home")} <= {
        (path.stem, data) for path, data in ELSEWHERE
    }
    found = {path.stem: published_rows(path) for path in FILES}
    assert (
        len(found["fedfd-table5"]) == 21
        and len(found["gperxan-table2"]) == 8
        and len(found["fedadg-table5-alexnet"]) == 3
    )


def test_what_the_files_had_wrong_once() -> None:
    def file(stem: str) -> dict[str, Any]:
        return read_file(TOP / "benchmarks" / "paper" / f"{stem}.toml")

    def chosen(stem: str) -> list[tuple[str, dict[str, Any]]]:
        words = file(stem)["methods"]
        return [(word, {}) if isinstance(word, str) else (word["name"], word.get("set", {})) for word in words]

    # Table 3 has MixStyle in FedFD's place, and FedFD on the norms of BIN and DSON.
    rows = chosen("fedfd-table3")
    assert ("fedfd", {"second": "mixstyle"}) in rows and ("fedfd+bin", {}) in rows and ("fedfd+dson", {}) in rows
    # Table 5 has both readings of Eq. 3; Table 6's prompts have the one of all other files.
    assert {("fedfd-a", ""), ("fedfd-a", "paper")} <= {(m, f.get("variant", "")) for m, f in chosen("fedfd-table5")}
    assert all(parse(name, fields).reduce == FedFD().reduce for name, fields in chosen("fedfd-table6")[-1:])  # type: ignore[attr-defined]
    # AlexNet has no bottleneck in the code that FedFD is built on; Digits-DG has a net of its own.
    assert file("fedfd-table8")["bottleneck"] == "none" and file("fedfd-table8")["backbone"] == "alexnet_bn"
    assert file("stablefdg-table1-digits")["backbone"] == "convnet_dg"
    # lambda is searched from 0 to 1 in steps of 0.25.
    assert [f.get("guidance", GPerXAN().guidance) for _, f in chosen("gperxan-lambda")] == [0.0, 0.25, 0.5, 0.75, 1.0]


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
