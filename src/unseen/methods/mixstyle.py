"""MixStyle: images of a batch exchange part of their style, the channel statistics of early maps.

Zhou, Yang, Qiao, Xiang: Domain Generalization with MixStyle. ICLR 2021.

The method: after some stages, with probability p per batch, each image's channel means and standard deviations are mixed
with those of another image of the batch, with a weight from Beta(alpha, alpha). No gradient flows through the
statistics. Nothing happens at test. In a federation each client mixes within its own batches; the rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from unseen.method import Method, Range
from unseen.nets.net import Net
from unseen.nets.parts.styles import MixStyle as MixStyleModule
from unseen.nets.surgery import insert_after


@dataclass(frozen=True)
class MixStyle(Method):
    name: ClassVar[str] = "mixstyle"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "styles"
    ranges: ClassVar[Mapping[str, Range]] = {"p": Range(0.2, 1.0, log=False), "alpha": Range(0.05, 1.0)}

    p: float = 0.5  # probability of mixing, per batch and stage
    alpha: float = 0.1  # of Beta(alpha, alpha): small values keep most of one of the two styles
    stages: tuple[int, ...] = (0, 1)  # after which styles are mixed, from 0 (ResNet's layer1); also used: 0,1,2

    def build(self, net: Net) -> Net:
        return insert_after(net, self.stages, lambda: MixStyleModule(self.p, self.alpha))
