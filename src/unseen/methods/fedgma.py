"""FedGMA: gradient masked averaging: the mean update counts in full only where the clients agree on its sign.

Tenison, Sreeramadas, Mugunthan, Oyallon, Rish, Belilovsky: Gradient Masked Averaging for Federated Learning. TMLR 2023
(first as a preprint, 2022).

The method: clients train as in FedAvg. For each weight the agreement is A = |mean over clients of the sign of their
update|. The mask is 1 where A >= tau, and A elsewhere. The server adds its rate times the mask times the mean update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unseen.core.tensors import RunningMean
from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import advanced, split
from unseen.method import Method, Range, Weigh


@dataclass(frozen=True)
class FedGMA(Method):
    name: ClassVar[str] = "fedgma"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "servers"
    ranges: ClassVar[Mapping[str, Range]] = {"tau": Range(0.1, 1.0, log=False), "rate": Range(0.3, 3.0)}

    tau: float = 0.4  # agreement from which on the mean update counts in full
    mask: Literal["soft", "hard"] = "soft"  # below tau: the agreement itself, or 0 as in the AND-mask
    rate: float = 1.0  # learning rate of the server

    def masked(self, agreement: Tensor) -> Tensor:
        """The mask, from the mean of the clients' signs."""
        size = agreement.abs()
        below = size if self.mask == "soft" else torch.zeros_like(size)
        return torch.where(size >= self.tau, torch.ones_like(size), below)

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        updates, signs, others = RunningMean(), RunningMean(), RunningMean()
        for reply in replies:
            update, rest = split(server, reply)
            updates.add(update, weigh(reply))
            signs.add({key: value.sign() for key, value in update.items()}, 1.0)  # every client has one voice
            others.add(rest, weigh(reply))
        agreement = signs.result()
        move = {key: self.rate * self.masked(agreement[key]) * mean for key, mean in updates.result().items()}
        return advanced(server, move, others.result())
