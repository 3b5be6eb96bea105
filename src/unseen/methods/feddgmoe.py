"""FedDG-MoE: experts in a frozen transformer; a new image is answered by a mixture of the clients' own experts.

Radwan, Soliman, Abdelaziz, Shehata: FedDG-MoE: Test-Time Mixture-of-Experts Fusion for Federated Domain Generalization. CVPR
workshops 2025.

The method: the transformer is frozen. Beside the queries, keys and values of every second block stand experts (sums of
Kronecker products of low rank), of which each token takes the one that its router prefers; they, routers and the head are
trained and averaged. The server also keeps each client's own, and mean m_k and variance of its features. At test time the
weight of client k is the softmax of sharpness * cos(f / s_k, m_k / s_k), with f the image's features and s_k the standard
deviations, and the answer is by the weighted mean of the clients' parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import Batch, ClientId, Reply, Server, Share, Tensors, Work
from unseen.method import ALONE, BATCH_NORM, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.branches import Branches, give_seats, put_at_seat
from unseen.nets.parts.experts import Experts, add_experts, mixing, query
from unseen.nets.parts.towers import freeze, share_trained

LEAST = 1e-5  # of a variance


@dataclass(frozen=True)
class FedDGMoE(Method):
    name: ClassVar[str] = "feddgmoe"
    year: ClassVar[int] = 2025
    family: ClassVar[str] = "adapters"
    passes: ClassVar[float] = 0.67  # without gradients of the tower's weights
    traits: ClassVar[Traits] = Traits(
        sends="mean and variance of its images' features; they and each client's own experts go to all clients",
        remark="mixed for each image, not for a batch",
        needs=frozenset({ALONE}),
        without=frozenset({BATCH_NORM}),
    )
    ranges: ClassVar[Mapping[str, Range]] = {"sharpness": Range(0.5, 20.0), "balance": Range(1e-3, 0.1)}

    ranks: tuple[int, ...] = (1, 2, 4, 8)  # of the experts
    kronecker: int = 64  # products in an expert's sum, and the size of their first factors
    every: int = 2  # experts are in every second block
    balance: float = 0.01  # weight of the uneven use of experts
    noise: float = 1.0  # on the router's scores in training, divided by the number of experts
    dropout: float = 0.5  # of an expert's matrix in training
    last: int = 2  # blocks whose tokens tell domains apart
    sharpness: float = 2.0  # of the clients' weights
    clients: int = 3  # room for this many clients; a client is a domain

    def build(self, net: Net) -> Net:
        add_experts(freeze(net, self.name), self.every, self.kronecker, self.ranks, self.noise, self.dropout)
        own = {key: p.detach() for key, p in net.named_parameters() if p.requires_grad}
        net.extras["clients"] = Branches(own, sorted(own), self.clients)
        size = torch.zeros(net.map_channels)
        net.extras["domains"] = Branches({"mean": size, "variance": size}, ("mean", "variance"), self.clients)
        return net

    def share(self, net: Net) -> Share:
        trained = share_trained(net)
        # The server alone fills the room for clients: it comes down with every order and never goes up.
        return Share(trained.up - net.state_of(Branches), trained.down)

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        give_seats(server.memory, chosen, self.clients, "clients")
        return {}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        terms = [term for layer in work.net.norms(Experts) if (term := layer.imbalance) is not None]
        return self.balance * torch.stack(terms).sum()

    @torch.no_grad()
    def report(self, work: Work) -> Tensors:
        work.net.eval()
        rows = torch.split(torch.arange(len(work.site.train)), work.plan.batch_size)
        features = torch.cat([query(work.net, work.fetch(some).x, self.last).float() for some in rows])
        work.net.train()
        return {"mean": features.mean(0).cpu(), "variance": features.var(0).clamp_min(LEAST).cpu()}

    def forms(self, asked: Asked) -> Forms:
        size = asked.net.map_channels
        return Forms(report={"mean": Form((size,)), "variance": Form((size,), least=0.0)})

    def hear(self, server: Server, reply: Reply) -> None:
        own = torch.cat([reply.state[key].reshape(-1) for key in sorted(reply.state)])
        put_at_seat(server, reply.client, "clients", own)
        put_at_seat(server, reply.client, "domains", torch.cat([reply.report["mean"], reply.report["variance"]]))

    def predict(self, net: Net, x: Tensor) -> Tensor:
        own = cast(Branches, net.extras["clients"]).each()
        if not own:
            logits: Tensor = net(x)
            return logits
        stacked = {key: torch.stack([each[key] for each in own]) for key in own[0]}
        weights = self.weights(net, x)
        with mixing(net, weights, stacked):
            features = net.features(x)
        head = torch.einsum("bk,kcd->bcd", weights, stacked["head.weight"])
        return (head @ features[:, :, None])[:, :, 0] + weights @ stacked["head.bias"]

    def weights(self, net: Net, x: Tensor) -> Tensor:
        """How much each client's parameters count, for each image."""
        features, domains = query(net, x, self.last), cast(Branches, net.extras["domains"]).each()
        likeness = []
        for domain in domains:
            width = domain["variance"].sqrt() + LEAST
            likeness.append(F.cosine_similarity(features / width, (domain["mean"] / width)[None], dim=1))
        return (self.sharpness * torch.stack(likeness, dim=1)).softmax(1)
