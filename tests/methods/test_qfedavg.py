from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Reply, Server
from unseen.methods.qfedavg import QFedAvg


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_merge_by_hand(q: float) -> None:
    w, models = np.array([1.0, -1.0]), np.array([[1.2, -0.7], [0.9, -1.4]])
    losses, images, lr = np.array([2.0, 0.5]), np.array([10, 30]), 0.05
    replies = [
        Reply(
            name,
            "train",
            1,
            int(images[i]),
            state={"w": torch.tensor(models[i]), "running": torch.full((1,), float(i))},
            report={"loss": torch.tensor(losses[i]), "lr": torch.tensor(lr).double()},
        )
        for i, name in enumerate("ab")
    ]
    server = Server({"w": torch.tensor(w), "running": torch.zeros(1)}, stepped=frozenset({"w"}))
    method = QFedAvg(q=q)
    state = method.merge(server, iter(replies), lambda reply: method.weigh(server, reply))

    p, steep = images / images.sum(), 1 / lr
    d = steep * (w - models)
    h = q * losses ** (q - 1) * (d**2).sum(1) + steep * losses**q
    expected = w - (p[:, None] * losses[:, None] ** q * d).sum(0) / (p * h).sum()
    np.testing.assert_allclose(state["w"].numpy(), expected, rtol=1e-6)
    assert float(state["running"]) == pytest.approx(0.75)


def test_without_fairness_it_is_fedavg(tmp_path: Path) -> None:
    fair, fedavg = federation(QFedAvg(q=0.0), tmp_path / "1"), federation("fedavg", tmp_path / "2")
    fair.run()
    fedavg.run()
    for key, value in fedavg.server.state.items():
        torch.testing.assert_close(fair.server.state[key], value, rtol=1e-4, atol=1e-5)
