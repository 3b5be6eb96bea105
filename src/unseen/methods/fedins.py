"""FedIns: pools of scales and shifts in a frozen transformer, of which each image takes those that suit it.

Feng, Yu, Liu, Xu, Khan, Zuo: Towards Instance-adaptive Inference for Federated Learning. ICCV 2023. Scales and shifts: Lian,
Zhou, Feng, Wang: Scaling & Shifting Your Features. NeurIPS 2022.

The method: the transformer is frozen. After each of its norms and linear maps stands a pool of N scales and shifts; there are
N heads and N keys. The frozen transformer's features of an image are its query. It takes the k entries whose keys are
nearest by cosine, and the mean of their scales, shifts and heads. The loss is
(1 - weight) * CE + weight * (1 - sum of the k cosines). Pools, heads and keys are averaged over clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Share, Work
from unseen.method import BATCH_NORM, LINEAR_HEAD, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.pools import Keys, add_pools
from unseen.nets.parts.towers import freeze, share_trained


@dataclass(frozen=True)
class FedIns(Method):
    name: ClassVar[str] = "fedins"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "adapters"
    passes: ClassVar[float] = 1.0  # the query without backward, the other without gradients of the tower's weights
    traits: ClassVar[Traits] = Traits(
        counts_images=False, head="a pool of heads", without=frozenset({LINEAR_HEAD, BATCH_NORM})
    )
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.01, 0.5)}

    pool: int = 25  # N, entries of each pool
    take: int = 3  # k, entries that an image takes
    weight: float = 0.1  # of the pull of keys to the images that take them

    def build(self, net: Net) -> Net:
        return add_pools(freeze(net, self.name), self.pool, self.take)

    def share(self, net: Net) -> Share:
        return share_trained(net)

    def adapted(self, net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features and logits of images with the entries that they take, and how near the keys of these are."""
        keys = cast(Keys, net.extras["pool_keys"])
        with torch.no_grad():
            queries = net.features(x)  # without scales and shifts: the frozen transformer's
        rows, near = keys.choose(queries)
        with keys.taking(rows):
            features = net.features(x)
            return features, net.head(features), near

    def loss(self, work: Work, batch: Batch) -> Tensor:
        features, logits, near = self.adapted(work.net, batch.x)
        pull = 1 - near.mean()
        work.note("loss.keys", pull)
        total = (1 - self.weight) * F.cross_entropy(logits, batch.y) + self.weight * pull
        return total + work.method.penalty(work, batch, features)

    def predict(self, net: Net, x: Tensor) -> Tensor:
        return self.adapted(net, x)[1]
