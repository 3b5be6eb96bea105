"""gPerXAN: personalised, explicitly assembled normalisation with a guiding regulariser.

Le, Ho, Do, Le-Phuoc, Wong: Efficiently Assemble Normalization Layers and Regularization for Federated Domain
Generalization. CVPR 2024.

The box: each BatchNorm of the first stages becomes XAN, w_in * IN(h) + w_bn * BN(h) with two scalars per layer; IN
starts from 1 and 0, BN from the weights that were there. A client keeps its own BN branch and loads the rest; the
server averages all of it, weighted by images, for the unseen domain. Locally: cross-entropy of the own head, plus
`guidance` times that of the received, frozen head on the same features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.method import Method
from unseen.nets.heads import logits_under
from unseen.nets.net import Net
from unseen.nets.norms import XAN
from unseen.nets.swap import swap_norms
from unseen.types import Batch, Share, Work


@dataclass(frozen=True)
class GPerXAN(Method):
    name: ClassVar[str] = "gperxan"

    stages: int = 4  # stages whose norms are replaced: 4 (all) on PACS, 2 on Office-Home, 1 on Camelyon17's DenseNet
    guidance: float = 0.5  # lambda, the weight of the received head's cross-entropy; searched in 0, 0.25, ..., 1
    variant: Literal["official", "paper"] = "official"  # where text and published code differ: sets the three below
    mixing: Literal["softmax", "free"] | None = None  # of w_in, w_bn; None: official softmax, paper free
    local_weight: bool | None = None  # clients keep their own w_bn; None: official yes, paper no
    local_plain_bn: bool | None = None  # clients keep BatchNorm that was not replaced; None: official no, paper yes

    def build(self, net: Net) -> Net:
        mixing = self.mixing or ("softmax" if self.variant == "official" else "free")
        return swap_norms(net, lambda norm: XAN(norm, mixing), self.stages)

    def share(self, net: Net) -> Share:
        official = self.variant == "official"
        keep_weight = official if self.local_weight is None else self.local_weight
        keep_plain = not official if self.local_plain_bn is None else self.local_plain_bn
        branch, weight = net.state_of(XAN, part="bn"), net.state_of(XAN, part="bn.score")
        own = branch if keep_weight else branch - weight
        if keep_plain:
            own |= net.state_of(_BatchNorm) - branch
        return net.share_all().keeping(own)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        if self.guidance == 0:
            return features.new_zeros(())
        return self.guidance * cross_entropy(logits_under(work.net, work.received, features), batch.y)
