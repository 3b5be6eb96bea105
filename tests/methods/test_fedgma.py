from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Reply, Server
from unseen.methods.fedgma import FedGMA


@pytest.mark.parametrize("mask", ["soft", "hard"])
def test_merge_by_hand(mask: Literal["soft", "hard"]) -> None:
    x = np.array([1.0, -2.0, 0.5, 3.0])
    moves = np.array([[0.1, 0.2, -0.4, 0.0], [0.3, -0.6, -0.1, 0.2], [0.2, 0.5, -0.3, 0.0]])
    images = np.array([10, 30, 60])
    replies = [
        Reply(name, "train", 1, int(n), state={"w": torch.tensor(x + move), "running": torch.tensor([float(n)])})
        for name, n, move in zip("abc", images, moves, strict=True)
    ]
    server = Server({"w": torch.tensor(x), "running": torch.zeros(1)}, stepped=frozenset({"w"}))
    method = FedGMA(tau=0.6, mask=mask, rate=2.0)
    state = method.merge(server, iter(replies), lambda reply: method.weigh(server, reply))

    agreement = np.array([1.0, 1 / 3, 1.0, 1 / 3])  # signs +++, +-+, ---, 0+0
    kept = np.where(agreement >= 0.6, 1.0, agreement if mask == "soft" else 0.0)
    p = images / images.sum()
    np.testing.assert_allclose(state["w"].numpy(), x + 2.0 * kept * (p @ moves), rtol=1e-12)
    assert float(state["running"]) == pytest.approx(float(p @ images))  # averaged, whatever its signs


def test_without_a_threshold_it_is_fedavg(tmp_path: Path) -> None:
    masked, fedavg = (
        federation(FedGMA(tau=0.0), tmp_path / "1", rounds=2),
        federation("fedavg", tmp_path / "2", rounds=2),
    )
    masked.run()
    fedavg.run()
    for key, value in fedavg.server.state.items():
        torch.testing.assert_close(masked.server.state[key], value, rtol=1e-4, atol=1e-5)
