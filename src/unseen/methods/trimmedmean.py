"""Trimmed mean: of each weight the smallest and the largest are left out, and the others are averaged.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.

The method: clients train as in FedAvg; of every coordinate the share beta of the smallest and of the largest values over
the clients is removed, and the new coordinate is the mean of the rest. Up to that share of liars cannot move it beyond
what honest clients sent. All replies are held at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import by_coordinate
from unseen.method import Method, Traits, Weigh

ROUNDING = 1e-9  # 0.1 of 30 is 3


@dataclass(frozen=True)
class TrimmedMean(Method):
    name: ClassVar[str] = "trimmedmean"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "robust"
    traits: ClassVar[Traits] = Traits(ignores=frozenset({"weigh"}))  # a client has one voice, however many images

    trim: float = 0.2  # beta: part of the clients left out at each end, rounded up; one is always left

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.trim < 0.5:
            raise UserError(f"trimmedmean: trim is {self.trim}; give a number from 0 to below 0.5.")

    def inner_mean(self, values: Tensor) -> Tensor:
        """The mean of sorted values without their ends, along the first axis."""
        count = len(values)
        ends = min(math.ceil(self.trim * count - ROUNDING), (count - 1) // 2)
        return values[ends : count - ends].mean(0)

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        merged = by_coordinate([reply.state for reply in replies], self.inner_mean)
        return {**server.state, **merged}
