"""Who is who: names bound to keys, sites that come late, what the server's status says. No processes."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tests.attempts import attempt
from unseen.engines.flower import grid as grid_module
from unseen.engines.flower.grid import FlowerEngine, RollCall
from unseen.engines.flower.status import StatusBoard, read_status


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made inside a run."""
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


@dataclass
class Node:
    """A node as Flower lists it; `calls` is the name that its site.toml has."""

    node_id: int
    name: str
    calls: str
    registered_at: str = "2026-01-01"


@dataclass
class FakeGrid:
    """Nodes that answer at once."""

    nodes: list[Node]
    asked: dict[str, int] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def get_nodes(self) -> list[Node]:
        return self.nodes

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.nodes]

    def push_messages(self, messages: list[Message]) -> list[str]:
        names = [str(next(self.numbers)) for _ in messages]
        self.asked |= {name: m.metadata.dst_node_id for name, m in zip(names, messages, strict=True)}
        return names

    def pull_messages(self, names: list[str]) -> list[Any]:
        replies = []
        for name in names:
            node = next(n for n in self.nodes if n.node_id == self.asked[name])
            answer = ConfigRecord({"site": node.calls, "classes": ["a", "b"], "images": 7, "version": "1"})
            replies.append(Reply(name, RecordDict({"hello": answer})))
        return replies


@dataclass
class Reply:
    name: str
    content: RecordDict

    @property
    def metadata(self) -> Metadata:
        return Metadata(1, "", 0, 0, self.name, "", 0.0, 1.0, "query")

    def has_error(self) -> bool:
        return False


def test_a_name_belongs_to_the_key_that_was_registered_with_it() -> None:
    said: list[str] = []
    nodes = [
        Node(4, "east", "east", "2026-02-01"),  # a second key under the name, registered later
        Node(1, "east", "east"),
        Node(2, "west", "east"),  # a known key that calls itself by another's name
        Node(3, "", "north"),
        Node(5, "moon", "moon"),
    ]
    roll = RollCall(FakeGrid(nodes), frozenset({"east", "north", "west"}), said.append)  # type: ignore[arg-type]
    with attempt("keys", 4):
        roll.look()
        assert roll.nodes == {"east": 1}
        assert roll.unfit == {2, 3, 4, 5}
    for fault in (
        'a second node is registered as "east"',
        'the key of "west" came with the name "east"',
        "registered without a name",
        'its site "moon" is not one of this run',
    ):
        assert sum(fault in sentence for sentence in said) == 1, fault
    # Said once, not in every round; and a name becomes free when its node leaves, but only for who has it registered.
    roll.look()
    assert len(said) == 4
    nodes.pop(1)
    roll.look()
    assert roll.nodes == {}


def engine(nodes: list[Node], said: list[str], minimum: int, timeout: float, board: StatusBoard | None = None) -> Any:
    return FlowerEngine(
        FakeGrid(nodes),  # type: ignore[arg-type]
        {},
        ["east", "north", "west"],
        minimum=minimum,
        timeout=timeout,
        said=said.append,
        board=board,
    )


def test_a_late_site_does_not_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_module, "POLL", 0.01)
    said: list[str] = []
    there = [Node(1, "east", "east"), Node(2, "north", "north")]
    engine(there, said, minimum=2, timeout=0.05).gather()
    assert said[0] == "2 of 3 sites are connected; waiting for west."
    assert said[-1] == (
        "Starting with 2 of 3 sites, which is enough: west did not come within 0.05 s, and may come later."
    )


def test_fewer_than_the_minimum_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    there = [Node(1, "east", "east")]
    looks = itertools.count(1)

    def rest(looked: float) -> None:
        if next(looks) == 20:  # long after the time-out
            there.append(Node(2, "north", "north"))

    monkeypatch.setattr(grid_module, "rest", rest)
    made = engine(there, said, minimum=2, timeout=0.0)
    made.gather()
    assert next(looks) >= 20
    assert "at least 2 are needed" in said[0]
    assert said[-1].startswith("Starting with 2 of 3 sites")
    assert made.classes() == ("a", "b")


def test_the_status_says_who_is_there(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    board = StatusBoard(tmp_path / "run", ["east", "north", "west"], "2", clock=lambda: 0.0)
    said: list[str] = []
    engine([Node(1, "east", "east"), Node(2, "north", "moon")], said, 1, 0.0, board).gather()
    board.write()
    status = read_status(tmp_path)
    assert [name for name, site in status.sites.items() if site.alive] == ["east"]
    assert (status.sites["east"].images, status.sites["east"].version) == (7, "1")
    assert 'came with the name "moon"' in status.sites["north"].refused
    assert status.sites["west"].replied is None
    assert 'The site "east" has unseen 1; the coordinator has 2.' in said
    assert json.loads((tmp_path / "run" / "status.json").read_text())["sites"]["east"]["images"] == 7
