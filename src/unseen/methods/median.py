"""Median: each weight of the new model is the median of the clients', not their mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.

The method: clients train as in FedAvg; every coordinate of the new model is the one-dimensional median of that coordinate
over the clients (of two middle ones, their mean). Fewer than half of the clients cannot move it beyond what honest ones
sent. All replies are held at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import by_coordinate
from unseen.method import Method, Traits, Weigh


def middle(values: Tensor) -> Tensor:
    """The median of sorted values, along the first axis."""
    count = len(values)
    return (values[(count - 1) // 2] + values[count // 2]) / 2


@dataclass(frozen=True)
class Median(Method):
    name: ClassVar[str] = "median"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "robust"
    traits: ClassVar[Traits] = Traits(ignores=frozenset({"weigh"}))  # a client has one voice, however many images

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        merged = by_coordinate([reply.state for reply in replies], middle)
        return {**server.state, **merged}
