"""RSC: the features that matter most are muted, so that the network must find others.

Huang, Wang, Xing, Huang: Self-Challenging Improves Cross-Domain Generalization. ECCV 2020.

The method: for each image, the gradient of its true class's logit with respect to the features; the third of the features
with the largest gradient is muted, in the third of the batch whose chance of the true class falls most by it. A client
minimises cross-entropy on what is left. Nothing happens at test. The rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.types import Batch, Work
from unseen.method import Method, Range


@dataclass(frozen=True)
class RSC(Method):
    name: ClassVar[str] = "rsc"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "augmentation"
    ranges: ClassVar[Mapping[str, Range]] = {"features": Range(0.05, 0.5), "batch": Range(0.05, 0.5)}

    features: float = 1 / 3  # part of the features that is muted
    batch: float = 1 / 3  # part of the batch in which they are

    def loss(self, work: Work, batch: Batch) -> Tensor:
        z = work.net.features(batch.x)
        kept = self.mask(work.net.head, z.detach(), batch.y)
        work.note("kept", kept.float().mean())
        return F.cross_entropy(work.net.head(z * kept), batch.y) + work.method.penalty(work, batch, z)

    def mask(self, head: nn.Module, z: Tensor, labels: Tensor) -> Tensor:
        """True where a feature is kept, B x D."""
        with torch.enable_grad():
            probe = z.clone().requires_grad_()
            logits = head(probe)
            (gradient,) = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), probe)
        low = gradient < torch.quantile(gradient, 1 - self.features, dim=1, keepdim=True)
        with torch.no_grad():
            before, after = logits.softmax(1), head(z * low).softmax(1)
            fall = (before - after).gather(1, labels[:, None])
            spared = fall < torch.quantile(fall, 1 - self.batch)
        kept: Tensor = low | spared
        return kept
