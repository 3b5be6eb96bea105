"""Krum: only replies that have near neighbours are merged; Multi-Krum keeps several.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NIPS
2017.

The method: of n replies at most f are liars. The score of a reply is the sum of the squared distances of its update to
its n - f - 2 nearest others. Krum keeps the reply with the smallest score; Multi-Krum keeps the m best, and they are
merged as ever. It leaves replies out before they are merged, so it goes with every merge. The paper's promise needs
n >= 2 f + 3. All replies are held at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import split
from unseen.method import Method


def squared_distances(updates: Sequence[Tensors]) -> Tensor:
    """Between all pairs, over all tensors: n x n."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for key in updates[0]:
        rows = torch.stack([update[key].reshape(-1) for update in updates])
        for number, row in enumerate(rows):
            total[number] += (rows - row).square().sum(1)
    return total


@dataclass(frozen=True)
class Krum(Method):
    name: ClassVar[str] = "krum"
    year: ClassVar[int] = 2017
    family: ClassVar[str] = "robust"

    liars: int = 1  # f: how many of a round's clients may lie
    kept: int = 1  # m: replies that are merged; 1 is Krum, more is Multi-Krum

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.liars < 0 or self.kept < 1:
            raise UserError("krum: liars is 0 or more, and kept is 1 or more.")

    def scores(self, updates: Sequence[Tensors]) -> Tensor:
        """The smaller, the nearer its neighbours. With few clients one neighbour still counts."""
        nearest = squared_distances(updates).sort(dim=1).values[:, 1:]  # the first is the reply itself
        return nearest[:, : max(1, len(updates) - self.liars - 2)].sum(1)

    def admit(self, server: Server, replies: Iterable[Reply]) -> Iterator[Reply]:
        held = list(replies)
        if len(held) <= self.kept:
            yield from held
            return
        best = self.scores([split(server, reply)[0] for reply in held]).argsort(stable=True)[: self.kept]
        yield from (held[row] for row in sorted(best.tolist()))  # in the clients' order, as all sums are
