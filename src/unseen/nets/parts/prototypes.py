"""Prototypes: the mean features of a class, at one client and over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Form
from unseen.core.tensors import unprefixed
from unseen.core.types import Batch, Memory, Tensors, Work
from unseen.nets.net import Net


def gather(work: Work, batch: Batch, features: Tensor) -> None:
    """Add a step's features to the sums of their classes, in the second half of a round. Call it in `penalty`.

    They are those that the loss is computed from. A pass in eval mode after the round would go by running statistics, and
    those lag behind: features in training would be pulled to where they never are.
    """
    if (work.step + 1) * 2 <= work.steps:
        return
    classes, size = work.net.classes, work.net.feature_size
    sums = cast(Tensor, work.scratch.get("sums", torch.zeros(classes, size, dtype=torch.float64)))
    counts = cast(Tensor, work.scratch.get("counts", torch.zeros(classes, dtype=torch.float64)))
    members = F.one_hot(batch.y, classes).double().cpu()
    rows = features.detach().double().cpu()
    # One class at a time: a matrix product's sums would be in an order that depends on the machine.
    work.scratch["sums"] = sums + torch.stack([(members[:, [k]] * rows).sum(0) for k in range(classes)])
    work.scratch["counts"] = counts + members.sum(0)


def own_prototypes(work: Work) -> Tensors:
    """A client's mean features of each class, and how many images they are of, from what was gathered."""
    sums, counts = cast(Tensor, work.scratch["sums"]), cast(Tensor, work.scratch["counts"])
    return {"means": (sums / counts.clamp_min(1)[:, None]).float(), "counts": counts.float()}


def prototype_forms(net: Net) -> dict[str, Form]:
    """What `own_prototypes` looks like."""
    return {"means": Form((net.classes, net.feature_size)), "counts": Form((net.classes,), least=0.0)}


def remember(memory: Memory, client: str, prototypes: Mapping[str, Tensor]) -> None:
    """The server keeps each client's latest."""
    memory[f"means/{client}"], memory[f"counts/{client}"] = prototypes["means"], prototypes["counts"]


def remembered(memory: Memory) -> tuple[Tensor, Tensor]:
    """All clients' prototypes, clients x classes x features, and counts, clients x classes; in the clients' order."""
    means, counts = unprefixed("means/", dict(memory)), unprefixed("counts/", dict(memory))
    order = sorted(means)
    return torch.stack([means[c] for c in order]).double(), torch.stack([counts[c] for c in order]).double()


def first_neighbours(rows: Tensor) -> list[list[int]]:
    """FINCH's first partition: rows that are each other's nearest by cosine, or have one in common, are one cluster.

    Sarfraz, Sharma, Stiefelhagen: Efficient Parameter-free Clustering Using First Neighbor Relations. CVPR 2019.
    """
    count = len(rows)
    if count < 2:
        return [list(range(count))] if count else []
    unit = F.normalize(rows, dim=1)
    nearest = []
    for number, row in enumerate(unit):  # one at a time: all pairs of all numbers at once would not fit for many rows
        likeness = (row * unit).sum(1)
        likeness[number] = -2.0
        nearest.append(int(likeness.argmax()))
    root = list(range(count))
    for row, other in enumerate(nearest):  # links, followed by giving all members one number
        old, new = root[row], root[other]
        root = [new if number == old else number for number in root]
    return [[row for row in range(count) if root[row] == number] for number in sorted(set(root))]


def last_partition(rows: Tensor) -> list[list[int]]:
    """FINCH's last partition: clusters of clusters, by their means, as long as more than one is left."""
    found = first_neighbours(rows)
    while len(found) > 2:
        means = torch.stack([rows[cluster].mean(0) for cluster in found])
        merged = [sorted(row for number in group for row in found[number]) for group in first_neighbours(means)]
        if len(merged) == 1:
            break
        found = merged
    return found


def stacked(rows: Sequence[Tensor], size: int) -> Tensor:
    """Rows as a matrix, also when there are none."""
    return torch.stack(list(rows)).float() if rows else torch.zeros(0, size)
