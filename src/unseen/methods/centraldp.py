"""CentralDP: differential privacy against everybody but the coordinator, who clips the updates and adds the noise.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018 (DP-FedAvg, with a
fixed set of clients, each with the same weight).

The method: the server shortens each client's change of the model to the norm C where it is longer, takes the plain mean over
the n clients, and adds N(0, (2 C z / n)^2) to every number: one site's images as a whole move the mean by 2 C / n at most.
The rest is FedAvg. The coordinator sees the updates as they are and must be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from unseen.core.errors import UserError
from unseen.core.seeding import private_generator
from unseen.core.tensors import RunningMean
from unseen.core.types import Reply, Server, Tensors
from unseen.method import Method, Traits, Weigh
from unseen.nets.parts.clipping import change_of, clipped, moved


@dataclass(frozen=True)
class CentralDP(Method):
    name: ClassVar[str] = "centraldp"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "privacy"
    # A client that weighs more moves the mean farther: all weigh the same.
    traits: ClassVar[Traits] = Traits(counts_images=False, ignores=frozenset({"weigh"}))

    clip: float = 1.0  # C, the largest norm of a client's change
    noise: float = 1.0  # z, the noise in multiples of the sensitivity 2 C / n; 0: clipping alone, which is no privacy
    delta: float = 1e-5  # for which epsilon is told

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.clip > 0 and self.noise >= 0 and 0 < self.delta < 1):
            raise UserError("centraldp needs clip > 0, noise >= 0 and 0 < delta < 1.")

    @property
    def about(self) -> Traits:
        words = f"central noise {self.noise:g}" if self.noise else "clipping alone"
        return replace(self.traits, noise=self.noise, delta=self.delta if self.noise else None, remark=words)

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        mean, count, sent = RunningMean(), 0, list[str]()
        for reply in replies:
            sent = sorted(reply.state)
            mean.add(clipped(change_of(server.state, reply.state, sent), self.clip), 1.0)
            count += 1
        change = mean.result()
        if self.noise > 0:
            rng = private_generator(server.seed, round=server.round + 1, purpose="central noise")
            spread = 2 * self.clip * self.noise / count
            change = {
                name: value + spread * torch.randn(value.shape, generator=rng, dtype=value.dtype)
                for name, value in change.items()
            }
        return {**server.state, **moved(server.state, change, sent)}
