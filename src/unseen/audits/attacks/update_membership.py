"""Was this image trained on at this site? From the updates, with those of the other sites as the null distribution.

Zhu, Li, Gong, Zheng: FedMIA: An Effective Membership Inference Attack Exploiting "All for One" Principle in Federated
Learning, CVPR 2025 (arXiv:2402.06289). An image's measure under an update is the cosine of the image's own gradient with
the update. Other clients did not train on the image, so that their updates give what the measure is for non-members; the
score is how far the client's own measure is above theirs, in their spread, summed over the rounds that were seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, update_of
from unseen.audits.attacks.membership import membership_scores
from unseen.audits.findings import Finding, Plays
from unseen.audits.record import Exchanged
from unseen.core.tensors import load
from unseen.core.types import Batch


@dataclass(frozen=True)
class UpdateMembership:
    name: ClassVar[str] = "membership, from updates (FedMIA)"
    plays: ClassVar[Plays] = "coordinator"

    images: int = 40  # members of each site, and as many others

    def fits(self, observed: Observed, known: Known) -> bool:
        return len(observed.clients) > 1 and any(name in known.stepped for name in observed.first.state)

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        count = known.times(self.images, 24)
        members, others = [], []
        for client in observed.clients:
            members.append(self._scores(client, truth.members(client, count), observed, known))
            others.append(self._scores(client, truth.held_out(client, count), observed, known))
        one, two = torch.cat(members), torch.cat(others)
        rounds = sorted({exchange.round for exchange in observed.exchanges})
        return [
            Finding(
                attack=self.name,
                plays=self.plays,
                saw=f"all sites' updates in rounds {', '.join(map(str, rounds))}",
                real=True,
                scores=membership_scores(one.numpy(), two.numpy()),
                words=f"{len(one)} training images against {len(two)} held-out ones of the same sites.",
            )
        ]

    def _scores(self, client: str, images: Batch, observed: Observed, known: Known) -> Tensor:
        total = torch.zeros(len(images), dtype=torch.float64)
        for number in sorted({one.round for one in observed.exchanges}):
            there = {one.client: one for one in observed.exchanges if one.round == number}
            if client not in there or len(there) < 2:
                continue
            total += standing(cosines(images, there, known), list(there).index(client))
        return total


def standing(measures: Tensor, own: int) -> Tensor:
    """How far a client's measure (a row, one number per image) is above the other clients', in their common spread."""
    others = torch.cat([measures[:own], measures[own + 1 :]])
    above = measures[own] - others.mean(0)
    # With two or three others the spread of one image alone says little: that of all images is taken.
    spread = (others - others.mean(0)).square().mean().sqrt().clamp_min(1e-12)
    return above / spread


def cosines(images: Batch, there: dict[str, Exchanged], known: Known) -> Tensor:
    """Of each image's descent direction with each client's update, clients x images. All clients received one model."""
    names = sorted(known.stepped)
    parameters = dict(known.net.named_parameters())
    start = next(iter(there.values()))
    load(known.net, {**known.initial, **start.received})
    known.net.eval()
    updates = [update_of(one.received, one.state, names) for one in there.values()]
    common = [name for name in names if all(name in update for update in updates)]
    flat = torch.stack([torch.cat([update[name].flatten() for name in common]) for update in updates])
    flat = F.normalize(flat, dim=1)
    columns = []
    for x, y in zip(images.x, images.y, strict=True):
        loss = F.cross_entropy(known.method.predict(known.net, x[None]), y[None])
        slopes = torch.autograd.grad(loss, [parameters[name] for name in common], allow_unused=True)
        row = torch.cat(
            [
                torch.zeros(parameters[name].numel()) if slope is None else slope.flatten()
                for name, slope in zip(common, slopes, strict=True)
            ]
        )
        columns.append(flat @ F.normalize(-row.double(), dim=0))
    return torch.stack(columns, dim=1)
