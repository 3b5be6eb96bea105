from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Reply, Server
from unseen.method import Method, Traits
from unseen.methods.groupdro import GroupDRO


def reply(client: str, loss: float) -> Reply:
    return Reply(client, "train", 1, 999, report={"loss": torch.tensor(loss)})


def test_two_rounds_by_hand() -> None:
    method, server, q = GroupDRO(eta=0.5), Server({}), np.full(2, 0.5)
    for losses in ([3.0, 1.0], [2.0, 0.5]):
        method.brief(server, {}, ["a", "b"])
        replies = [reply(client, loss) for client, loss in zip("ab", losses, strict=True)]
        for each in replies:
            method.hear(server, each)
        q = q * np.exp(0.5 * np.array(losses))
        q = q / q.sum()
        weights = np.array([method.weigh(server, each) for each in replies])
        np.testing.assert_allclose(weights / weights.sum(), q, rtol=1e-6)


@dataclass(frozen=True)
class Equal(Method):
    traits: ClassVar[Traits] = Traits(counts_images=False)


def test_with_eta_zero_all_clients_weigh_the_same(tmp_path: Path) -> None:
    still, equal = federation(GroupDRO(eta=0.0), tmp_path / "1"), federation(Equal(), tmp_path / "2")
    still.run()
    equal.run()
    for key, value in equal.server.state.items():
        torch.testing.assert_close(still.server.state[key], value, rtol=1e-4, atol=1e-5)


def test_a_new_client_gets_the_mean_weight() -> None:
    method, server = GroupDRO(), Server({})
    method.brief(server, {}, ["a", "b"])
    method.brief(server, {}, ["b", "c"])
    assert [float(server.memory[f"weight/{c}"]) for c in "abc"] == pytest.approx([1 / 3] * 3)
