"""FedLGF: answers should stay when the head is moved the worst way, the client's own head and the server's.

Yan, Guo: Local and Global Flatness for Federated Domain Generalization. ECCV 2024.

The method: a head's worst move: from a random move d of `start`, rows of length 1, go up the gradient of
KL(answer || answer of the head moved by start * d), rows of length 1 again, by `size`. What moves is the weights W, or
their singular values S as one vector: W = U diag(relu(S + start * d)) V^T. Cross-entropy is joined by
    near * KL(answer of the own head so moved || answer)
    + far * KL(answer of the received model with its head so moved || answer),
in both of which the moved answer is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from unseen.core.errors import UserError
from unseen.core.tensors import unprefixed
from unseen.core.types import Batch, Tensors, Work
from unseen.method import BY_VARIANT, OWN_HEAD, PLAIN_FEATURES, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.frozen import frozen_features


def of_length_one(move: Tensor) -> Tensor:
    """Each row of a matrix by its own length, a vector by its length."""
    return move / (move.square().sum(-1, keepdim=True).sqrt() + 1e-8)


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
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "singular": {"draws": "normal", "start": 10.0, "size": 0.1},
        "weights": {"draws": "uniform", "start": 0.1, "size": 0.01},
    }

    variant: Literal["singular", "weights"] = "singular"  # what moves, and how far; the authors run singular
    near: float = 0.1  # weight of the own head's flatness
    far: float = 0.1  # weight of the received model's; 0 saves a pass
    draws: Literal["uniform", "normal"] = BY_VARIANT  # the random move, before it has length 1
    start: float = BY_VARIANT  # length of the random move
    size: float = BY_VARIANT  # length of the worst move

    @property
    def about(self) -> Traits:
        remark = "weights moved, not singular values" if self.variant == "weights" else ""
        return replace(self.traits, remark=remark, needs=self.traits.needs if self.far > 0 else frozenset())

    def random_move(self, like: Tensor, rng: torch.Generator) -> Tensor:
        uniform = self.draws == "uniform"
        drawn = torch.rand(like.shape, generator=rng) - 0.5 if uniform else torch.randn(like.shape, generator=rng)
        return of_length_one(drawn.to(like))

    def moved(self, net: Net, head: Tensors, features: Tensor, logits: Tensor, rng: torch.Generator) -> Tensor:
        """The answers of a head that was moved the worst way, as a constant."""
        weights = {key: value.detach() for key, value in head.items()}
        matrices = {key: value for key, value in weights.items() if value.dim() == 2}  # biases stay
        bases: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        points = matrices  # what moves
        if self.variant == "singular":
            bases = {key: torch.linalg.svd(value, full_matrices=False) for key, value in matrices.items()}
            points = {key: values for key, (_, values, _) in bases.items()}

        def answers(points: Tensors) -> Tensor:
            rebuilt = {key: (left * points[key].relu()) @ right for key, (left, _, right) in bases.items()}
            return cast(Tensor, functional_call(net.head, {**weights, **(rebuilt or points)}, (features,)))

        moves = {key: self.random_move(point, rng).requires_grad_() for key, point in points.items()}
        found = apart(answers({key: point + self.start * moves[key] for key, point in points.items()}), logits)
        slopes = dict(zip(moves, torch.autograd.grad(found, list(moves.values())), strict=True))
        with torch.no_grad():
            return answers({key: point + self.size * of_length_one(slopes[key]) for key, point in points.items()})

    def prepare(self, work: Work) -> None:
        if self.far <= 0:  # nobody asks for the received model
            return
        if unprefixed("head.", work.received).keys() < work.net.head.state_dict().keys():
            raise UserError("FedLGF reads the server's head: leave out the part that keeps the head on the clients.")
        work.scratch["received"] = {key: value.to(work.device) for key, value in work.received.items()}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        net = work.net
        logits = net.head(features)
        own = self.moved(net, dict(net.head.named_parameters()), features.detach(), logits.detach(), work.rng)
        near, far = apart(logits, own), features.new_zeros(())
        if self.far > 0:
            received = cast(Tensors, work.scratch["received"])
            theirs = frozen_features(net, received, batch.x)
            far = apart(logits, self.moved(net, unprefixed("head.", received), theirs, logits.detach(), work.rng))
        work.note("loss.near", near)
        work.note("loss.far", far)
        return self.near * near + self.far * far
