"""Was this image trained on? From the final model, which everybody gets.

- *loss*: members have a lower loss (Yeom et al. 2018). A floor.
- *RMIA*: Zarifzadeh, Liu, Shokri: Low-Cost High-Power Membership Inference Attacks, ICML 2024. An image x is compared
  with others z of the same kind: LR(x, z) = (p(x|model) / p(x)) / (p(z|model) / p(z)), and its score is the share of
  z with LR >= gamma. p(x) comes from reference models that were not trained on x: offline, it is
  ((1 + a) p_out(x) + 1 - a) / 2.

The attacker trains the reference models by the method's own client loop on images of his own of the same kind: half of
the images that the sites held out. The other half are the non-members that the score is measured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, joined, rows_of
from unseen.audits.crossed import model_entries
from unseen.audits.findings import Finding, Plays, Score
from unseen.audits.measures import auc, found_at
from unseen.core.types import Batch, Tensors

GAMMA = 2.0
OFFLINE = 0.3  # a: how far p_out is from p_in, the paper's value for images


def rmia(target: Tensor, outside: Tensor, others: Tensor, others_outside: Tensor, gamma: float = GAMMA) -> Tensor:
    """Scores of images, from their probabilities under the model (N) and the reference models (R x N), and those of others."""

    def ratio(under_model: Tensor, under_references: Tensor) -> Tensor:
        typical = ((1 + OFFLINE) * under_references.mean(0) + 1 - OFFLINE) / 2
        return under_model / typical.clamp_min(1e-12)

    compared = ratio(target, outside)[:, None] / ratio(others, others_outside)[None].clamp_min(1e-12)
    return (compared >= gamma).double().mean(1)


@dataclass(frozen=True)
class FinalModelMembership:
    name: ClassVar[str] = "membership, from the final model"
    plays: ClassVar[Plays] = "site"

    images: int = 150  # members of each site, and as many others as it held out
    references: int = 4  # models that the attacker trains at full effort
    steps: int = 60  # that each of them is trained for

    def fits(self, observed: Observed, known: Known) -> bool:
        return bool(observed.final)

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        clients = observed.clients
        members = joined([truth.members(client, self.images) for client in clients])
        held = [truth.held_out(client, 2 * self.images) for client in clients]
        own = joined([rows_of(images, slice(0, len(images) // 2)) for images in held])
        others = joined([rows_of(images, slice(len(images) // 2, None)) for images in held])
        sets = (members, others, own)
        under = [probabilities(known, observed.final, images) for images in sets]
        floor = self._finding("loss threshold", under[0], under[1])
        count = min(self.references, known.times(self.references, 2))
        references = [self._reference(number, own, observed, known) for number in range(count)]
        outside = [torch.stack([probabilities(known, state, images) for state in references]) for images in sets]
        scores = [rmia(under[n], outside[n], under[2], outside[2]) for n in (0, 1)]
        return [floor, self._finding(f"RMIA, {count} reference model{'s' * (count > 1)}", scores[0], scores[1])]

    def _finding(self, how: str, members: Tensor, others: Tensor) -> Finding:
        return Finding(
            attack=f"{self.name}: {how}",
            plays=self.plays,
            saw="the final model",
            real=True,
            scores=membership_scores(members.numpy(), others.numpy()),
            words=f"{len(members)} training images against {len(others)} held-out ones of the same sites.",
        )

    def _reference(self, number: int, own: Batch, observed: Observed, known: Known) -> Tensors:
        chosen = torch.randperm(len(own), generator=known.generator(f"reference {number}"))[: max(2, len(own) // 2)]
        one, steps = observed.first, known.times(self.steps, 5)
        reply = known.reply(rows_of(own, chosen), one, augmented=True, local_steps=steps, local_epochs=None)
        return {**one.received, **model_entries(replace(one, state=reply.state, report=reply.report), known.net)}


def probabilities(known: Known, state: Mapping[str, Tensor], images: Batch) -> Tensor:
    """The probability of each image's own class."""
    logits = known.predict(state, images.x)
    return logits.double().softmax(1).gather(1, images.y[:, None])[:, 0]


def membership_scores(members: ArrayLike, others: ArrayLike) -> dict[str, Score]:
    """Of scores that are higher for members."""
    return {"AUC": auc(members, others), "found at 1 % false": found_at(members, others)}
