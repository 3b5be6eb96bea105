"""A client's update: how far its steps moved what it received. For methods whose server does more than average.

Only what clients load, train and send has an update. Running statistics and what clients keep as their own are not a
sum of steps from the server's state: a server that scales or accumulates them would make variances negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from unseen.core.types import Reply, Server, Share, Tensors


def stepped_state(module: nn.Module, share: Share) -> frozenset[str]:
    """The names of the state that clients load, train and send."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return frozenset(trained) & share.up & share.down


def split(server: Server, reply: Reply) -> tuple[Tensors, Tensors]:
    """A reply as its update, in float64, and the rest of its state, which is averaged as ever."""
    assert server.stepped is not None, "whoever makes the server says which of its state has updates"
    update = {
        key: value.double() - server.state[key].double() for key, value in reply.state.items() if key in server.stepped
    }
    return update, {key: value for key, value in reply.state.items() if key not in update}


def advanced(server: Server, move: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> Tensors:
    """The server's state after a move, in its own dtypes, with the rest as it was averaged."""
    new = {key: (server.state[key].double() + step).to(server.state[key].dtype) for key, step in move.items()}
    return {**server.state, **rest, **new}


def dot(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> Tensor:
    """The inner product of two updates, over all tensors."""
    return torch.stack([(one[key] * two[key]).sum() for key in one]).sum()


def by_coordinate(states: Sequence[Mapping[str, Tensor]], rule: Callable[[Tensor], Tensor]) -> Tensors:
    """One state out of several, each number by itself: `rule` gets the sorted numbers, clients x shape, in float64.

    Of integers (BatchNorm's count of batches) the middle one is taken: no single client can set it.
    """
    merged: Tensors = {}
    for key, like in states[0].items():
        values = torch.stack([state[key] for state in states]).sort(dim=0).values
        if like.is_floating_point():
            merged[key] = rule(values.double()).to(like.dtype)
        else:
            merged[key] = values[(len(states) - 1) // 2].clone()
    return merged
