from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.tiny_federation import federation, same
from tests.tiny_work import batch, make_work
from unseen.methods.erm import ERM


def test_the_loss_is_mean_cross_entropy() -> None:
    work, images = make_work(ERM()), batch()
    with torch.no_grad():
        logits = work.net(images.x).double().numpy()
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(chances[np.arange(8), images.y.numpy()]).mean()
    np.testing.assert_allclose(work.method.loss(work, images).item(), expected, rtol=1e-5)


def test_in_a_federation_it_is_fedavg(tmp_path: Path) -> None:
    erm, fedavg = (federation(name, tmp_path / name, rounds=1, local_steps=2) for name in ("erm", "fedavg"))
    erm.run()
    fedavg.run()
    assert same(erm.server.state, fedavg.server.state)
