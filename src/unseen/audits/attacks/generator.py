"""A generator of features that clients train: are its samples nearer to the features of images that it was trained on?

A generator that has learnt images by heart gives its members away by their distance to the nearest sample (as in Chen et
al.: GAN-Leaks, CCS 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, joined
from unseen.audits.attacks.membership import membership_scores
from unseen.audits.findings import Finding, Plays
from unseen.core.tensors import load
from unseen.core.types import Batch
from unseen.nets.parts.adversarial import Generator


@dataclass(frozen=True)
class GeneratorDistance:
    name: ClassVar[str] = "distance to generated features"
    plays: ClassVar[Plays] = "site"

    images: int = 100
    samples: int = 512

    def fits(self, observed: Observed, known: Known) -> bool:
        crossed = known.net.state_of(Generator, part="layers")
        return any(name in crossed for name in observed.first.state)

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        load(known.net, {**known.initial, **observed.final})
        known.net.eval()
        asked = known.public.x[torch.arange(self.samples) % len(known.public)]
        with torch.no_grad():
            told = known.method.inspect(known.net, asked)
        samples = next(v for v in told.values() if v.ndim == 2 and v.shape[1] == known.net.feature_size)
        members = joined([truth.members(c, self.images) for c in observed.clients])
        others = joined([truth.held_out(c, self.images) for c in observed.clients])
        one, two = (-self._distance(known, images, samples) for images in (members, others))
        return [
            Finding(
                attack=self.name,
                plays=self.plays,
                saw="the generator's weights in the final model",
                real=True,
                scores=membership_scores(one.numpy(), two.numpy()),
                words=f"{len(one)} training images against {len(two)} held-out ones; {self.samples} samples.",
            )
        ]

    def _distance(self, known: Known, images: Batch, samples: Tensor) -> Tensor:
        with torch.no_grad():
            features = torch.cat([known.net.features(part) for part in torch.split(images.x, 64)])
        nearest: Tensor = torch.cdist(features.double(), samples.double()).min(1).values
        return nearest
