"""FedGAMMA is `fedsam+scaffold`: its formulas by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tests.tiny_work import batch, make_work
from unseen.core.plan import OptimizerPlan
from unseen.core.types import Batch, Work
from unseen.method import Method, compose
from unseen.methods.fedsam import FedSAM
from unseen.methods.scaffold import Scaffold

CURVE = np.array([1.0, 2.0, 3.0])


@dataclass(frozen=True)
class Quadratic(Method):
    """A loss with a known gradient: sum of w^2 * CURVE / 2 over the head's bias."""

    name: ClassVar[str] = "quadratic"

    def loss(self, work: Work, batch: Batch) -> Tensor:
        return (work.net.head.bias.square() * torch.tensor(CURVE, dtype=torch.float32)).sum() / 2


def test_two_rounds_of_two_steps_by_hand() -> None:
    rho, lr, key = 0.3, 0.1, "scaffold/head.bias"
    method = compose(FedSAM(rho=rho), Scaffold(), Quadratic())
    work = make_work(method, optimizer=OptimizerPlan(lr=lr, momentum=0.0), local_steps=2)
    start, own, mean = np.array([1.0, -1.0, 0.5]), np.zeros(3), np.zeros(3)
    for _ in range(2):
        with torch.no_grad():
            work.net.head.bias.copy_(torch.tensor(start))
        work.brief = {f"scaffold/{name}": torch.zeros_like(p) for name, p in work.net.named_parameters()}
        work.brief[key] = torch.tensor(mean, dtype=torch.float32)
        work.scratch.clear()
        method.prepare(work)
        w = start.copy()
        for _ in range(2):
            g = CURVE * w
            worst = w + rho * g / np.linalg.norm(g)  # up by the client's own gradient, not by a corrected one
            w = w - lr * (CURVE * worst - own + mean)  # down by the gradient there, corrected
            method.step(work, batch())
            np.testing.assert_allclose(work.net.head.bias.detach().numpy(), w, rtol=1e-5)
        change = method.report(work)
        new = own - mean + (start - w) / (2 * lr)
        np.testing.assert_allclose(change[key].numpy(), new - own, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(work.memory[key].numpy(), new, rtol=1e-4, atol=1e-5)
        own, mean, start = new, new + np.array([0.1, -0.2, 0.3]), w  # another client told something else
