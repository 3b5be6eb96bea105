"""Fishr: single images' gradients should vary alike in all domains.

Rame, Dancette, Cord: Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization. ICML 2022.

The method: v_k is the variance over a batch's images of their gradients by the head, one number per weight, smoothed over
steps: s_k <- ema * s_k + (1 - ema) * v_k. Cross-entropy is joined by weight * mean square of (s_k - s) / (1 - ema), with s
the mean over domains. In a federation a client is a domain: it tells s_k after a round, and in the next one hears s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import Batch, ClientId, Reply, Server, Tensors, Work
from unseen.method import LINEAR_HEAD, Method, Range, Traits


def gradient_variances(logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
    """Of a linear head: for each weight and bias, classes x (features + 1), the variance over images.

    An image's gradient is its error (probabilities minus label) times its features, so no gradient per image is kept.
    """
    errors = logits.float().softmax(1) - F.one_hot(labels, logits.shape[1])
    inputs = torch.cat([features.float(), features.new_ones(len(features), 1, dtype=torch.float32)], dim=1)
    mean = errors.T @ inputs / len(labels)
    return errors.square().T @ inputs.square() / len(labels) - mean.square()


@dataclass(frozen=True)
class Fishr(Method):
    name: ClassVar[str] = "fishr"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "gradients"
    traits: ClassVar[Traits] = Traits(
        sends="variances of single images' gradients by the head, one per weight of it", needs=frozenset({LINEAR_HEAD})
    )
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(1.0, 1e4), "warmup": Range(0.0, 0.6, log=False)}

    weight: float = 1000.0  # lambda
    ema: float = 0.95  # how much of the variances of earlier steps stays
    warmup: float = 0.3  # part of the rounds before the penalty counts: 1,500 of 5,000 steps in the authors' code

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        if not server.memory:
            return {}
        mean = torch.stack([server.memory[client] for client in sorted(server.memory)]).mean(0)
        return {client: {"mean": mean} for client in chosen}

    def prepare(self, work: Work) -> None:
        if not isinstance(work.net.head, nn.Linear):
            raise UserError("Fishr needs a linear head: leave out the part that puts another one there.")
        work.scratch["smooth"] = work.memory.get("smooth", torch.zeros(())).to(work.device)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        now = gradient_variances(work.net.head(features), batch.y, features)
        smooth = self.ema * cast(Tensor, work.scratch["smooth"]) + (1 - self.ema) * now
        work.scratch["smooth"] = smooth.detach()
        if "mean" not in work.brief or work.round - 1 < self.warmup * work.plan.rounds:
            return features.new_zeros(())
        term = ((smooth - work.brief["mean"].to(smooth)) / (1 - self.ema)).square().mean()
        work.note("loss.variances", term)
        return self.weight * term

    def report(self, work: Work) -> Tensors:
        work.memory["smooth"] = cast(Tensor, work.scratch["smooth"]).cpu()
        return {"smooth": work.memory["smooth"]}

    def forms(self, asked: Asked) -> Forms:
        return Forms(report={"smooth": Form((asked.net.classes, asked.net.feature_size + 1))})

    def hear(self, server: Server, reply: Reply) -> None:
        server.memory[reply.client] = reply.report["smooth"]
