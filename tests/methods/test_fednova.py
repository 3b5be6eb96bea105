from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import make_work
from unseen.core.plan import OptimizerPlan
from unseen.core.types import Reply, Server
from unseen.method import compose
from unseen.methods.fedbn import FedBN
from unseen.methods.fednova import FedNova


def numpy_sgd(momentum: float, steps: int) -> float:
    """How far SGD with momentum goes down a slope of 1, at a learning rate of 1."""
    w = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        w -= velocity
    return -w


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_reach_by_hand(momentum: float) -> None:
    assert OptimizerPlan(momentum=momentum).reach(7) == pytest.approx(numpy_sgd(momentum, 7))
    assert OptimizerPlan().reach(7) == 7
    assert OptimizerPlan("adam", momentum=0.9).reach(7) == 7  # momentum is SGD's


def test_merge_by_hand() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=3), rng.normal(size=(2, 3))
    means = rng.normal(size=(2, 3))
    images, tau = np.array([10, 30]), np.array([2.0, 5.0])
    replies = [
        Reply(
            name,
            "train",
            1,
            int(images[i]),
            state={"w": torch.tensor(y[i]), "running": torch.tensor(means[i]), "count": torch.tensor(3 + i)},
            report={"steps": torch.tensor([0.0, 0.0, tau[i]])},  # count, running, w
        )
        for i, name in enumerate("ab")
    ]
    server = Server({"w": torch.tensor(x), "running": torch.zeros(3).double(), "count": torch.tensor(0)})
    method = FedNova()
    state = method.merge(server, iter(replies), lambda reply: method.weigh(server, reply))

    p = images / images.sum()
    tau_eff = (p * tau).sum()
    expected = x - tau_eff * sum(p[i] * (x - y[i]) / tau[i] for i in range(2))
    np.testing.assert_allclose(state["w"].numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(state["running"].numpy(), p[0] * means[0] + p[1] * means[1], rtol=1e-12)
    assert int(state["count"]) == 4


def test_equal_steps_are_fedavg(tmp_path: Path) -> None:
    nova, fedavg = (
        federation(name, tmp_path / name, rounds=1, local_steps=2, participation=2) for name in ("fednova", "fedavg")
    )
    nova.run()
    fedavg.run()
    for key, value in fedavg.server.state.items():
        torch.testing.assert_close(nova.server.state[key], value, rtol=1e-5, atol=1e-6)


def test_only_what_is_trained_and_sent_has_steps() -> None:
    method = compose(FedBN(), FedNova())
    work = make_work(method)
    statistics = method.report(work)["fednova/steps"]
    sent = sorted(method.share(work.net).up)
    trained = {name for name, _ in work.net.named_parameters()}
    assert len(statistics) == len(sent)
    assert [key for key, steps in zip(sent, statistics.tolist(), strict=True) if steps > 0] == sorted(trained)
    assert set(statistics.tolist()) == {0.0, OptimizerPlan(momentum=0.9).reach(4)}
