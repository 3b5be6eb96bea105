"""FedBN: every client keeps its own BatchNorm layers.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.

The method: like FedAvg, but a client never loads BatchNorm's weight, bias or running statistics. The unseen domain has no client
of its own, so the server averages them for the model that is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.types import Share
from unseen.method import ALL_LOADED, Method, Traits
from unseen.nets.net import Net


@dataclass(frozen=True)
class FedBN(Method):
    name: ClassVar[str] = "fedbn"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "normalisation"
    traits: ClassVar[Traits] = Traits(without=frozenset({ALL_LOADED}))

    def share(self, net: Net) -> Share:
        return net.share_all().keeping(net.state_of(_BatchNorm))
