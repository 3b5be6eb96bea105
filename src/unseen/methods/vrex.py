"""V-REx: the clients' risks should be alike: their variance is part of the loss.

Krueger, Caballero, Jacobsen, Zhang, Binas, Zhang, Le Priol, Courville: Out-of-Distribution Generalization via Risk
Extrapolation (REx). ICML 2021.

The method: minimise the mean of the clients' risks R_k + beta * their variance. Its gradient is the mean of
(1 + 2 beta (R_k - mean risk)) * gradient of R_k: a client whose risk is above the mean counts more. In a federation a
client tells its risk after a round, and in the next round hears how far it was from the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import Batch, ClientId, Reply, Server, Tensors, Work
from unseen.method import Method, Range, Traits


@dataclass(frozen=True)
class VREx(Method):
    name: ClassVar[str] = "vrex"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "gradients"
    traits: ClassVar[Traits] = Traits(sends="each client's training loss")
    ranges: ClassVar[Mapping[str, Range]] = {"beta": Range(0.1, 10.0)}

    beta: float = 1.0  # weight of the variance of the risks

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        if not server.memory:
            return {}
        mean = torch.stack([server.memory[client] for client in sorted(server.memory)]).mean()
        return {client: {"gap": server.memory[client] - mean} for client in chosen if client in server.memory}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        risk = F.cross_entropy(work.net.head(features), batch.y)
        work.note("risk", risk)
        # No less than -1: a client far below the mean is left out for a round, but never made worse by intention.
        return max(2 * self.beta * float(work.brief.get("gap", 0.0)), -1.0) * risk

    def report(self, work: Work) -> Tensors:
        return {"risk": torch.tensor(work.notes["risk"], dtype=torch.float64).mean()}

    def forms(self, asked: Asked) -> Forms:
        return Forms(report={"risk": Form((), torch.float64, least=0.0)})

    def hear(self, server: Server, reply: Reply) -> None:
        server.memory[reply.client] = reply.report["risk"]
