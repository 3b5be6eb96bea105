"""A deployment with secure aggregation and with a site's own noise, on Flower's messages. No processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tests.engines.bits import assert_same
from tests.engines.sites import CLASSES, SITES, small
from tests.small_runs import run_local
from unseen.core import seeding
from unseen.core.errors import UserError
from unseen.engines.flower import coordinator, site
from unseen.engines.flower.config import Deployment
from unseen.runs.directory import RunDirectory


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made inside a run, and what is secret in it is forgotten after it."""
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    monkeypatch.setattr(seeding, "_SECRET", [])


@dataclass
class Wire:
    """Sites that carry their orders out where they are; some messages get Flower's answer for silence."""

    configs: list[dict[str, Any]]
    silent: frozenset[tuple[str, str]] = frozenset()  # site and type of message
    replies: dict[str, Message] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=i, name=c["site"], registered_at="") for i, c in enumerate(self.configs, 1)]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            names.append(str(next(self.numbers)))
            message.metadata.__dict__["_message_id"] = names[-1]
            config, kind = self.configs[message.metadata.dst_node_id - 1], message.metadata.message_type
            self.types.append(kind)
            if (config["site"], kind) in self.silent:
                self.replies[names[-1]] = Message(Error(3, "expired"), reply_to=message)
            else:
                context = Context(1, message.metadata.dst_node_id, config, RecordDict(), {})
                self.replies[names[-1]] = site.app(message, context)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in names if name in self.replies]


def deploy(folder: Path, out: Path, wire: Wire, **changes: Any) -> Path:
    """The coordinator's own run; its directory."""
    settings = small(folder / "data", "fedavg", "flower", **changes).with_changes({"root": None})
    deployment = Deployment(settings, SITES, CLASSES, out=str(out))
    coordinator._run(deployment, wire, coordinator.Lines())  # type: ignore[arg-type]
    return RunDirectory.of(deployment.fitting(), out).path


def sites(folder: Path, keep: Path, **own: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"site": name, "folder": str(folder / "data" / name), "keep": str(keep / name), **own.get(name, {})}
        for name in SITES
    ]


def test_a_deployment_has_the_local_engines_bits(folder: Path, tmp_path: Path) -> None:
    local = run_local(small(folder / "data", "fedavg", secure=True), out=tmp_path / "local")
    wire = Wire(sites(folder, tmp_path, east={"secure": True}))
    found = deploy(folder, tmp_path / "runs", wire, secure=True)
    assert local.directory is not None
    assert_same(local.directory, found)
    result = RunDirectory(found).result()
    assert result is not None and result.bytes_up == local.record.bytes_up and "masked weights" in result.ledger
    assert wire.types.count("query.keys") == wire.types.count("query.unmask") == 2 * len(SITES)
    assert not list(tmp_path.rglob("session*")), "the secrets of a round are gone with it"
    sent = [
        json.loads(line)["entry"] for line in (next(tmp_path.rglob("east/**/audit.jsonl"))).read_text().splitlines()
    ]
    assert {"keys", "shares", "train", "unmask"} <= {entry["asked"] for entry in sent}


def test_a_site_may_fall_silent_and_another_may_add_noise(folder: Path, tmp_path: Path) -> None:
    wire = Wire(sites(folder, tmp_path, north={"epsilon": 50.0, "clip": 2.0}), frozenset({("west", "train")}))
    found = deploy(folder, tmp_path / "runs", wire, secure=True, rounds=1, minimum_clients=2)
    (line,) = RunDirectory(found).rounds()
    assert set(line.clients) == {"east", "north"}
    assert line.clients["north"]["dp.epsilon"] == pytest.approx(50.0) and "dp.epsilon" not in line.clients["east"]


def test_a_site_that_asks_for_masks_sends_nothing_without(folder: Path, tmp_path: Path) -> None:
    wire = Wire(sites(folder, tmp_path, **{name: {"secure": True} for name in SITES}))
    with pytest.raises(UserError, match="needs 1"):
        deploy(folder, tmp_path / "runs", wire, rounds=1)
    said = next((tmp_path / "runs").rglob("log.txt")).read_text()
    assert said.count("This site sends its model only by secure aggregation") == len(SITES)
