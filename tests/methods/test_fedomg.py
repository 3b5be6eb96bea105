from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Reply, Server
from unseen.methods.fedomg import FedOMG, matching

UPDATES = np.array([[1.0, 0.2, 0.0], [-0.5, 1.0, 0.3], [0.4, 0.1, -0.2]])
P = np.array([0.5, 0.2, 0.3])


def objective(gamma: np.ndarray, kappa: float) -> np.ndarray:
    """For each row of weights."""
    mean, mixed = P @ UPDATES, gamma @ UPDATES
    value: np.ndarray = mixed @ mean + kappa * np.linalg.norm(mean) * np.linalg.norm(mixed, axis=1)
    return value


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.9])
def test_the_weights_are_the_best_of_a_fine_grid(kappa: float) -> None:
    one, two = np.meshgrid(np.linspace(0, 1, 401), np.linspace(0, 1, 401))
    grid = np.stack([one.ravel(), two.ravel(), 1 - one.ravel() - two.ravel()], axis=1)
    grid = grid[grid[:, 2] >= 0]
    gamma = matching(torch.tensor(UPDATES @ UPDATES.T), torch.tensor(P), kappa).numpy()
    assert gamma.min() >= 0 and gamma.sum() == pytest.approx(1)
    assert objective(gamma[None], kappa)[0] <= objective(grid, kappa).min() + 1e-3


def test_merge_by_hand_and_the_worst_off_client_gains() -> None:
    images, kappa = (P * 100).astype(int), 0.5
    server = Server({"w": torch.ones(3).double(), "running": torch.zeros(1)}, stepped=frozenset({"w"}))
    replies = [
        Reply(c, "train", 1, int(n), state={"w": torch.tensor(1 + d), "running": torch.ones(1)})
        for c, n, d in zip("abc", images, UPDATES, strict=True)
    ]
    method = FedOMG(kappa=kappa, rate=0.8)
    state = method.merge(server, iter(replies), lambda reply: method.weigh(server, reply))
    gamma = matching(torch.tensor(UPDATES @ UPDATES.T), torch.tensor(P), kappa).numpy()
    mean, mixed = P @ UPDATES, gamma @ UPDATES
    direction = mean + kappa * np.linalg.norm(mean) / np.linalg.norm(mixed) * mixed
    np.testing.assert_allclose(state["w"].numpy(), 1 + 0.8 * direction / (1 + kappa**2), rtol=1e-9)
    assert float(state["running"]) == 1.0
    assert (UPDATES @ direction).min() > (UPDATES @ mean).min()


def test_with_no_room_it_is_fedavg(tmp_path: Path) -> None:
    near, fedavg = federation(FedOMG(kappa=0.0), tmp_path / "1"), federation("fedavg", tmp_path / "2")
    near.run()
    fedavg.run()
    for key, value in fedavg.server.state.items():
        torch.testing.assert_close(near.server.state[key], value, rtol=1e-4, atol=1e-5)
