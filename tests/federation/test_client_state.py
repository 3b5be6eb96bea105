"""What a client keeps: by round, pruned, never from a future that did not happen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unseen.core.errors import UserError
from unseen.federation.client_state import VERSIONS, ClientStates


def test_versions_by_round(tmp_path: Path) -> None:
    client_states = ClientStates(tmp_path)
    assert client_states.load("a", 1) == ({}, {})
    for round in range(1, 6):
        client_states.save("a", round, {"w": torch.tensor(round)}, {"m": torch.tensor(-round)})
    assert client_states.load("a", 6)[0]["w"].item() == 5
    assert client_states.load("a", 5)[1]["m"].item() == -4
    assert len(list((tmp_path / "a").iterdir())) == VERSIONS


def test_a_lost_future_is_forgotten(tmp_path: Path) -> None:
    client_states = ClientStates(tmp_path)
    for round in (1, 2, 3):
        client_states.save("a", round, {"w": torch.tensor(round)}, {})
    # the server was killed and goes on from round 1: round 2 is played again, and the client is not asked in round 3
    assert client_states.load("a", 2)[0]["w"].item() == 1
    client_states.save("a", 2, {"w": torch.tensor(20)}, {})
    assert client_states.load("a", 4)[0]["w"].item() == 20


def test_nothing_kept_writes_nothing_and_names_are_safe(tmp_path: Path) -> None:
    client_states = ClientStates(tmp_path)
    client_states.save("a", 1, {}, {})
    assert list(tmp_path.iterdir()) == []
    client_states.save("../b/c", 1, {"w": torch.zeros(1)}, {})
    assert [p.parent for p in tmp_path.iterdir()] == [tmp_path]
    assert "w" in client_states.load("../b/c", 2)[0]


def test_a_model_that_came_with_a_survey_is_held_until_the_client_has_trained(tmp_path: Path) -> None:
    client_states = ClientStates(tmp_path)
    client_states.save("a", 1, {"own": torch.ones(1)}, {})
    client_states.hold("a", 2, {"w": torch.tensor(1.0)})
    client_states.hold("a", 3, {"w": torch.tensor(2.0)})  # the round before was broken off
    assert client_states.held("a", 3)["w"].item() == 2.0
    with pytest.raises(UserError, match="no longer has the model of round 2"):
        client_states.held("a", 2)
    assert client_states.load("a", 3)[0].keys() == {"own"}  # it is no version of what the client keeps
    client_states.release("a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["000001.safetensors"]
