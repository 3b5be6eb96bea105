from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work
from unseen.core.types import Reply, Server
from unseen.methods.vrex import VREx


def test_the_multiplier_is_the_gradient_of_mean_and_variance() -> None:
    risks, beta, step = np.array([1.3, 0.9, 1.1]), 0.7, 1e-6
    server, method = Server({}), VREx(beta=beta)
    assert method.brief(server, {}, ["a"]) == {}
    for client, risk in zip("abc", risks, strict=True):
        method.hear(server, Reply(client, "train", 1, 10, report={"risk": torch.tensor(risk)}))
    notes = method.brief(server, {}, ["a", "b", "c", "new"])
    assert "new" not in notes
    for place, client in enumerate("abc"):
        moved = risks.copy()
        moved[place] += step
        slope = ((moved.mean() + beta * moved.var()) - (risks.mean() + beta * risks.var())) / step
        assert (1 + 2 * beta * float(notes[client]["gap"])) / 3 == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize(("gap", "factor"), [(0.25, 2.0), (-0.1, 0.6), (-5.0, 0.0)])
def test_the_loss_is_cross_entropy_times_the_multiplier(gap: float, factor: float) -> None:
    work, images = make_work(VREx(beta=2.0), brief={"gap": torch.tensor(gap)}), batch()
    work.net.eval()
    plain = F.cross_entropy(work.net(images.x), images.y)
    torch.testing.assert_close(work.method.loss(work, images), factor * plain)


def test_through_the_real_loop(tmp_path: Path) -> None:
    fed = federation("vrex", tmp_path, rounds=2, local_steps=2)
    fed.run()
    assert set(fed.server.memory) == {"a", "b", "c"}
