"""MCSAD: styles that the heads of all clients find hard, and answers on them that agree with all heads' mean.

Wei: Multi-Source Collaborative Style Augmentation and Domain-Invariant Learning for Federated Domain Generalization.
IJCAI 2025.

The method: after each of the first two stages the channel means and standard deviations of an image's maps go `rate` times
up the gradient of the cross-entropy, mean over the heads that the clients sent in the round before. The loss is
CE(image) + CE(restyled) + contrast * supervised contrast of the features of both
    + relation * (KL(e || image's answer) + KL(e || restyled one's answer)),
with e the softmax of the heads' mean logits on the image, all three at temperature tau. The rest is FedAvg with equal
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Batch, ClientId, Reply, Server, Tensors, Work
from unseen.method import OWN_HEAD, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.contrast import supervised_contrast
from unseen.nets.parts.heads import logits_under, remember_head, remembered_heads
from unseen.nets.parts.shifted import untracked
from unseen.nets.parts.styles import Style, restyle, style_of

EPSILON = 1e-5  # beside the variances


def ensemble(net: Net, heads: Sequence[Tensors], features: Tensor) -> list[Tensor]:
    """Each head's logits on the same features; gradients reach the features alone."""
    return [logits_under(net, prefixed("head.", head), features) for head in heads]


def from_stage(net: Net, stage: int, maps: Tensor) -> Tensor:
    """The features of maps that a stage is to see."""
    for number in range(stage, net.stages):
        maps = net.run_stage(number, maps)
    return net.pool(maps)


@dataclass(frozen=True)
class MCSAD(Method):
    name: ClassVar[str] = "mcsad"
    year: ClassVar[int] = 2025
    family: ClassVar[str] = "styles"
    passes: ClassVar[float] = 2.6  # about: of the tries, only styles get gradients
    traits: ClassVar[Traits] = Traits(
        sends="each client's own head, handed on to all clients", counts_images=False, needs=frozenset({OWN_HEAD})
    )
    ranges: ClassVar[Mapping[str, Range]] = {"rate": Range(0.1, 10.0), "relation": Range(0.05, 5.0)}

    rate: float = 2.0  # eta, how far a style goes up its gradient; 2 in the authors' PACS script
    stages: int = 2  # first stages after which styles change
    contrast: float = 0.1  # weight of the contrast; ours, the paper's could not be found out
    relation: float = 1.0  # weight of the agreement with all heads; ours, as above
    tau: float = 2.0  # temperature of the agreement; ours, as above
    temperature: float = 0.07  # of the contrast: SupCon's usual one

    def build(self, net: Net) -> Net:
        if not 1 <= self.stages <= net.stages:
            raise UserError(f"mcsad: stages is {self.stages}; {net.backbone_name} has 1 to {net.stages}.")
        return net

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        return {client: dict(server.memory) for client in chosen}

    def harder(self, net: Net, heads: Sequence[Tensors], stage: int, maps: Tensor, labels: Tensor) -> Tensor:
        """The maps after a stage, in a style that the heads find harder."""
        own = Style(*(part.detach() for part in style_of(maps, EPSILON)))
        tried = Style(*(part.clone().requires_grad_() for part in own))
        features = from_stage(net, stage + 1, restyle(maps.detach(), *tried, own))
        risks = [F.cross_entropy(logits, labels) for logits in ensemble(net, heads, features)]
        slopes = torch.autograd.grad(torch.stack(risks).mean(), list(tried))
        mean, std = (part.detach() + self.rate * slope for part, slope in zip(tried, slopes, strict=True))
        return restyle(maps, mean, std, own)

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net, labels = work.net, batch.y
        heads = remembered_heads(work.brief) or [unprefixed("head.", work.received)]  # in the first round: the server's
        maps = net.run_stage(0, batch.x)
        features = from_stage(net, 1, maps)
        for stage in range(self.stages):
            maps = maps if stage == 0 else net.run_stage(stage, maps)
            with untracked(net):  # a try is a pass of its own
                maps = self.harder(net, heads, stage, maps, labels)
        restyled = from_stage(net, self.stages, maps)
        logits, hard = net.head(features), net.head(restyled)
        with torch.no_grad():
            agreed = (torch.stack(ensemble(net, heads, features)).mean(0).float() / self.tau).softmax(1)
        task = F.cross_entropy(logits, labels) + F.cross_entropy(hard, labels)
        contrast = supervised_contrast(torch.cat([features, restyled]), torch.cat([labels, labels]), self.temperature)
        relation = torch.stack(
            [F.kl_div((z.float() / self.tau).log_softmax(1), agreed, reduction="batchmean") for z in (logits, hard)]
        ).sum()
        work.note("loss.contrast", contrast)
        work.note("loss.relation", relation)
        total = task + self.contrast * contrast + self.relation * relation
        return total + work.method.penalty(work, batch, features)

    def hear(self, server: Server, reply: Reply) -> None:
        remember_head(server.memory, reply)
