"""COPA: one extractor, and a classifier for every domain; the others' classifiers, frozen, also train the extractor.

Wu, Gong: Collaborative Optimization and Aggregation for Decentralized Domain Generalization and Adaptation. ICCV 2021.

The method: the extractor has hybrid batch-instance normalisation; each client has a head of its own. A client minimises
the cross-entropy of its head plus that of the other clients' heads, which are frozen, on the same features. The server
averages the extractors and puts the heads side by side; they go down to all clients. A prediction is the mean of all
heads' probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unseen.core.forms import Asked, Form, Forms
from unseen.core.tensors import prefixed
from unseen.core.types import Batch, ClientId, Reply, Server, Share, Tensors, Work
from unseen.method import OWN_HEAD, Method, Traits
from unseen.nets.net import Net
from unseen.nets.norms import layers as norms
from unseen.nets.parts.branches import Branches, give_seats, put_at_seat, vote
from unseen.nets.parts.heads import logits_under
from unseen.nets.surgery import swap_norms


@dataclass(frozen=True)
class COPA(Method):
    name: ClassVar[str] = "copa"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "heads"
    traits: ClassVar[Traits] = Traits(
        sends="each client's own classifier head, handed on to all clients", norms="BIN", without=frozenset({OWN_HEAD})
    )

    normalisation: Literal["bin", "ibn", "bn"] = "bin"  # hybrid: a gate per channel, or half of the channels each
    stages: int | None = None  # stages with hybrid norms, from the first; none for all
    collaboration: float = 1.0  # weight of the mean cross-entropy of the others' frozen heads; 0: heads are not lent
    heads: int = 3  # room for this many clients; a client is a domain

    @property
    def about(self) -> Traits:
        return replace(self.traits, norms={"bin": "BIN", "ibn": "I-BN", "bn": ""}[self.normalisation])

    def build(self, net: Net) -> Net:
        hybrids = {"bin": norms.BIN.of, "ibn": norms.IBN.of}
        if self.normalisation in hybrids:
            swap_norms(net, hybrids[self.normalisation], self.stages)
        head = prefixed("head.", net.head.state_dict())
        net.extras["heads"] = Branches(head, sorted(head), self.heads)
        return net

    def share(self, net: Net) -> Share:
        common = net.share_all().private(frozenset(prefixed("head.", net.head.state_dict())))
        # The server alone fills the room for heads: it comes down with every order and never goes up.
        return Share(common.up - net.state_of(Branches), common.down)

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        give_seats(server.memory, chosen, self.heads, "heads")
        return {client: {"seat": server.memory[client]} for client in chosen}

    def prepare(self, work: Work) -> None:
        room = self._room(work.net)
        room.taken[int(work.brief["seat"])] = 0  # its own head of the last round is not one of the others'
        work.scratch["others"] = room.each()
        room.taken.zero_()  # while a client trains, its model has its own head, also where it validates itself

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        others = cast(list[Tensors], work.scratch["others"])
        if not others or self.collaboration == 0:
            return features.new_zeros(())
        terms = [cross_entropy(logits_under(work.net, head, features), batch.y) for head in others]
        return self.collaboration * torch.stack(terms).mean()

    def report(self, work: Work) -> Tensors:
        for layer in work.net.norms(norms.BIN):
            layer.bound_gate()  # the layer does it before each training pass; this is after the last
        return {"head": self._room(work.net).flat(work.net.state_dict()).cpu()}

    def forms(self, asked: Asked) -> Forms:
        return Forms(report={"head": Form((self._room(asked.net).rows.shape[1],))})

    def hear(self, server: Server, reply: Reply) -> None:
        put_at_seat(server, reply.client, "heads", reply.report["head"])

    def predict(self, net: Net, x: Tensor) -> Tensor:
        features = net.features(x)
        heads = self._room(net).each()
        if not heads:
            logits: Tensor = net.head(features)
            return logits
        return vote([logits_under(net, head, features) for head in heads])

    def _room(self, net: Net) -> Branches:
        return cast(Branches, net.extras["heads"])
