"""GA: generalization adjustment: clients that lose most by the aggregation get more weight in the next one.

Zhang, Xu, Yao, Zhang, Tsang, Wang: Federated Domain Generalization with Generalization Adjustment. CVPR 2023.

The method: every client has a weight, 1/K at first. Its gap is how much worse the aggregated model is on its validation
images than its own model was before the aggregation. Its weight grows by step/K * gap / largest |gap|; weights are
clipped to [0, 1] and divided by their sum. The step shrinks linearly to zero over the rounds. All else is left to the
method it is composed with: `fedavg+ga`, `silobn+ga`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unseen.core.tensors import unprefixed
from unseen.core.types import ClientId, Reply, Server, Tensors
from unseen.method import Method, Range, Traits

LEAST = 1e-6  # a round in which all chosen clients have weight 0 must still have a mean


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def adjusted(weights: Mapping[ClientId, float], gaps: Mapping[ClientId, float], step: float) -> dict[ClientId, float]:
    """New weights. A client without a gap in this round only feels the division by the sum."""
    largest = max((abs(gap) for gap in gaps.values()), default=0.0)
    if largest == 0:
        return dict(weights)
    moved = {c: weight + step / len(weights) * gaps.get(c, 0.0) / largest for c, weight in weights.items()}
    clipped = {client: min(max(weight, 0.0), 1.0) for client, weight in moved.items()}
    return {client: weight / sum(clipped.values()) for client, weight in clipped.items()}


@dataclass(frozen=True)
class GA(Method):
    name: ClassVar[str] = "ga"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "weights"
    traits: ClassVar[Traits] = Traits(
        sends="each client's validation scores before and after the aggregation", validates_locally=True
    )
    ranges: ClassVar[Mapping[str, Range]] = {"size": Range(0.05, 1.0)}

    metric: Literal["acc", "loss"] = "acc"  # what gaps are measured in: "loss" in the paper, "acc" in its code
    size: float = 0.2  # of the first adjustment, d in the paper; it shrinks linearly to 0 over the rounds

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        known = {client: float(value) for client, value in unprefixed("weight/", server.memory).items()}
        everyone = sorted({*known, *chosen})  # sums have one order, also after a checkpoint
        weights = {c: known[c] * len(known) / len(everyone) if c in known else 1 / len(everyone) for c in everyone}
        # Noted in the round before this one: (round, gap), of the round before that.
        noted = unprefixed("gap/", server.memory)
        gaps = {client: float(value[1]) for client, value in noted.items()}
        for round_of_gap, _ in list(noted.values())[:1]:
            weights = adjusted(weights, gaps, self.size * (1 - (float(round_of_gap) - 1) / server.rounds))
        for client in noted:
            del server.memory[f"gap/{client}"]
        for client, weight in weights.items():
            server.memory[f"weight/{client}"] = numbers(weight)
        return {}

    def hear(self, server: Server, reply: Reply) -> None:
        memory, name = server.memory, "accuracy" if self.metric == "acc" else "loss"
        before, after = memory.get(f"local/{reply.client}"), reply.metrics.get(f"received.{name}")
        if before is not None and after is not None and int(before[0]) == reply.round - 1:
            gap = (after - float(before[1])) * (-1 if self.metric == "acc" else 1)
            memory[f"gap/{reply.client}"] = numbers(reply.round - 1, gap)
        if f"local.{name}" in reply.metrics:
            memory[f"local/{reply.client}"] = numbers(reply.round, reply.metrics[f"local.{name}"])

    def weigh(self, server: Server, reply: Reply) -> float:
        return max(float(server.memory.get(f"weight/{reply.client}", numbers(1.0))), LEAST)
