"""MCGDM: at the head, an image and its augmented copy should ask for the same change, and so under every client's head.

Wei, Han: Multi-Source Collaborative Gradient Discrepancy Minimization for Federated Domain Generalization. AAAI 2024.

The method: an image x has a copy x' by RandAugment. The loss is (CE(x) + CE(x')) / 2
    + intra * (1 - cos(gradient of CE(x) by the head, gradient of CE(x') by the head))
    + inter * mean over clients j of (1 - cos(gradient of CE(x) by head j, gradient of CE(x') by the own head)),
with the heads that the clients sent in the round before. A cosine is per row of a weight, and the mean is over rows and
over the head's tensors. The rest is FedAvg with equal weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.tensors import unprefixed
from unseen.core.types import Batch, ClientId, Reply, Server, Tensors, Work
from unseen.method import OWN_HEAD, Method, Range, Traits
from unseen.nets.parts.heads import head_slopes, remember_head, remembered_heads
from unseen.nets.parts.images import rand_augment


def discrepancy(one: Tensors, two: Tensors) -> Tensor:
    """1 - the cosine of two gradients by a head: per row, mean over rows, mean over the head's tensors."""
    parts = [1 - F.cosine_similarity(one[key], two[key], dim=-1).mean() for key in one]
    return torch.stack(parts).mean()


@dataclass(frozen=True)
class MCGDM(Method):
    name: ClassVar[str] = "mcgdm"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "gradients"
    passes: ClassVar[float] = 2.0
    traits: ClassVar[Traits] = Traits(
        sends="each client's own head, handed on to all clients", counts_images=False, needs=frozenset({OWN_HEAD})
    )
    ranges: ClassVar[Mapping[str, Range]] = {"intra": Range(0.05, 2.0), "inter": Range(0.02, 2.0)}

    intra: float = 0.7  # weight of the matching between an image and its copy; 0.7 in the authors' PACS script
    inter: float = 0.2  # weight of the matching under the clients' heads; ours, the paper's could not be found out
    operations: int = 2  # of RandAugment, one after the other
    magnitude: int = 9  # of RandAugment, 0 to 30; the usual one

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        return {client: dict(server.memory) for client in chosen}

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net, labels = work.net, batch.y
        copy = replace(batch, x=rand_augment(batch.x, self.operations, self.magnitude / 30, work.rng))
        features, copied = net.features(batch.x), net.features(copy.x)
        task = (F.cross_entropy(net.head(features), labels) + F.cross_entropy(net.head(copied), labels)) / 2
        asked = head_slopes(net, copied, labels)
        intra = discrepancy(head_slopes(net, features, labels), asked)
        heads = remembered_heads(work.brief) or [unprefixed("head.", work.received)]  # in the first round: the server's
        inter = torch.stack([discrepancy(head_slopes(net, features, labels, head), asked) for head in heads]).mean()
        work.note("loss.intra", intra)
        work.note("loss.inter", inter)
        return task + self.intra * intra + self.inter * inter + work.method.penalty(work, batch, features)

    def hear(self, server: Server, reply: Reply) -> None:
        remember_head(server.memory, reply)
