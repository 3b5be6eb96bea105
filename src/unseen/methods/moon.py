"""MOON: a contrastive term pulls local features to the global model's and away from the previous local model's.

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021.

The method: like FedAvg, with a projection head of two layers in front of the classifier. A client adds to cross-entropy
`mu` times -log(e^(s_G/tau) / (e^(s_G/tau) + e^(s_prev/tau))), with s_G and s_prev the cosines between an image's
projected feature and those of the received model and of the model this client sent last; both are frozen. A client's
first round has no such term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.forms import Asked, Forms
from unseen.core.tensors import prefixed, snapshot, unprefixed
from unseen.core.types import Batch, Tensors, Work
from unseen.method import ALONE, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.frozen import frozen_features


def contrast(features: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """-log of the received model's share in the two similarities, mean over the batch."""
    similarities = [F.cosine_similarity(features, other) for other in (received, previous)]
    logits = torch.stack(similarities, dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


@dataclass(frozen=True)
class Moon(Method):
    name: ClassVar[str] = "moon"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "averaging"
    passes: ClassVar[float] = 1.67
    traits: ClassVar[Traits] = Traits(head="one on projected features", without=frozenset({ALONE}))
    ranges: ClassVar[Mapping[str, Range]] = {"mu": Range(0.01, 5.0)}

    mu: float = 1.0  # weight of the contrastive term: 1 in the authors' code, 5 in its CIFAR-10 example
    temperature: float = 0.5  # tau
    projection: int = 256  # size of the projected features, which the classifier reads; 0: without the projection head

    @property
    def about(self) -> Traits:
        return self.traits if self.projection else replace(self.traits, head="", without=frozenset())

    def build(self, net: Net) -> Net:
        if self.projection:
            size = net.feature_size
            net.neck = nn.Sequential(net.neck, nn.Linear(size, size), nn.ReLU(), nn.Linear(size, self.projection))
            net.feature_size = self.projection
            net.head = nn.Linear(self.projection, net.classes)
        return net

    def prepare(self, work: Work) -> None:
        previous = unprefixed("previous/", work.memory)
        if previous:
            # The net holds what it received, with what this client keeps as its own.
            received = snapshot(work.net, self._extractor_keys(work.net))
            for name, tensors in (("received", received), ("previous", previous)):
                work.scratch[f"moon.{name}"] = {key: value.to(work.device) for key, value in tensors.items()}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        if "moon.previous" not in work.scratch:
            return features.new_zeros(())
        received, previous = (
            frozen_features(work.net, cast(Tensors, work.scratch[f"moon.{name}"]), batch.x)
            for name in ("received", "previous")
        )
        term = contrast(features, received, previous, self.temperature)
        work.note("loss.contrast", term)
        return self.mu * term

    def report(self, work: Work) -> Tensors:
        work.memory.update(prefixed("previous/", snapshot(work.net, self._extractor_keys(work.net))))
        return {}

    def forms(self, asked: Asked) -> Forms:
        return Forms()  # `report` only keeps something

    @staticmethod
    def _extractor_keys(net: Net) -> list[str]:
        """The state that features depend on: all but the head and side networks."""
        parts = {"backbone": net.backbone, "inserted": net.inserted, "neck": net.neck}
        return [f"{name}.{key}" for name, part in parts.items() for key in part.state_dict()]
