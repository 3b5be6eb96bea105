"""SelfReg: images of one class are pulled together, pair by pair, without negative pairs.

Kim, Yoo, Park, Kim, Lee: SelfReg: Self-Supervised Contrastive Regularization for Domain Generalization. ICCV 2021.

The method: each image gets two partners of its class. With s its logits and t its features: the squared distance of s to
the first partner's logits and `features` times that of t to the first partner's projected features (a small network on
the features), and the same to a mixture of both partners, at a share lambda ~ Beta(.5, .5). Cross-entropy is joined by
lambda times the first pair of terms and 1 - lambda times the second, both scaled by min(cross-entropy, 1). The
projection is shared like all weights and not used at test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.types import Batch, Work
from unseen.method import ALONE, Method, Range, Traits
from unseen.nets.net import Net

LARGE = 2048  # features from which on the projection is not wider than they are


def projection(size: int) -> nn.Sequential:
    """Three layers, each with BatchNorm, back to the size of the features."""
    hidden = size if size >= LARGE else 2 * size
    layers: list[nn.Module] = []
    for inputs, outputs in ((size, hidden), (hidden, hidden), (hidden, size)):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def partners(labels: Tensor, rng: torch.Generator) -> Tensor:
    """A random row of the same class for each row, none twice: it may be the row itself."""
    labels = labels.cpu()
    shuffled = torch.randperm(len(labels), generator=rng)
    found = torch.empty_like(shuffled)
    found[labels.argsort(stable=True)] = shuffled[labels[shuffled].argsort(stable=True)]
    return found


@dataclass(frozen=True)
class SelfReg(Method):
    name: ClassVar[str] = "selfreg"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "features"
    traits: ClassVar[Traits] = Traits(without=frozenset({ALONE}))
    ranges: ClassVar[Mapping[str, Range]] = {"features": Range(0.03, 1.0)}

    features: float = 0.3  # weight of the terms on features beside those on logits
    mixup: bool = True  # also the terms to a mixture of two partners
    scaling: bool = True  # scale the terms by min(cross-entropy, 1)

    def build(self, net: Net) -> Net:
        net.extras["projection"] = projection(net.feature_size)
        return net

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net, labels = work.net, batch.y
        z = net.features(batch.x)
        logits, projected = net.head(z), net.extras["projection"](z)
        first, second = (partners(labels, work.rng).to(z.device) for _ in range(2))
        share = np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng))).beta(0.5, 0.5)

        def distance(to_logits: Tensor, to_projected: Tensor) -> Tensor:
            return F.mse_loss(logits, to_logits) + self.features * F.mse_loss(z, to_projected)

        terms = distance(logits[first], projected[first])
        if self.mixup:
            mixed = [share * t[first] + (1 - share) * t[second] for t in (logits, projected)]
            terms = share * terms + (1 - share) * distance(*mixed)
        loss: Tensor = F.cross_entropy(logits, labels)
        scale = loss.detach().clamp_max(1) if self.scaling else 1.0
        work.note("loss.pairs", terms)
        return loss + scale * terms + work.method.penalty(work, batch, z)
