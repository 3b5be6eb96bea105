"""gPerXAN: personalised, explicitly assembled normalisation with a guiding regulariser.

Le, Ho, Do, Le-Phuoc, Wong: Efficiently Assemble Normalization Layers and Regularization for Federated Domain
Generalization. CVPR 2024.

The method: each BatchNorm of the first stages becomes XAN, w_in * IN(h) + w_bn * BN(h) with two scalars per layer; BN
starts from the weights that were there, IN from 1 and 0, and both weigh a half. A client keeps its own BN branch and
loads the rest; the server averages all of it, weighted by images, for the unseen domain. Locally: cross-entropy of the
own head, plus `guidance` times that of the received, frozen head on the same features.

The default is the authors' code. `variant=gentle` is a softer start of ours, for pretrained nets and few rounds: IN
starts from BN's weights, with a small w_in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.errors import UserError
from unseen.core.types import Batch, Share, Work
from unseen.method import ALL_LOADED, BY_VARIANT, Method, Traits
from unseen.nets.net import Net
from unseen.nets.norms.layers import XAN
from unseen.nets.parts.heads import logits_under
from unseen.nets.surgery import swap_norms


@dataclass(frozen=True)
class GPerXAN(Method):
    name: ClassVar[str] = "gperxan"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "normalisation"
    traits: ClassVar[Traits] = Traits(norms="XAN", without=frozenset({ALL_LOADED}))
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "official": {"start": 0.5, "affine": "one", "mixing": "softmax", "local_weight": True, "local_plain_bn": False},
        "paper": {"start": "drawn", "affine": "one", "mixing": "free", "local_weight": False, "local_plain_bn": True},
        "gentle": {"start": 0.1, "affine": "bn", "mixing": "softmax", "local_weight": True, "local_plain_bn": False},
    }

    stages: int = 4  # stages whose norms are replaced: 4 (all) on PACS, 2 on Office-Home, 1 on Camelyon17's DenseNet
    guidance: float = 0.5  # lambda, the weight of the received head's cross-entropy; searched in 0, 0.25, ..., 1
    variant: Literal["official", "paper", "gentle"] = "official"  # sets the five below: code, text, ours
    start: float | Literal["drawn"] = BY_VARIANT  # w_in of an untrained XAN, w_bn is 1 - w_in; or both drawn
    affine: Literal["one", "bn"] = BY_VARIANT  # IN starts at 1 and 0, or as the trained BN
    mixing: Literal["softmax", "free"] = BY_VARIANT  # of w_in, w_bn
    local_weight: bool = BY_VARIANT  # clients keep their own w_bn
    local_plain_bn: bool = BY_VARIANT  # clients keep BatchNorm that was not replaced

    @property
    def about(self) -> Traits:
        """Neither the paper nor its code begins at another mixture, or with IN's affine map as BN's."""
        theirs = self.affine == "one" and self.start in (0.5, "drawn")
        return self.traits if theirs else replace(self.traits, remark="softer start, ours")

    def build(self, net: Net) -> Net:
        w_in = None if self.start == "drawn" else self.start
        if w_in is not None and not 0 < w_in < 1:
            raise UserError(f"gperxan: start is {w_in}; w_in starts between 0 and 1, without the ends, or is drawn.")
        return swap_norms(net, lambda norm: XAN(norm, self.mixing, self.affine, w_in), self.stages)

    def share(self, net: Net) -> Share:
        branch, weight = net.state_of(XAN, part="bn"), net.state_of(XAN, part="bn.score")
        own = branch if self.local_weight else branch - weight
        if self.local_plain_bn:
            own |= net.state_of(_BatchNorm) - branch
        return net.share_all().keeping(own)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        if self.guidance == 0:
            return features.new_zeros(())
        return self.guidance * cross_entropy(logits_under(work.net, work.received, features), batch.y)
