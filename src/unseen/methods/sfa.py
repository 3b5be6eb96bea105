"""SFA: noise on the last features, z * alpha + beta.

Li, Li, Li, Gong, Fu, Hospedales: A Simple Feature Augmentation for Domain Generalization. ICCV 2021.

The method: in training the head reads z * alpha + beta, alpha ~ N(1, scale^2) and beta ~ N(0, shift^2) for every number of
every image. With `covariance`, beta of an image of class c is drawn from N(0, S_c), S_c the covariance of the class's
features, estimated from batch to batch; it stays on the client. Nothing happens at test. The rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Work
from unseen.method import Method, Range
from unseen.nets.parts.probabilistic import joined

RIDGE = 1e-5  # on the diagonal of a covariance of fewer images than dimensions, which has no Cholesky factor


@dataclass(frozen=True)
class SFA(Method):
    name: ClassVar[str] = "sfa"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "augmentation"
    ranges: ClassVar[Mapping[str, Range]] = {"scale": Range(0.05, 1.0), "shift": Range(0.05, 1.0)}

    scale: float = 0.5  # standard deviation of alpha
    shift: float = 0.5  # standard deviation of beta; with covariance: its factor on the class's covariance
    covariance: bool = False  # beta by the covariance of the image's class (the adaptive variant)

    def loss(self, work: Work, batch: Batch) -> Tensor:
        z = work.net.features(batch.x)
        alpha = 1 + self.scale * torch.randn(z.shape, generator=work.rng)
        beta = torch.randn(z.shape, generator=work.rng)
        if self.covariance:
            beta = self._along_class(work, z.detach().float().cpu(), batch.y.cpu(), beta)
        noisy = z * alpha.to(z) + (self.shift * beta).to(z)
        return F.cross_entropy(work.net.head(noisy), batch.y) + work.method.penalty(work, batch, z)

    def _along_class(self, work: Work, z: Tensor, labels: Tensor, drawn: Tensor) -> Tensor:
        """Standard normal draws turned into draws from N(0, S_c); S_c is brought up to date first."""
        beta, size = torch.zeros_like(drawn), z.shape[1]
        for label in sorted(set(labels.tolist())):
            rows = labels == label
            count = work.memory.get(f"{label}/count", torch.zeros(()))
            mean = work.memory.get(f"{label}/mean", torch.zeros(size))
            spread = work.memory.get(f"{label}/covariance", torch.zeros(size, size))
            count, mean, spread = joined(count, mean, spread, z[rows])
            work.memory.update({f"{label}/count": count, f"{label}/mean": mean, f"{label}/covariance": spread})
            beta[rows] = drawn[rows] @ torch.linalg.cholesky(spread + RIDGE * torch.eye(size)).T
        return beta
