"""Weights of clients that a server learns: they are positive, sum to one, and new clients may join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from unseen.core.types import ClientId

LEAST = 1e-6  # a client at weight zero counts so little: a round of such clients alone must still have a mean


def number(value: float) -> Tensor:
    """A number as the server's memory holds it."""
    return torch.tensor(value, dtype=torch.float64)


def joined(known: Mapping[ClientId, float], chosen: Iterable[ClientId]) -> dict[ClientId, float]:
    """The weights with those of new clients, who get the mean; in one order, so that sums have the same bits always."""
    everyone = sorted({*known, *chosen})
    total = sum(known[client] for client in sorted(known))
    rest = len(known) / len(everyone) if everyone else 0.0
    return {c: known[c] / total * rest if c in known else 1 / len(everyone) for c in everyone}


def on_simplex(values: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """The nearest weights that are not negative and sum to one: all values are lowered alike, and cut off at zero."""
    ordered, lowered, total = sorted(values.values(), reverse=True), 0.0, 0.0
    for count, value in enumerate(ordered, 1):
        total += value
        if value > (total - 1) / count:
            lowered = (total - 1) / count
    return {client: max(value - lowered, 0.0) for client, value in values.items()}
