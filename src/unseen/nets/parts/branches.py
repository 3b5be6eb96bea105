"""Parts of the net that each client has its own of, side by side in one net: DSON's norms, COPA's heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.types import ClientId, Memory, Server, Tensors


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
        return [self.entries(row) for row, taken in zip(self.rows, self.taken.tolist(), strict=True) if taken]

    def entries(self, row: Tensor) -> Tensors:
        """A row as entries of a net's state."""
        parts = torch.split(row, [shape.numel() for shape in self.shapes])
        return {key: part.view(shape) for key, shape, part in zip(self.keys, self.shapes, parts, strict=True)}


def give_seats(memory: Memory, clients: Iterable[ClientId], room: int, field: str) -> None:
    """A row for each client that has none yet, remembered by the server. `field` is the method's, that makes room."""
    for client in clients:
        if client not in memory:
            memory[client] = torch.tensor(len(memory))
    if len(memory) > room:
        raise UserError(
            f"There is room for {room} clients with {field} of their own, but {len(memory)} or more take part: "
            f"add --set {field}=N with the number of clients."
        )


def put_at_seat(server: Server, client: ClientId, name: str, row: Tensor) -> None:
    """A client's row into the net's `Branches` in the server's state. The tensors there are replaced, not changed."""
    seat = int(server.memory[client])
    for key, value in ((f"extras.{name}.rows", row), (f"extras.{name}.taken", torch.ones(()))):
        server.state[key] = server.state[key].clone()
        server.state[key][seat] = value


def vote(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the voters' mean probabilities."""
    return torch.stack([each.float().log_softmax(1) for each in logits]).logsumexp(0) - math.log(len(logits))
