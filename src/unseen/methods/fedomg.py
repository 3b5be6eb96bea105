"""FedOMG: the server looks near the mean update for the direction that serves the worst-off client most.

Nguyen, Nguyen, Park, Pham, Hwang: Federated Domain Generalization with Data-free On-server Matching Gradient. ICLR 2025.
The problem is CAGrad's: Liu, Liu, Jin, Stone, Liu: Conflict-Averse Gradient Descent for Multi-task Learning. NeurIPS 2021.

The method: d_k are the clients' updates and g their mean. Among directions within kappa * ||g|| of g, take the one whose
smallest inner product with the d_k is largest. Its dual has one weight per client: on the simplex, minimise
    d_Gamma . g + kappa ||g|| ||d_Gamma||,     d_Gamma = sum_k Gamma_k d_k;
then the server moves by rate * (g + kappa ||g|| / ||d_Gamma|| d_Gamma) / (1 + kappa^2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.core.tensors import RunningMean
from unseen.core.types import Reply, Server, Tensors
from unseen.core.updates import advanced, dot, split
from unseen.method import Method, Range, Weigh

STEPS = 500  # of the search for Gamma: K numbers, and only inner products of updates are needed
TINY = 1e-12


def matching(products: Tensor, weights: Tensor, kappa: float) -> Tensor:
    """Gamma, from the K x K inner products of the updates and the weights of the mean, by multiplicative steps."""
    scale = products.diagonal().mean().clamp_min(TINY)
    products = products / scale
    with_mean = (products * weights).sum(1)
    radius = kappa * (weights * with_mean).sum().clamp_min(TINY).sqrt()

    best, lowest = weights, float("inf")
    gamma = torch.full_like(weights, 1 / len(weights))
    for step in range(STEPS):
        pull = (products * gamma).sum(1)
        length = (gamma * pull).sum().clamp_min(TINY).sqrt()
        value = float((gamma * with_mean).sum() + radius * length)
        if value < lowest:
            best, lowest = gamma, value
        gamma = gamma * torch.exp(-(with_mean + radius * pull / length) / (1 + step / 50))
        gamma = gamma / gamma.sum()
    return best


@dataclass(frozen=True)
class FedOMG(Method):
    name: ClassVar[str] = "fedomg"
    year: ClassVar[int] = 2025
    family: ClassVar[str] = "servers"
    ranges: ClassVar[Mapping[str, Range]] = {
        "kappa": Range(0.05, 0.95, log=False),
        "rate": Range(0.3, 3.0),
    }

    kappa: float = 0.5  # how far from the mean update, in its lengths, the server looks
    rate: float = 1.0  # learning rate of the server

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        updates, shares, others = [], [], RunningMean()
        for reply in replies:  # all at once: every update is multiplied with every other
            update, rest = split(server, reply)
            updates.append(update)
            shares.append(weigh(reply))
            others.add(rest, shares[-1])
        weights = torch.tensor(shares, dtype=torch.float64)
        weights = weights / weights.sum()
        products = torch.stack([torch.stack([dot(one, two) for two in updates]) for one in updates])
        gamma = matching(products, weights, self.kappa)
        length = (weights * (products * weights).sum(1)).sum().clamp_min(0).sqrt()
        matched = (gamma * (products * gamma).sum(1)).sum().clamp_min(TINY).sqrt()
        # Both directions are sums over the same updates, so their sum is one too.
        total = self.rate * (weights + self.kappa * length / matched * gamma) / (1 + self.kappa**2)
        move = {
            key: torch.stack([w * u[key] for w, u in zip(total, updates, strict=True)]).sum(0) for key in updates[0]
        }
        return advanced(server, move, others.result())
