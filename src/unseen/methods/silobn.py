"""SiloBN: every client keeps its own BatchNorm statistics; weights and biases are shared.

Andreux, du Terrail, Beguier, Tramel: Siloed Federated Learning for Multi-centric Histopathology Datasets. DCL at MICCAI 2020.

The method: like FedAvg, but a client never loads BatchNorm's running mean and variance. The server averages them for the model
that is evaluated on the unseen domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unseen.core.types import Share
from unseen.method import ALL_LOADED, Method, Traits
from unseen.nets.net import Net


@dataclass(frozen=True)
class SiloBN(Method):
    name: ClassVar[str] = "silobn"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "normalisation"
    traits: ClassVar[Traits] = Traits(without=frozenset({ALL_LOADED}))

    def share(self, net: Net) -> Share:
        return net.share_all().keeping(net.running_statistics())
