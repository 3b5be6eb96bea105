"""guide: the guiding regulariser of gPerXAN alone, to be put on any method (`fedavg+guide`, `mixstyle+guide`).

Le, Ho, Do, Le-Phuoc, Wong: Efficiently Assemble Normalization Layers and Regularization for Federated Domain
Generalization. CVPR 2024, Section 3.2.

The method: beside its own head a client puts the head it received, frozen, on the same features, and adds `guidance` times
that head's cross-entropy. Only the features can lower it, so all clients are drawn to features that one classifier can
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from unseen.core.types import Batch, Work
from unseen.method import OWN_HEAD, Method, Range, Traits
from unseen.nets.parts.heads import logits_under


@dataclass(frozen=True)
class Guide(Method):
    name: ClassVar[str] = "guide"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "heads"
    traits: ClassVar[Traits] = Traits(needs=frozenset({OWN_HEAD}))
    ranges: ClassVar[Mapping[str, Range]] = {"guidance": Range(0.05, 1.0)}

    guidance: float = 0.5  # lambda, the weight of the received head's cross-entropy; the paper searches 0, 0.25, ..., 1

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        return self.guidance * cross_entropy(logits_under(work.net, work.received, features), batch.y)
