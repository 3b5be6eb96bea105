"""FedOpt: the mean update is a gradient, and the server goes down it by an optimizer of its own.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021. FedAvgM: Hsu,
Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.

The method: clients train as in FedAvg; d is the mean of their updates. FedAvgM: m <- beta m + d, x <- x + rate * m. The
adaptive ones: m <- beta1 m + (1 - beta1) d, x <- x + rate * m / (sqrt(v) + tau), with v from tau^2 on and
    FedAdagrad  v <- v + d^2
    FedAdam     v <- beta2 v + (1 - beta2) d^2
    FedYogi     v <- v - (1 - beta2) d^2 sign(v - d^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.core.tensors import RunningMean
from unseen.core.types import Memory, Reply, Server, Tensors
from unseen.core.updates import advanced, split
from unseen.method import Method, Range, Traits, Weigh


@dataclass(frozen=True)
class ServerOptimizer(Method):
    """What the four share: the mean update goes through `move`."""

    traits: ClassVar[Traits] = Traits(averages=True)

    def move(self, memory: Memory, key: str, update: Tensor) -> Tensor:
        """How far a tensor goes, by its mean update and what the server remembers of it."""
        raise NotImplementedError

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        updates, others = RunningMean(), RunningMean()
        for reply in replies:
            update, rest = split(server, reply)
            updates.add(update, weigh(reply))
            others.add(rest, weigh(reply))
        moves = {key: self.move(server.memory, key, update) for key, update in updates.result().items()}
        return advanced(server, moves, others.result())


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """FedAvgM: the server goes along the mean update with momentum."""

    name: ClassVar[str] = "fedavgm"
    year: ClassVar[int] = 2019
    family: ClassVar[str] = "servers"
    ranges: ClassVar[Mapping[str, Range]] = {"momentum": Range(0.3, 0.95, log=False), "rate": Range(0.03, 1.0)}

    momentum: float = 0.9  # beta: how much of its last move the server goes again
    rate: float = 0.3  # learning rate of the server; with momentum it goes rate / (1 - momentum) as far in the end

    def move(self, memory: Memory, key: str, update: Tensor) -> Tensor:
        speed = self.momentum * memory.get(f"m/{key}", torch.zeros(())).double() + update
        memory[f"m/{key}"] = speed.float()
        return self.rate * speed


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """What FedAdagrad, FedAdam and FedYogi share: each weight has a rate of its own."""

    ranges: ClassVar[Mapping[str, Range]] = {"rate": Range(0.001, 1.0), "tau": Range(1e-4, 0.1)}

    rate: float = 0.01  # eta, learning rate of the server
    beta1: float = 0.9  # of the mean of updates
    beta2: float = 0.99  # of the mean of their squares; FedAdagrad, which sums them, has no use for it
    tau: float = 0.001  # added to the root of the mean square; the smaller, the more alike all weights move

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v, with one more squared update."""
        raise NotImplementedError

    def move(self, memory: Memory, key: str, update: Tensor) -> Tensor:
        m = self.beta1 * memory.get(f"m/{key}", torch.zeros(())).double() + (1 - self.beta1) * update
        v = self.second(memory.get(f"v/{key}", torch.full((), self.tau**2)).double(), update.square())
        memory[f"m/{key}"], memory[f"v/{key}"] = m.float(), v.float()
        return self.rate * m / (v.sqrt() + self.tau)


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAdagrad: the server goes along the mean update by Adagrad."""

    name: ClassVar[str] = "fedadagrad"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "servers"

    beta1: float = 0.0  # of the mean of updates; 0, as Adagrad has no momentum

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """FedAdam: the server goes along the mean update by Adam."""

    name: ClassVar[str] = "fedadam"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "servers"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(Adaptive):
    """FedYogi: the server goes along the mean update by Yogi, whose rates change more slowly than Adam's."""

    name: ClassVar[str] = "fedyogi"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "servers"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
