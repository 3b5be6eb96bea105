"""JiGen: the network also solves jigsaw puzzles of its images.

Carlucci, D'Innocente, Bucci, Caputo, Tommasi: Domain Generalization by Solving Jigsaw Puzzles. CVPR 2019.

The method: an image is left whole with probability `whole`; else its 3 x 3 tiles are put into one of 30 fixed orders,
drawn with equal chance (or stay, as a 31st). A second head on the features tells which order it was. A client minimises
cross-entropy of the classes plus `weight` times cross-entropy of the orders. The second head is shared and averaged
like all weights; it is not used at test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.types import Batch, Work
from unseen.method import ALONE, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.images import distant_permutations, rearranged

GRID = 3


@dataclass(frozen=True)
class JiGen(Method):
    name: ClassVar[str] = "jigen"
    year: ClassVar[int] = 2019
    family: ClassVar[str] = "augmentation"
    traits: ClassVar[Traits] = Traits(without=frozenset({ALONE}))
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.05, 2.0), "whole": Range(0.3, 0.95, log=False)}

    weight: float = 0.7  # of the puzzles' cross-entropy
    whole: float = 0.9  # chance that an image stays whole (bias_whole_image of the code)
    orders: int = 30  # ways of putting the tiles, beside the right one
    classify_shuffled: bool = True  # the class of a shuffled image counts too; off: classify_only_sane of the code

    def build(self, net: Net) -> Net:
        net.extras["jigsaw"] = nn.Linear(net.feature_size, self.orders + 1)
        return net

    def loss(self, work: Work, batch: Batch) -> Tensor:
        order = torch.randint(self.orders + 1, (len(batch),), generator=work.rng)
        order[torch.rand(len(batch), generator=work.rng) < self.whole] = 0
        moved = torch.nonzero(order)[:, 0]
        x = batch.x.clone()
        if len(moved):
            tiles = torch.from_numpy(distant_permutations(self.orders, GRID * GRID))[order[moved] - 1]
            x[moved.to(x.device)] = rearranged(batch.x[moved.to(x.device)], tiles, GRID)
        features = work.net.features(x)
        order = order.to(x.device)
        puzzle = F.cross_entropy(work.net.extras["jigsaw"](features), order)
        work.note("loss.jigsaw", puzzle)
        losses = F.cross_entropy(work.net.head(features), batch.y, reduction="none")
        counted = torch.ones_like(order) if self.classify_shuffled else (order == 0).long()
        loss = (losses * counted).sum() / counted.sum().clamp_min(1) + self.weight * puzzle
        return loss + work.method.penalty(work, replace(batch, x=x), features)
