"""SCAFFOLD: control variates take the clients' drift out of their gradients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML
2020.

The method: a client i keeps c_i, what its own gradients were on the average; the server keeps c, the mean of them. Each
local step goes along g - c_i + c. After K steps from x to y the client sets c_i <- c_i - c + (x - y) / (K * lr)
(option II) and sends the change beside its model. A client that is not asked keeps its c_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import ClientId, Reply, Server, Tensors, Work
from unseen.method import Method, Traits


@dataclass(frozen=True)
class Scaffold(Method):
    name: ClassVar[str] = "scaffold"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "averaging"
    traits: ClassVar[Traits] = Traits(
        sends="control variates: as many numbers again as the model has weights, up and down"
    )

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        # The server's memory is the sum over all clients it has met. Those that are not asked have their part in it.
        mean = {key: total / len(server.met) for key, total in server.memory.items()}
        return dict.fromkeys(chosen, mean)

    def prepare(self, work: Work) -> None:
        if work.plan.optimizer.name != "sgd":
            raise UserError(
                f"SCAFFOLD's control variates are mean SGD steps, not {work.plan.optimizer.name}'s: use sgd."
            )
        share = work.method.share(work.net)
        common = share.up & share.down  # what a client keeps as its own drifts by intention
        start = {key: p.detach().clone() for key, p in work.net.named_parameters() if p.requires_grad and key in common}
        work.scratch["start"] = start
        if work.brief:
            work.scratch["correction"] = {
                key: work.brief[key].to(x.device) - work.memory.get(key, torch.zeros(())).to(x.device)
                for key, x in start.items()
            }

    def gradient(self, work: Work) -> None:
        correction = cast(Tensors, work.scratch.get("correction", {}))
        for key, parameter in work.net.named_parameters():
            if parameter.grad is not None and key in correction:
                parameter.grad.add_(correction[key])

    def report(self, work: Work) -> Tensors:
        start, now = cast(Tensors, work.scratch["start"]), work.net.state_dict()
        length = work.plan.optimizer.reach(work.steps) * work.lr  # K * lr, and with momentum what it adds
        zero = torch.zeros(())
        change = {key: ((x - now[key]) / length).cpu() - work.brief.get(key, zero) for key, x in start.items()}
        for key, delta in change.items():
            work.memory[key] = work.memory.get(key, zero) + delta
        return change

    def forms(self, asked: Asked) -> Forms:
        common = asked.share.up & asked.share.down
        trained = {key: p for key, p in asked.net.named_parameters() if p.requires_grad and key in common}
        return Forms(report={key: Form(tuple(p.shape), p.dtype) for key, p in trained.items()})

    def hear(self, server: Server, reply: Reply) -> None:
        for key, change in reply.report.items():
            server.memory[key] = server.memory.get(key, torch.zeros(())) + change
