"""Norm bound: an update that moves the model too far is made shorter before it is merged.

Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning? 2019. https://arxiv.org/abs/1911.07963

The method: an update d of a client becomes d / max(1, ||d|| / M). The bound M is a number, or here also `times` the median
norm of the round's updates, which needs no tuning and follows the training. It changes replies before they are merged,
so it goes with every merge: `fedavg+normbound`, `fedadam+normbound`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from unseen.core.errors import UserError
from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import dot, split
from unseen.method import Method


@dataclass(frozen=True)
class NormBound(Method):
    name: ClassVar[str] = "normbound"
    year: ClassVar[int] = 2019
    family: ClassVar[str] = "robust"

    bound: float = 0.0  # M, the largest norm of an update; 0: `times` the median norm of the round
    times: float = 1.0  # with no bound: how many times as long as the median update another may be

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound < 0 or self.times <= 0:
            raise UserError("normbound: bound is 0 or more, and times is above 0.")

    def admit(self, server: Server, replies: Iterable[Reply]) -> Iterator[Reply]:
        if self.bound:
            for reply in replies:  # one at a time: no other reply is needed
                yield shortened(server, reply, self.bound, None)
            return
        held = list(replies)
        lengths = [norms(server, reply) for reply in held]
        if not held:
            return
        update, rest = (self.times * median(column) for column in zip(*lengths, strict=True))
        for reply in held:
            yield shortened(server, reply, update, rest)


def norms(server: Server, reply: Reply) -> tuple[float, float]:
    """How far a reply moves what is trained, and how far the rest: running statistics, what clients keep as their own."""
    update, _ = split(server, reply)
    rest = _rest(server, reply)
    return float(dot(update, update).sqrt()) if update else 0.0, float(dot(rest, rest).sqrt()) if rest else 0.0


def shortened(server: Server, reply: Reply, update_bound: float, rest_bound: float | None) -> Reply:
    """The reply with its update no longer than the bound, and the rest too where that has one."""
    length, rest_length = norms(server, reply)
    update, _ = split(server, reply)
    new = dict(reply.state)
    for moves, norm, bound in ((update, length, update_bound), (_rest(server, reply), rest_length, rest_bound)):
        if bound is None or norm <= bound:
            continue  # to the bit as it came
        for key, move in moves.items():
            new[key] = (server.state[key].double() + bound / norm * move).to(new[key].dtype)
    return replace(reply, state=new)


def _rest(server: Server, reply: Reply) -> Tensors:
    _, rest = split(server, reply)
    return {
        key: value.double() - server.state[key].double() for key, value in rest.items() if value.is_floating_point()
    }
