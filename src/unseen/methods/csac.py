"""CSAC: models are fused tensor by tensor, and the fused model is calibrated against each client's own.

Yuan, Ma, Chen, Wu, Lin, Kuang: Collaborative Semantic Aggregation and Calibration for Federated Domain Generalization.
TKDE 2023.

The method: first every client trains alone; what comes of it is its own model, frozen from then on. In each round the
server fuses the replies, for each tensor with weights proportional to their distances from the plain mean. A client
trains the fused model on cross-entropy plus `calibration` times (the attention-weighted MK-MMD between its last stages
and its frozen model's, each with each, + the MK-MMD between their logits).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Asked, Forms
from unseen.core.tensors import load, prefixed, snapshot, unprefixed
from unseen.core.types import Batch, Reply, Server, Tensors, Work
from unseen.method import Method, Traits, Weigh
from unseen.nets.parts.calibration import Calibration, mmd
from unseen.nets.parts.frozen import frozen_levels, levels


def fuse(values: list[Tensor]) -> Tensor:
    """The mean weighted by distances from the plain mean: what is unlike the others is semantics worth keeping."""
    if not values[0].is_floating_point():
        return torch.stack(values).amax(0)
    stacked = torch.stack([value.double() for value in values])
    distances = (stacked - stacked.mean(0)).reshape(len(values), -1).norm(dim=1)  # also of single numbers
    if float(distances.sum()) == 0:
        return values[0].clone()
    shares = (distances / distances.sum()).view(-1, *[1] * values[0].dim())
    fused: Tensor = (shares * stacked).sum(0)
    return fused.to(values[0].dtype)


@dataclass(frozen=True)
class CSAC(Method):
    name: ClassVar[str] = "csac"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "servers"
    passes: ClassVar[float] = 1.33
    traits: ClassVar[Traits] = Traits(ignores=frozenset({"weigh"}))  # distances are the weights

    pretraining: int = 1  # a client's first rounds, in which it trains alone; the authors: 1,800 steps
    calibration: float = 0.6  # lambda, the weight of the MMD terms
    levels: int = 3  # stages that are calibrated, from the last; 0, only logits: what the authors' code really does
    width: int = 32  # channels to which their maps are projected

    def prepare(self, work: Work) -> None:
        own = unprefixed("own/", work.memory)
        if int(work.memory.get("rounds", torch.tensor(0))) < self.pretraining:
            load(work.net, own)  # alone: it goes on with what it had, not with what it received
            return
        work.scratch["own"] = {key: value.to(work.device) for key, value in own.items()}
        if self.levels:
            calibration = Calibration(work.net.stage_channels[-self.levels :], self.width).to(work.device)
            work.scratch["calibration"] = calibration
            work.optimizers["main"].add_param_group({"params": list(calibration.parameters())})

    def loss(self, work: Work, batch: Batch) -> Tensor:
        here = levels(work.net, batch.x)
        loss: Tensor = F.cross_entropy(here.logits, batch.y)
        if "own" in work.scratch:
            there = frozen_levels(work.net, cast(Tensors, work.scratch["own"]), batch.x)
            term = mmd(there.logits, here.logits)
            if self.levels:
                calibration = cast(Calibration, work.scratch["calibration"])
                term = calibration(here.maps[-self.levels :], there.maps[-self.levels :]) + term
            work.note("loss.calibration", term)
            loss = loss + self.calibration * term
        return loss + work.method.penalty(work, batch, here.features)

    def report(self, work: Work) -> Tensors:
        rounds = int(work.memory.get("rounds", torch.tensor(0)))
        if rounds < self.pretraining:
            work.memory.update(prefixed("own/", snapshot(work.net)))
        work.memory["rounds"] = torch.tensor(rounds + 1)
        return {}

    def forms(self, asked: Asked) -> Forms:
        return Forms()  # `report` only keeps something

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        states = [reply.state for reply in replies]  # all at once: distances are from the mean of all
        return {**server.state, **{key: fuse([state[key] for state in states]) for key in states[0]}}
