"""The clients' branches side by side in one net, for DSON's ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from unseen.types import Tensors


class Branches(nn.Module):
    """Room for the branches of up to `room` clients: each a flat row of the same state entries. Not trained."""

    rows: Tensor
    taken: Tensor

    def __init__(self, like: Mapping[str, Tensor], keys: Sequence[str], room: int) -> None:
        super().__init__()
        self.keys = tuple(keys)
        self.shapes = tuple(like[key].shape for key in keys)
        self.register_buffer("rows", torch.zeros(room, sum(like[key].numel() for key in keys)))
        self.register_buffer("taken", torch.zeros(room, dtype=torch.int64))

    def flat(self, state: Mapping[str, Tensor]) -> Tensor:
        """The branch in a net's state, as one row."""
        return torch.cat([state[key].detach().reshape(-1) for key in self.keys])

    def each(self) -> list[Tensors]:
        """The branches that are there, each as entries of a net's state."""
        sizes = [shape.numel() for shape in self.shapes]
        return [
            {key: part.view(shape) for key, shape, part in zip(self.keys, self.shapes, row.split(sizes), strict=True)}
            for row, taken in zip(self.rows, self.taken.tolist(), strict=True)
            if taken
        ]
