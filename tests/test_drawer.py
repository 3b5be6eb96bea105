"""What a client keeps: by round, pruned, never from a future that did not happen."""

from __future__ import annotations

from pathlib import Path

import torch

from unseen.drawer import VERSIONS, Drawer


def test_versions_by_round(tmp_path: Path) -> None:
    drawer = Drawer(tmp_path)
    assert drawer.open("a", 1) == ({}, {})
    for round in range(1, 6):
        drawer.put("a", round, {"w": torch.tensor(round)}, {"m": torch.tensor(-round)})
    assert drawer.open("a", 6)[0]["w"].item() == 5
    assert drawer.open("a", 5)[1]["m"].item() == -4
    assert len(list((tmp_path / "a").iterdir())) == VERSIONS


def test_a_lost_future_is_forgotten(tmp_path: Path) -> None:
    drawer = Drawer(tmp_path)
    for round in (1, 2, 3):
        drawer.put("a", round, {"w": torch.tensor(round)}, {})
    # the server was killed and goes on from round 1: round 2 is played again, and the client is not asked in round 3
    assert drawer.open("a", 2)[0]["w"].item() == 1
    drawer.put("a", 2, {"w": torch.tensor(20)}, {})
    assert drawer.open("a", 4)[0]["w"].item() == 20


def test_nothing_kept_writes_nothing_and_names_are_safe(tmp_path: Path) -> None:
    drawer = Drawer(tmp_path)
    drawer.put("a", 1, {}, {})
    assert list(tmp_path.iterdir()) == []
    drawer.put("../b/c", 1, {"w": torch.zeros(1)}, {})
    assert [p.parent for p in tmp_path.iterdir()] == [tmp_path]
    assert "w" in drawer.open("../b/c", 2)[0]
