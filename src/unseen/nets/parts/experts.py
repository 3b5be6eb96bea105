"""Experts in a frozen vision transformer: small maps beside its attention's, of which each token takes one.

An expert is a sum of Kronecker products, H = sum over j of A_j (x) (L_j R_j), with A_j = a_j b_j' the same in all layers.
Every client has parameters of its own for all of it; a net can answer by those, mixed for each image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.tensors import unprefixed
from unseen.core.types import Tensors
from unseen.nets.net import Net

PROJECTED, START, SMALL, WIDTH = 256, 0.5, 0.01, 0.01  # of the router: size, temperature at first and at least; of A_j


class Rule(nn.Module):
    """The a_j and b_j, the same for all experts of all layers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.empty(size, size).uniform_(-WIDTH, WIDTH))  # row j: a_j
        self.right = nn.Parameter(torch.empty(size, size).uniform_(-WIDTH, WIDTH))  # row j: b_j


class Experts(nn.Module):
    """A frozen linear map, and beside it one expert per token, chosen by cosine."""

    def __init__(self, inner: nn.Linear, rule: Rule, ranks: Sequence[int], noise: float, dropout: float) -> None:
        super().__init__()
        size = len(rule.left)
        if inner.in_features % size or inner.out_features % size:
            raise UserError(
                f"feddgmoe: kronecker is {size}, which does not divide {inner.in_features} and {inner.out_features}, "
                "the sizes of this transformer's attention."
            )
        self.inner, self.noise, self.dropout = inner, noise, dropout
        self._rule = (rule,)  # hidden from the layer's own state: the net has it once
        self.project = nn.Linear(inner.in_features, PROJECTED)
        self.likeness = nn.Parameter(0.01 * torch.randn(PROJECTED, len(ranks)))
        self.heat = nn.Parameter(torch.tensor(math.log(1 / START)))
        rows, columns = inner.in_features // size, inner.out_features // size
        self.left = nn.ParameterList(_glorot(size, rows, rank) for rank in ranks)
        self.right = nn.ParameterList(_glorot(size, rank, columns) for rank in ranks)
        self.bias = nn.Parameter(torch.zeros(inner.out_features))
        self.columns = [number for number, rank in enumerate(ranks) for _ in range(rank)]  # whose a column of L_j is
        self.mixture: tuple[Tensor, Tensors] | None = None  # weights, images x clients, and the clients' parameters
        self.imbalance: Tensor | None = None  # of the last pass in training

    def forward(self, x: Tensor) -> Tensor:
        plain: Tensor = self.inner(x)
        return plain + (self._in_training(x) if self.training else self._at_rest(x))

    def _in_training(self, x: Tensor) -> Tensor:
        cosines = F.normalize(self.project(x), dim=-1) @ F.normalize(self.likeness, dim=0)
        scores = cosines * self.heat.clamp_max(math.log(1 / SMALL)).exp()
        count = len(self.left)
        shares = (scores + self.noise / count * torch.randn(scores.shape).to(scores)).softmax(-1)
        self.imbalance = imbalance(scores.softmax(-1).flatten(0, -2), shares.amax(-1).flatten(), self.noise / count)
        gates = chosen(shares)
        terms = [
            gates[..., number, None] * (x @ F.dropout(self.expert(number), self.dropout)) for number in range(count)
        ]
        return torch.stack(terms).sum(0) + self.bias

    def expert(self, number: int) -> Tensor:
        """H, inputs x outputs."""
        (rule,) = self._rule
        small = self.left[number] @ self.right[number]
        whole = torch.einsum("ja,jc,jkp->akcp", rule.left, rule.right, small)
        return whole.reshape(self.inner.in_features, self.inner.out_features)

    def _at_rest(self, x: Tensor) -> Tensor:
        """By the layer's own parameters or, in a mixture, by the mean of the clients' for each image. H itself is not made:
        its factors are applied in turn, those of all experts at once."""
        (rule,), mixture = self._rule, self.mixture
        own = {**dict(self.named_parameters()), "rule.left": rule.left, "rule.right": rule.right}

        def of(name: str) -> Tensor:  # images first, or one for all of them
            return own[name][None] if mixture is None else torch.einsum("bk,k...->b...", mixture[0], mixture[1][name])

        projected = x @ of("project.weight").transpose(1, 2) + of("project.bias")[:, None]
        cosines = F.normalize(projected, dim=-1) @ F.normalize(of("likeness"), dim=1)
        heat = of("heat").clamp_max(math.log(1 / SMALL)).exp()
        gates = chosen((cosines * heat[:, None, None]).softmax(-1))
        numbers = range(len(self.left))
        left = torch.cat([of(f"left.{number}") for number in numbers], dim=3)
        right = torch.cat([of(f"right.{number}") for number in numbers], dim=2)
        grouped = torch.einsum("bja,btak->btjk", of("rule.left"), x.reshape(*x.shape[:2], len(rule.left), -1))
        inside = torch.einsum("btjk,bjkr->btjr", grouped, left) * gates[:, :, None, self.columns]
        outside = torch.einsum("btjr,bjrp->btjp", inside, right)
        return torch.einsum("btjp,bjc->btcp", outside, of("rule.right")).flatten(2) + of("bias")[:, None]


