"""GroupDRO: clients with a high loss get more weight, by a factor that grows with it from round to round.

Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts: On the Importance of
Regularization for Worst-Case Generalization. ICLR 2020.

The method: every group has a weight q, equal at first. Each step multiplies q_g by exp(eta * loss of group g), divides all
by their sum, and descends on sum_g q_g * loss_g. In a federation a client is a group and a round is a step: q_k is
client k's weight in the mean, and its loss is that of the model it received, on its training images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms
from unseen.core.mixture import LEAST, joined, number
from unseen.core.tensors import unprefixed
from unseen.core.types import ClientId, Reply, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.risk import received_risk


@dataclass(frozen=True)
class GroupDRO(Method):
    name: ClassVar[str] = "groupdro"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "weights"
    traits: ClassVar[Traits] = Traits(
        sends="each client's training loss under the model it received", remark="a step per round"
    )
    ranges: ClassVar[Mapping[str, Range]] = {"eta": Range(0.01, 3.0)}

    eta: float = 0.1  # how fast weights follow losses; 0.01 per step in the paper, and here there is one step per round

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        known = {client: float(value) for client, value in unprefixed("weight/", server.memory).items()}
        for client, weight in joined(known, chosen).items():  # which divides by the sum
            server.memory[f"weight/{client}"] = number(weight)
        return {}

    def prepare(self, work: Work) -> None:
        work.scratch["risk"] = received_risk(work)

    def report(self, work: Work) -> Tensors:
        return {"loss": cast(Tensor, work.scratch["risk"])}

    def forms(self, asked: Asked) -> Forms:
        return Forms(report={"loss": Form((), torch.float64, least=0.0)})

    def hear(self, server: Server, reply: Reply) -> None:
        key = f"weight/{reply.client}"
        server.memory[key] = server.memory[key] * math.exp(self.eta * float(reply.report["loss"]))

    def weigh(self, server: Server, reply: Reply) -> float:
        return max(float(server.memory[f"weight/{reply.client}"]), LEAST)  # a mean divides by the sum of its weights
