"""FedNova: clients that took more steps do not count more.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.
NeurIPS 2020.

The method: a client trains as in FedAvg and tells how far its steps reach, tau_i (their number; with momentum the sum of
the weights that its gradients got). The server averages the moves per step, (y_i - x) / tau_i, and goes tau_eff of
them, tau_eff being the mean of the tau_i. When all clients take equally many steps this is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.core.forms import Asked, Form, Forms
from unseen.core.tensors import RunningMean
from unseen.core.types import Reply, Server, Tensors, Work
from unseen.method import Method, Traits, Weigh


@dataclass(frozen=True)
class FedNova(Method):
    name: ClassVar[str] = "fednova"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "averaging"
    traits: ClassVar[Traits] = Traits(sends="how many local steps each tensor was trained for")

    def report(self, work: Work) -> Tensors:
        tau = work.plan.optimizer.reach(work.steps)
        trained = {name for name, parameter in work.net.named_parameters() if parameter.requires_grad}
        sent = sorted(work.method.share(work.net).up)
        # Zero for what no optimizer moves: running statistics are not a sum of steps, and are averaged as ever.
        return {"steps": torch.tensor([tau if key in trained else 0.0 for key in sent], dtype=torch.float64)}

    def forms(self, asked: Asked) -> Forms:
        plan = asked.plan
        batches = -(-asked.images // min(plan.batch_size, asked.images))  # of an epoch, rounded up
        most = plan.optimizer.reach(plan.local_steps or batches * (plan.local_epochs or 1))
        return Forms(report={"steps": Form((len(asked.share.up),), torch.float64, least=0.0, most=most)})

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        moves, paces, rest = RunningMean(), RunningMean(), RunningMean()
        for reply in replies:
            weight = weigh(reply)
            taus = dict(zip(sorted(reply.state), reply.report["steps"], strict=True))
            moved = {
                key: reply.state[key].double() - server.state[key].double() for key, tau in taus.items() if tau > 0
            }
            moves.add({key: move / taus[key] for key, move in moved.items()}, weight)
            paces.add({key: taus[key] for key in moved}, weight)
            rest.add({key: value for key, value in reply.state.items() if key not in moved}, weight)
        pace = paces.result()
        new = {key: server.state[key].double() + pace[key] * move for key, move in moves.result().items()}
        return {**server.state, **rest.result(), **{key: new[key].to(server.state[key].dtype) for key in new}}
