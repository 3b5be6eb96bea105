from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tiny_work import batch, make_work
from unseen.core.plan import OptimizerPlan
from unseen.core.types import Batch, Work
from unseen.methods.fedspeed import FedSpeed


class Quadratic(FedSpeed):
    """A loss with a known gradient: sum of w^2 * (1, 2, 3) / 2 over the head's bias."""

    def loss(self, work: Work, batch: Batch) -> Tensor:
        return (work.net.head.bias.square() * torch.tensor([1.0, 2.0, 3.0])).sum() / 2


def test_two_rounds_of_two_steps_by_hand() -> None:
    pull, rho, alpha, lr = 0.5, 0.2, 0.75, 0.1
    curve, correction = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    work = make_work(Quadratic(pull=pull, rho=rho, alpha=alpha), optimizer=OptimizerPlan(lr=lr, momentum=0.0))
    bias = work.net.head.bias
    start = np.array([1.0, -1.0, 0.5])
    for _ in range(2):
        with torch.no_grad():
            bias.copy_(torch.tensor(start))
        w = start.copy()
        work.method.prepare(work)
        for _ in range(2):
            here = curve * w
            ahead = curve * (w + rho * here)
            w = w - lr * ((1 - alpha) * here + alpha * ahead - correction + pull * (w - start))
            work.method.step(work, batch())
            np.testing.assert_allclose(bias.detach().numpy(), w, rtol=1e-5)
        correction = correction - pull * (w - start)
        sent = w - correction / pull
        assert work.method.report(work) == {}
        np.testing.assert_allclose(bias.detach().numpy(), sent, rtol=1e-4)
        np.testing.assert_allclose(work.memory["head.bias"].numpy(), correction, rtol=1e-4)
        start = sent


def test_only_what_is_common_is_pulled() -> None:
    work = make_work(FedSpeed())
    work.method.prepare(work)
    start = work.scratch["start"]
    assert isinstance(start, dict) and "head.bias" in start and "backbone.blocks.0.1.running_mean" not in start
    assert isinstance(work.net.head, nn.Linear)
    work.method.step(work, batch())
    assert work.notes["loss"][0] == pytest.approx(work.notes["loss"][0])
