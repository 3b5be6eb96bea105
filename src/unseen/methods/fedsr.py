"""FedSR: simple representations: features are Gaussians with small norm, close to one Gaussian per class.

Nguyen, Torr, Lim: FedSR: A Simple and Effective Domain Generalization Method for Federated Learning. NeurIPS 2022.

The method: the feature of an image is z ~ N(mu(x), sigma(x)^2). A client minimises cross-entropy of one sample z, plus
`norm` times ||z||, plus `divergence` times KL(N(mu, sigma^2) || r_y), with r_y a trainable Gaussian per class: an upper
bound of what z tells about x beyond y. Plain mean over clients. A prediction is the mean softmax over samples of z.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.types import Batch, Share, Work
from unseen.method import ALONE, LINEAR_HEAD, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.probabilistic import ClassGaussians, GaussianHead, draw, gaussian


@dataclass(frozen=True)
class FedSR(Method):
    name: ClassVar[str] = "fedsr"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "features"
    traits: ClassVar[Traits] = Traits(
        counts_images=False,  # as in the authors' code
        head="one on Gaussians",
        without=frozenset({ALONE, LINEAR_HEAD}),
    )

    norm: float = 0.01  # weight of ||z|| (L2R)
    ranges: ClassVar[Mapping[str, Range]] = {"norm": Range(1e-4, 0.1), "divergence": Range(1e-5, 0.01)}
    divergence: float = 5e-4  # weight of KL(z || r_y) (CMI)
    size: int = 512  # of z; the authors take the backbone's feature size
    samples: int = 20  # of z in a prediction, the same for every image; 0: the mean of z instead
    share_reference: bool = False  # also average r_y and its scale, which the authors' code leaves on the clients

    def build(self, net: Net) -> Net:
        net.neck = nn.Sequential(net.neck, nn.Linear(net.feature_size, 2 * self.size))
        net.feature_size = 2 * self.size
        net.head = GaussianHead(self.size, net.classes, self.samples)
        if self.divergence:
            net.extras["reference"] = ClassGaussians(net.classes, self.size)
        return net

    def share(self, net: Net) -> Share:
        share = net.share_all()
        return share if self.share_reference else share.private(net.state_of(ClassGaussians))

    def loss(self, work: Work, batch: Batch) -> Tensor:
        features = work.net.features(batch.x)
        mean, deviation = gaussian(features)
        z = draw(mean, deviation)
        loss: Tensor = F.cross_entropy(cast(GaussianHead, work.net.head).logits(z), batch.y)
        loss = loss + self.norm * torch.linalg.vector_norm(z, dim=1).mean()
        if self.divergence:
            reference = cast(ClassGaussians, work.net.extras["reference"])
            loss = loss + self.divergence * reference.divergence(mean, deviation, batch.y).mean()
        return loss + work.method.penalty(work, batch, features)
