"""I-BN: in early blocks half of the channels are normalised by instance, the other half by batch.

Pan, Luo, Shi, Tang: Two at Once: Enhancing Learning and Generalization Capacities via IBN-Net. ECCV 2018 (IBN-a).

The method: in the first three stages, the first norm of every residual block splits its channels: the first half is
normalised by instance, the second by batch statistics. Shallow maps carry appearance, which instance statistics remove;
deep stages and shortcuts stay as they are. Everything is shared and averaged as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from unseen.method import Method, Traits
from unseen.nets.net import Net
from unseen.nets.norms import layers as norms
from unseen.nets.surgery import swap_norms


@dataclass(frozen=True)
class IBN(Method):
    name: ClassVar[str] = "ibn"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "normalisation"
    traits: ClassVar[Traits] = Traits(norms="I-BN")

    stages: int = 3  # stages with split norms, from the first; the paper leaves the last one alone
    placement: Literal["blocks", "all"] = "blocks"  # the first norm of each block, or every norm (as XAN)

    def build(self, net: Net) -> Net:
        # A norm is known by its weight: one that timm fused with its activation arrives as a plain copy of itself.
        first = {norm.weight for norm in first_norms(net)}

        def split(norm: nn.BatchNorm2d) -> nn.Module:
            return norms.IBN.of(norm) if self.placement == "all" or not first or norm.weight in first else norm

        return swap_norms(net, split, self.stages)


def first_norms(net: Net) -> list[nn.BatchNorm2d]:
    """The first norm of each block: of each module inside the backbone that itself runs two norms or more.

    Shortcuts and transitions are chains (nn.Sequential) with a norm, and stems belong to the backbone itself. A
    backbone of plain convolutions has no blocks.
    """
    blocks = [
        module
        for module in net.backbone.modules()
        if module is not net.backbone and not isinstance(module, nn.Sequential)
    ]
    held = [[child for child in block.children() if isinstance(child, nn.BatchNorm2d)] for block in blocks]
    return [norms[0] for norms in held if len(norms) >= 2]
