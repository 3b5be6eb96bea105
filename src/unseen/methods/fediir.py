"""FedIIR: the head's gradient at every client should be near the mean over clients.

Guo, Guo, Cao, Wu, Chang: Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships.
ICML 2023.

The method: before a round every client tells the gradient g_k of its loss by the head, at the model it received. The server
keeps g <- ema * g + (1 - ema) * mean of g_k. A client's loss is cross-entropy + weight * ||its head's gradient - g||^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms
from unseen.core.tensors import RunningMean
from unseen.core.types import Batch, ClientId, Server, Tensors, Work
from unseen.method import PLAIN_FEATURES, Method, Range, Traits
from unseen.nets.parts.heads import head_slopes

BATCH = 64


@dataclass(frozen=True)
class FedIIR(Method):
    name: ClassVar[str] = "fediir"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "gradients"
    traits: ClassVar[Traits] = Traits(
        sends="the gradient of each client's loss by the head, and its number of images",
        needs=frozenset({PLAIN_FEATURES}),
    )
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(1e-4, 1e-1), "ema": Range(0.5, 0.99, log=False)}

    weight: float = 1e-3  # gamma, of the distance to the mean gradient: 1e-3 on PACS, 5e-4 to 1e-2 elsewhere
    ema: float = 0.95  # how much of the mean gradient of earlier rounds stays

    def surveys(self, round: int) -> bool:
        return True

    def survey(self, work: Work) -> Tensors:
        images, mean = work.site.train, RunningMean()
        for rows in torch.split(torch.arange(len(images)), BATCH):
            batch = images.batch(rows)
            features = work.net.features(batch.x.to(work.device))
            with torch.enable_grad():  # of the head alone
                slopes = head_slopes(work.net, features, batch.y.to(work.device))
            mean.add({key: slope.cpu() for key, slope in slopes.items()}, len(rows))
        return {**mean.result(), "images": torch.tensor(float(len(images)))}

    def forms(self, asked: Asked) -> Forms:
        images = Form((), least=float(asked.images), most=float(asked.images))  # it weighs the client's gradient
        slopes = {key: Form(tuple(p.shape), p.dtype) for key, p in asked.net.head.named_parameters()}
        return Forms(survey={**slopes, "images": images})

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        if not surveys:
            return {}
        mean = RunningMean()
        for client in sorted(surveys):
            told = surveys[client]
            mean.add({key: value for key, value in told.items() if key != "images"}, float(told["images"]))
        for key, value in mean.result().items():
            before = server.memory.get(key, torch.zeros(()))
            server.memory[key] = self.ema * before + (1 - self.ema) * value
        return {client: dict(server.memory) for client in chosen}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        if not work.brief:
            return features.new_zeros(())
        slopes = head_slopes(work.net, features, batch.y)
        terms = [(slope - work.brief[key].to(slope)).square().sum() for key, slope in slopes.items()]
        term = torch.stack(terms).sum()
        work.note("loss.gradients", term)
        return self.weight * term
