"""FedLGF: answers should stay when the head is moved the worst way, the client's own head and the server's.

Yan, Guo: Local and Global Flatness for Federated Domain Generalization. ECCV 2024.

The method: a head's worst move: from a random move d of `start`, rows of length 1, go up the gradient of
KL(answer || answer of the head moved by start * d), rows of length 1 again, by `size`. Cross-entropy is joined by
    near * KL(answer of the own head so moved || answer)
    + far * KL(answer of the received model with its head so moved || answer),
in both of which the moved answer is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from unseen.core.errors import UserError
from unseen.core.tensors import unprefixed
from unseen.core.types import Batch, Tensors, Work
from unseen.method import OWN_HEAD, PLAIN_FEATURES, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.frozen import frozen_features


def rows_of_one(move: Tensor) -> Tensor:
    return move / (move.square().sum(1, keepdim=True).sqrt() + 1e-8)


def apart(answers: Tensor, target: Tensor) -> Tensor:
    """KL(target || answers) of logits, mean over images."""
    return F.kl_div(answers.float().log_softmax(1), target.float().softmax(1), reduction="batchmean")


@dataclass(frozen=True)
class FedLGF(Method):
    name: ClassVar[str] = "fedlgf"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "flat minima"
    passes: ClassVar[float] = 1.33
    traits: ClassVar[Traits] = Traits(needs=frozenset({OWN_HEAD, PLAIN_FEATURES}))
    ranges: ClassVar[Mapping[str, Range]] = {"near": Range(0.01, 1.0), "far": Range(0.01, 1.0)}

    near: float = 0.1  # weight of the own head's flatness
    far: float = 0.1  # weight of the received model's; 0 saves a pass
    start: float = 0.1  # length of the random move
    size: float = 0.01  # length of the worst move

    @property
    def about(self) -> Traits:
        return self.traits if self.far > 0 else replace(self.traits, needs=frozenset())

    def moved(self, net: Net, head: Tensors, features: Tensor, logits: Tensor, rng: torch.Generator) -> Tensor:
        """The answers of a head that was moved the worst way, as a constant."""
        weights = {key: value.detach() for key, value in head.items()}
        matrices = {key: value for key, value in weights.items() if value.dim() == 2}  # biases stay
        moves = {
            key: rows_of_one(torch.rand(value.shape, generator=rng).to(value) - 0.5).requires_grad_()
            for key, value in matrices.items()
        }
        tried = {key: value + self.start * moves[key] for key, value in matrices.items()}
        found = apart(functional_call(net.head, {**weights, **tried}, (features,)), logits)
        slopes = torch.autograd.grad(found, list(moves.values()))
        with torch.no_grad():
            worst = {
                key: value + self.size * rows_of_one(slope)
                for (key, value), slope in zip(matrices.items(), slopes, strict=True)
            }
            return cast(Tensor, functional_call(net.head, {**weights, **worst}, (features,)))

    def prepare(self, work: Work) -> None:
        if self.far > 0 and unprefixed("head.", work.received).keys() < work.net.head.state_dict().keys():
            raise UserError("FedLGF reads the server's head: leave out the part that keeps the head on the clients.")
        work.scratch["received"] = {key: value.to(work.device) for key, value in work.received.items()}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        net, received = work.net, cast(Tensors, work.scratch["received"])
        logits = net.head(features)
        own = self.moved(net, dict(net.head.named_parameters()), features.detach(), logits.detach(), work.rng)
        near, far = apart(logits, own), features.new_zeros(())
        if self.far > 0:
            theirs = frozen_features(net, received, batch.x)
            far = apart(logits, self.moved(net, unprefixed("head.", received), theirs, logits.detach(), work.rng))
        work.note("loss.near", near)
        work.note("loss.far", far)
        return self.near * near + self.far * far