def _glorot(*shape: int) -> nn.Parameter:
    """Each of the first axis' matrices uniform, as wide as Glorot says times the root of 2."""
    reach = math.sqrt(2) * math.sqrt(6 / (shape[1] + shape[2]))
    return nn.Parameter(torch.empty(shape).uniform_(-reach, reach))


def chosen(shares: Tensor) -> Tensor:
    """The largest share, and 0 for all others."""
    return torch.where(shares == shares.amax(-1, keepdim=True), shares, torch.zeros_like(shares))


def imbalance(shares: Tensor, needed: Tensor, width: float) -> Tensor:
    """How unevenly tokens go to experts: squared variation of their importance and of their load, the mean of both.

    Importance is the sum of an expert's shares; load is how often noise of this width would have it chosen, which needs
    a share of `needed`. Tokens x experts, and one per token.
    """
    load = torch.special.ndtr((shares - needed[:, None]) / width).sum(0)
    parts = [total.var() / (total.mean().square() + 1e-10) for total in (shares.sum(0), load)]
    return torch.stack(parts).mean()


def add_experts(net: Net, every: int, size: int, ranks: Sequence[int], noise: float, dropout: float) -> Net:
    """Experts beside queries, keys and values of every so many blocks of a vision transformer. Another net is an error."""
    from unseen.nets.timm_backbones import VisionTransformer  # timm takes seconds, and only some methods need it here

    backbone = net.backbone
    if not isinstance(backbone, VisionTransformer):
        raise UserError(
            f"feddgmoe needs a vision transformer, and {net.backbone_name} is none: "
            "choose one (--backbone vit_base_patch16_224), or the protocol digits-vit."
        )
    rule = backbone.expert_rule = Rule(size)
    for block in list(backbone.blocks)[::every]:
        block.attn.qkv = Experts(block.attn.qkv, rule, ranks, noise, dropout)
    return net


def query(net: Net, x: Tensor, last: int) -> Tensor:
    """What domains are told apart by: the mean over all tokens of the last blocks' normalised outputs, and over these."""
    heard: list[Tensor] = []
    blocks = list(net.backbone.blocks)[-last:]  # type: ignore[arg-type]  # a vision transformer
    handles = [block.register_forward_hook(lambda _, __, tokens: heard.append(tokens)) for block in blocks]
    try:
        net.maps(x)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([net.backbone.norm(tokens).mean(1) for tokens in heard]).mean(0)  # type: ignore[operator]


@contextmanager
def mixing(net: Net, weights: Tensor, own: Tensors) -> Iterator[None]:
    """Inside, every layer of experts goes by the clients' parameters, mixed for each image. `own`: clients first."""
    found = [(name, module) for name, module in net.named_modules() if isinstance(module, Experts)]
    rule = {f"rule.{side}": own[f"backbone.expert_rule.{side}"] for side in ("left", "right")}
    for name, module in found:
        module.mixture = weights, {**unprefixed(f"{name}.", own), **rule}
    try:
        yield
    finally:
        for _, module in found:
            module.mixture = None
