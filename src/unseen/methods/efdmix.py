"""EFDMix: images of a batch exchange the whole distribution of each channel's values, and not only its mean and width.

Zhang, Li, Li, Jia, Zhang: Exact Feature Distribution Matching for Arbitrary Style Transfer and Domain Generalization. CVPR
2022. It is also how clients train in FedSPL: Liang, Zhang, Cao, Li, Zheng: TTA-FedDG: Leveraging Test-Time Adaptation to
Address Federated Domain Generalization. AAAI 2025. What FedSPL does at test time is the inference rule `fedspl`.

The method: after some stages, with probability p per batch, the values of an image's channel are moved towards those of the
same rank in another image's: x + (1 - w) * (other's value of x's rank - x), with w from Beta(alpha, alpha). The gradient is
that of x and of the other's values. Nothing happens at test. The rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from unseen.method import Method, Range
from unseen.nets.net import Net
from unseen.nets.parts.styles import EFDMix as EFDMixModule
from unseen.nets.surgery import insert_after


@dataclass(frozen=True)
class EFDMix(Method):
    name: ClassVar[str] = "efdmix"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "styles"
    ranges: ClassVar[Mapping[str, Range]] = {"p": Range(0.2, 1.0, log=False), "alpha": Range(0.05, 1.0)}

    p: float = 0.5  # probability of mixing, per batch and stage
    alpha: float = 0.1  # of Beta(alpha, alpha): small values keep most of one of the two distributions
    stages: tuple[int, ...] = (0, 1)  # after which values are mixed, from 0 (ResNet's layer1)

    def build(self, net: Net) -> Net:
        return insert_after(net, self.stages, lambda: EFDMixModule(self.p, self.alpha))
