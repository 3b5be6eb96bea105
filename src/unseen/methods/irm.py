"""IRM: features on which one and the same classifier is the best for every client.

Arjovsky, Bottou, Gulrajani, Lopez-Paz: Invariant Risk Minimization. 2019.

The method: IRMv1 minimises sum over environments e of R_e + weight * ||grad of R_e(s * logits) with respect to the number s,
at s = 1||^2: where it is zero, scaling the classifier gains nothing in e. In a federation a client is an environment, and
the sum over environments is the mean over clients: nothing else is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Work
from unseen.method import Method, Range


def invariance(logits: Tensor, labels: Tensor, halves: bool = False) -> Tensor:
    """The squared gradient of the risk by the scale of the logits; or the product of those of even and of odd rows."""
    scale = torch.ones((), device=logits.device, requires_grad=True)
    rows = [slice(0, None, 2), slice(1, None, 2)] if halves else [slice(None)]
    risks = [F.cross_entropy(logits[part].float() * scale, labels[part]) for part in rows]
    slopes = [torch.autograd.grad(risk, scale, create_graph=True)[0] for risk in risks]
    return slopes[0] * slopes[-1]


@dataclass(frozen=True)
class IRM(Method):
    name: ClassVar[str] = "irm"
    year: ClassVar[int] = 2019
    family: ClassVar[str] = "gradients"
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.01, 10.0), "warmup": Range(0.0, 0.6, log=False)}

    weight: float = 0.1  # lambda, of the invariance penalty; large ones need a small learning rate
    warmup: float = 0.2  # part of the rounds that pass before the penalty counts
    halves: bool = False  # the square as a product over two halves of a batch: no bias, but no lower bound either

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        if work.round - 1 < self.warmup * work.plan.rounds:
            return features.new_zeros(())
        term = invariance(work.net.head(features), batch.y, self.halves)
        work.note("loss.invariance", term)
        return self.weight * term
