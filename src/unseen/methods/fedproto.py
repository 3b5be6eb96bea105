"""FedProto: clients pull the features of each class to its prototype, the mean over all clients.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI 2022.

The method: a client tells the mean features that each class had in its training and how many images they are of. The server
takes the mean over clients, by images. A client's loss is cross-entropy + weight * squared distance of its features to
the prototype of their class. The paper's clients share prototypes only; here the weights are averaged too, as a model
for an unseen domain needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Asked, Forms
from unseen.core.types import Batch, ClientId, Reply, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.prototypes import gather, own_prototypes, prototype_forms, remember, remembered


@dataclass(frozen=True)
class FedProto(Method):
    name: ClassVar[str] = "fedproto"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "prototypes"
    traits: ClassVar[Traits] = Traits(
        sends="each client's mean features of every class, and their counts", remark="weights are averaged too"
    )
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.05, 10.0)}

    weight: float = 1.0  # lambda, of the distance to the prototypes

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        if not server.memory:
            return {}
        means, counts = remembered(server.memory)
        total = counts.sum(0)
        prototypes = (counts[:, :, None] * means).sum(0) / total.clamp_min(1)[:, None]
        note = {"prototypes": prototypes.float(), "known": (total > 0).float()}
        return dict.fromkeys(chosen, note)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        gather(work, batch, features)
        if "prototypes" not in work.brief:  # the first round
            return features.new_zeros(())
        prototypes, known = (work.brief[key].to(features.device) for key in ("prototypes", "known"))
        distances = F.mse_loss(features.float(), prototypes[batch.y], reduction="none").mean(1)
        term = (known[batch.y] * distances).mean()
        work.note("loss.prototypes", term)
        return self.weight * term

    def report(self, work: Work) -> Tensors:
        return own_prototypes(work)

    def forms(self, asked: Asked) -> Forms:
        return Forms(report=prototype_forms(asked.net))

    def hear(self, server: Server, reply: Reply) -> None:
        remember(server.memory, reply.client, reply.report)
