"""q-FedAvg: the higher a client's loss, the more its update counts, for an accuracy that is more alike over clients.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning. ICLR 2020.

The method: minimise sum_k p_k F_k^(q+1) / (q+1), with F_k the loss of client k. With w the model that was sent, w_k the
client's after its training, L = 1 / learning rate and d_k = L (w - w_k):
    w <- w - sum_k p_k F_k^q d_k / sum_k p_k h_k,     h_k = q F_k^(q-1) ||d_k||^2 + L F_k^q.
With q = 0 this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms
from unseen.core.tensors import RunningMean
from unseen.core.types import Reply, Server, Tensors, Work
from unseen.core.updates import advanced, dot, split
from unseen.method import Method, Range, Traits, Weigh
from unseen.nets.parts.risk import received_risk

LEAST = 1e-10  # of a loss: F^(q-1) of no loss at all would be infinite


@dataclass(frozen=True)
class QFedAvg(Method):
    name: ClassVar[str] = "qfedavg"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "weights"
    traits: ClassVar[Traits] = Traits(
        sends="each client's training loss under the model it received, and its learning rate"
    )
    ranges: ClassVar[Mapping[str, Range]] = {"q": Range(0.001, 5.0)}

    q: float = 0.1  # how much fairness weighs; the paper searches 0.001 to 15

    def prepare(self, work: Work) -> None:
        work.scratch["risk"] = received_risk(work)

    def report(self, work: Work) -> Tensors:
        return {"loss": cast(Tensor, work.scratch["risk"]), "lr": torch.tensor(work.lr, dtype=torch.float64)}

    def forms(self, asked: Asked) -> Forms:
        optimizer, rounds = asked.plan.optimizer, asked.plan.rounds
        lr = torch.tensor(optimizer.lr_at(asked.round, rounds), dtype=torch.float64)
        return Forms(report={"loss": Form((), torch.float64, least=0.0), "lr": Form((), torch.float64, lr, lr)})

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        pulls, resistances, others = RunningMean(), RunningMean(), RunningMean()
        for reply in replies:
            update, rest = split(server, reply)
            loss, steepness = float(reply.report["loss"]) + LEAST, 1 / float(reply.report["lr"])
            pulls.add({key: loss**self.q * steepness * value for key, value in update.items()}, weigh(reply))
            length = steepness**2 * dot(update, update)
            resistance = self.q * loss ** (self.q - 1) * length + steepness * loss**self.q
            resistances.add({"h": resistance}, weigh(reply))
            others.add(rest, weigh(reply))
        resistance = resistances.result()["h"]
        return advanced(server, {key: pull / resistance for key, pull in pulls.result().items()}, others.result())
