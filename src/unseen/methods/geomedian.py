"""Geometric median (RFA): the new model is the point with the smallest sum of distances to the clients' models.

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 2022.

The method: the smoothed Weiszfeld algorithm, a few times: b_k = a_k / max(nu, ||v - w_k||), then v = sum b_k w_k / sum b_k,
with a_k the client's weight in the mean (its images). It begins with the weighted mean, our choice. Less than half of
the weight cannot carry it away. All replies are held at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from unseen.core.errors import UserError
from unseen.core.tensors import RunningMean
from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import advanced, dot, split
from unseen.method import Method, Weigh


@dataclass(frozen=True)
class GeoMedian(Method):
    name: ClassVar[str] = "geomedian"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "robust"

    steps: int = 8  # R, of Weiszfeld's algorithm
    smoothing: float = 1e-6  # nu: distances below it count as this

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or self.smoothing <= 0:
            raise UserError("geomedian: steps is 1 or more, and smoothing is above 0.")

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        held = list(replies)
        parts = [split(server, reply) for reply in held]
        images = [weigh(reply) for reply in held]
        weights = images
        for _ in range(self.steps):
            centre = mean([update for update, _ in parts], weights)
            weights = [
                own / max(self.smoothing, distance(update, centre))
                for own, (update, _) in zip(images, parts, strict=True)
            ]
        # The rest, running statistics, with the weights that the updates earned.
        return advanced(server, mean([u for u, _ in parts], weights), mean([rest for _, rest in parts], weights))


def mean(states: Iterable[Tensors], weights: Iterable[float]) -> Tensors:
    total = RunningMean()
    for state, weight in zip(states, weights, strict=True):
        total.add(state, weight)
    return total.result()


def distance(one: Tensors, two: Tensors) -> float:
    apart = {key: one[key] - two[key] for key in one}
    return float(dot(apart, apart).sqrt()) if apart else 0.0
