"""DSON: every client has normalisation layers of its own, and all of them vote on the unseen domain.

Seo, Suh, Kim, Kim, Han, Han: Learning to Optimize Domain Specific Normalization for Domain Generalization. ECCV 2020.

The method: each BatchNorm normalises by a learned mix of instance and batch statistics. Mix, affine map and running
statistics form a branch, one per source domain; convolutions and the head are common. At test an image runs through
every branch and the predictions are averaged. In the federation a client is a domain: it keeps its branch, trains it
with the common weights, and sends it to the server beside them; the server averages the common weights and puts the
branches side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import ClientId, Reply, Server, Share, Tensors, Work
from unseen.method import Method, Traits
from unseen.nets.net import Net
from unseen.nets.norms import layers as norms
from unseen.nets.parts.branches import Branches, give_seats, put_at_seat, vote
from unseen.nets.surgery import swap_norms


@dataclass(frozen=True)
class DSON(Method):
    name: ClassVar[str] = "dson"
    year: ClassVar[int] = 2020
    family: ClassVar[str] = "normalisation"
    traits: ClassVar[Traits] = Traits(
        sends="each client's own normalisation layers, handed on to all clients", norms="DSON"
    )

    stages: int | None = None  # stages whose norms are replaced, None for all
    branches: int = 3  # room for this many clients; a client is a domain

    def build(self, net: Net) -> Net:
        swap_norms(net, norms.DSON.of, self.stages)
        state = net.state_dict()
        keys = [key for key in sorted(self._branch(net)) if state[key].is_floating_point()]
        net.extras["branches"] = Branches(state, keys, self.branches)
        return net

    def share(self, net: Net) -> Share:
        common = net.share_all().private(self._branch(net))
        # The server alone fills the room for branches: it comes down with every order and never goes up.
        return Share(common.up - net.state_of(Branches), common.down)

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        give_seats(server.memory, chosen, self.branches, "branches")
        return {}

    def prepare(self, work: Work) -> None:
        # While a client trains, its model is its own branch, also where it validates itself.
        self._room(work.net).taken.zero_()

    def report(self, work: Work) -> Tensors:
        return {"branch": self._room(work.net).flat(work.net.state_dict()).cpu()}

    def forms(self, asked: Asked) -> Forms:
        room, state, variances = self._room(asked.net), asked.net.state_dict(), asked.net.running_variances()
        floors = {key: torch.full_like(state[key], 0.0 if key in variances else -torch.inf) for key in room.keys}
        return Forms(report={"branch": Form((room.rows.shape[1],), least=room.flat(floors).cpu())})

    def hear(self, server: Server, reply: Reply) -> None:
        put_at_seat(server, reply.client, "branches", reply.report["branch"])

    def predict(self, net: Net, x: Tensor) -> Tensor:
        branches = self._room(net).each()
        if not branches:
            logits: Tensor = net(x)
            return logits
        return vote([functional_call(net, branch, (x,)) for branch in branches])

    def _branch(self, net: Net) -> frozenset[str]:
        return net.state_of(norms.DSON)

    def _room(self, net: Net) -> Branches:
        room = net.extras["branches"]
        assert isinstance(room, Branches)
        return room
