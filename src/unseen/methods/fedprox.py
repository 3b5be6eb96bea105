"""FedProx: FedAvg with a proximal term that keeps local models near the received one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.

The method: each client minimises cross-entropy + mu/2 * ||w - w_G||^2, with w_G the model it received; the rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unseen.core.tensors import squared_distance
from unseen.core.types import Batch, Work
from unseen.method import Method, Range


@dataclass(frozen=True)
class FedProx(Method):
    name: ClassVar[str] = "fedprox"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "averaging"
    ranges: ClassVar[Mapping[str, Range]] = {"mu": Range(0.001, 1.0)}

    mu: float = 0.1  # weight of the proximal term; 0.1 in FedFD-A, Table 3 (a)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        return self.mu / 2 * squared_distance(work.net, work.received)
