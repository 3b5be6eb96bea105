"""AFL: agnostic federated learning: the worst mixture of the clients is what the model is trained for.

Mohri, Sivek, Suresh: Agnostic Federated Learning. ICML 2019.

The method: min over w, max over weights lambda on the simplex, of sum_k lambda_k L_k(w). Each round the model is the mean
of the clients' models with weights lambda; then lambda <- projection on the simplex of lambda + rate * L, with L_k the
loss of the model that client k received, on its training images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms
from unseen.core.mixture import LEAST, joined, number, on_simplex
from unseen.core.tensors import unprefixed
from unseen.core.types import ClientId, Reply, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.risk import received_risk


@dataclass(frozen=True)
class AFL(Method):
    name: ClassVar[str] = "afl"
    year: ClassVar[int] = 2019
    family: ClassVar[str] = "weights"
    traits: ClassVar[Traits] = Traits(sends="each client's training loss under the model it received")
    ranges: ClassVar[Mapping[str, Range]] = {"rate": Range(0.01, 1.0)}

    rate: float = 0.1  # gamma_lambda, the learning rate of the weights

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        known = {client: float(value) for client, value in unprefixed("weight/", server.memory).items()}
        losses = unprefixed("loss/", server.memory)  # of the round before: model and weights move at the same time
        if losses:
            known = on_simplex({c: w + self.rate * float(losses.get(c, number(0.0))) for c, w in known.items()})
        for client in losses:
            del server.memory[f"loss/{client}"]
        for client, weight in joined(known, chosen).items():
            server.memory[f"weight/{client}"] = number(weight)
        return {}

    def prepare(self, work: Work) -> None:
        work.scratch["risk"] = received_risk(work)

    def report(self, work: Work) -> Tensors:
        return {"loss": cast(Tensor, work.scratch["risk"])}

    def forms(self, asked: Asked) -> Forms:
        return Forms(report={"loss": Form((), torch.float64, least=0.0)})

    def hear(self, server: Server, reply: Reply) -> None:
        server.memory[f"loss/{reply.client}"] = reply.report["loss"]

    def weigh(self, server: Server, reply: Reply) -> float:
        return max(float(server.memory[f"weight/{reply.client}"]), LEAST)
