"""FPL: prototypes of each class are clustered over clients; features are drawn to those of their class.

Huang, Ye, Shi, Li, Du: Rethinking Federated Learning with Domain Shift: A Prototype View. CVPR 2023.

The method: a client tells the mean features that each class had in its training. For each class the server clusters the
clients' prototypes (FINCH); a cluster's prototype is the mean of its members, and the unbiased prototype is the mean of
the clusters', so that many like clients do not outvote one that is different. A client's loss is cross-entropy
    + contrast: -log(sum over clusters of its class of e^(cos / temperature) / the sum over all clusters)
    + consistency: squared distance of its features to the unbiased prototype of its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Asked, Forms
from unseen.core.types import Batch, ClientId, Reply, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.prototypes import (
    gather,
    last_partition,
    own_prototypes,
    prototype_forms,
    remember,
    remembered,
    stacked,
)


def clustered(means: Tensor, counts: Tensor) -> Tensors:
    """From clients x classes x features: prototypes of all clusters with their classes, and the unbiased ones."""
    clusters: list[Tensor] = []
    classes: list[int] = []
    unbiased = torch.zeros(means.shape[1:], dtype=means.dtype)
    for k in range(means.shape[1]):
        members = means[counts[:, k] > 0, k]
        centres = [members[rows].mean(0) for rows in last_partition(members)]
        clusters += centres
        classes += [k] * len(centres)
        if centres:
            unbiased[k] = torch.stack(centres).mean(0)
    return {
        "clusters": stacked(clusters, means.shape[2]),
        "classes": torch.tensor(classes, dtype=torch.int64),
        "unbiased": unbiased.float(),
    }


@dataclass(frozen=True)
class FPL(Method):
    name: ClassVar[str] = "fpl"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "prototypes"
    traits: ClassVar[Traits] = Traits(sends="each client's mean features of every class, and their counts")
    ranges: ClassVar[Mapping[str, Range]] = {"temperature": Range(0.01, 0.5), "consistency": Range(0.1, 10.0)}

    temperature: float = 0.02  # tau, of the contrast
    contrast: float = 1.0  # weight of the contrast to clusters; 1 in the paper
    consistency: float = 1.0  # weight of the distance to the unbiased prototype; 1 in the paper

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        return dict.fromkeys(chosen, clustered(*remembered(server.memory))) if server.memory else {}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        gather(work, batch, features)
        if "clusters" not in work.brief:  # the first round
            return features.new_zeros(())
        clusters, classes, unbiased = (
            work.brief[key].to(features.device) for key in ("clusters", "classes", "unbiased")
        )
        own = batch.y[:, None] == classes[None]
        known = own.any(1)  # a class that no client has had yet has no prototype
        if not bool(known.any()):
            return features.new_zeros(())
        rows, own, labels = features[known].float(), own[known], batch.y[known]
        scores = F.normalize(rows, dim=1) @ F.normalize(clusters, dim=1).T / self.temperature
        contrast = (scores.logsumexp(1) - scores.masked_fill(~own, float("-inf")).logsumexp(1)).mean()
        consistency = F.mse_loss(rows, unbiased[labels])
        work.note("loss.contrast", contrast)
        work.note("loss.consistency", consistency)
        return self.contrast * contrast + self.consistency * consistency

    def report(self, work: Work) -> Tensors:
        return own_prototypes(work)

    def forms(self, asked: Asked) -> Forms:
        return Forms(report=prototype_forms(asked.net))

    def hear(self, server: Server, reply: Reply) -> None:
        remember(server.memory, reply.client, reply.report)
