from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from unseen.core.types import Reply, Server
from unseen.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi, ServerOptimizer

IMAGES = np.array([10, 30])
MOVES = np.array([[[0.3, -0.2, 0.001], [0.1, 0.4, 0.0]], [[-0.5, 0.1, 0.002], [0.2, 0.3, 0.001]]])  # round, client


def played(method: ServerOptimizer) -> np.ndarray:
    """Two rounds from zero."""
    server = Server({"w": torch.zeros(3).double(), "running": torch.zeros(1)}, stepped=frozenset({"w"}))
    for round, moves in enumerate(MOVES):
        replies = [
            Reply(
                c,
                "train",
                round + 1,
                int(n),
                state={"w": server.state["w"] + torch.tensor(d), "running": torch.ones(1)},
            )
            for c, n, d in zip("ab", IMAGES, moves, strict=True)
        ]
        server.state = method.merge(server, iter(replies), lambda reply: method.weigh(server, reply))
        assert float(server.state["running"]) == 1.0  # averaged, not optimised
    result: np.ndarray = server.state["w"].numpy()
    return result


def test_fedavgm_by_hand() -> None:
    one, two = (IMAGES / 40) @ MOVES[0], (IMAGES / 40) @ MOVES[1]
    expected = 0.5 * one + 0.5 * (0.8 * one + two)
    np.testing.assert_allclose(played(FedAvgM(momentum=0.8, rate=0.5)), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_adaptive_by_hand(kind: type[FedAdagrad | FedAdam | FedYogi]) -> None:
    rate, beta1, beta2, tau = 0.05, 0.7, 0.6, 0.01
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for moves in MOVES:
        d = (IMAGES / 40) @ moves
        m = beta1 * m + (1 - beta1) * d
        if kind is FedAdagrad:
            v = v + d**2
        elif kind is FedAdam:
            v = beta2 * v + (1 - beta2) * d**2
        else:
            v = v - (1 - beta2) * d**2 * np.sign(v - d**2)
        x = x + rate * m / (np.sqrt(v) + tau)
    np.testing.assert_allclose(played(kind(rate=rate, beta1=beta1, beta2=beta2, tau=tau)), x, rtol=1e-5)


def test_fedadagrad_has_no_momentum_unless_it_is_asked_for() -> None:
    """As in the authors' code, whose server is Keras's Adagrad; FedAdam and FedYogi have Keras's 0.9."""
    assert (FedAdagrad().beta1, FedAdam().beta1, FedYogi().beta1) == (0.0, 0.9, 0.9)
    x, v = np.zeros(3), np.full(3, 0.001**2)
    for moves in MOVES:
        d = (IMAGES / 40) @ moves
        v = v + d**2
        x = x + 0.01 * d / (np.sqrt(v) + 0.001)
    np.testing.assert_allclose(played(FedAdagrad()), x, rtol=1e-5)


def test_without_momentum_it_is_fedavg(tmp_path: Path) -> None:
    plain, fedavg = federation(FedAvgM(momentum=0.0, rate=1.0), tmp_path / "1"), federation("fedavg", tmp_path / "2")
    plain.run()
    fedavg.run()
    for key, value in fedavg.server.state.items():
        torch.testing.assert_close(plain.server.state[key], value, rtol=1e-4, atol=1e-5)
