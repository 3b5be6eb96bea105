"""ADCOL: features of which a discriminator at the server cannot say which client they are from.

Li, He, Song: Adversarial Collaborative Learning on Non-IID Features. ICML 2023.

The method: with its model a client sends features of its training images. The server trains a discriminator D on them by
cross-entropy, to tell which of the K clients a feature z is from; D goes down with the next round. A client's loss is
cross-entropy + mu * KL(uniform over the K clients || softmax D(z)), with D at rest. The paper's clients keep models of
their own; here the weights are averaged too, as a model for an unseen domain needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Form, Forms, UpTo
from unseen.core.seeding import torch_generator
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import Batch, ClientId, Memory, Reply, Server, Tensors, Work
from unseen.method import Method, Range, Traits

HIDDEN = 512  # units of each of the discriminator's two hidden layers
BATCH = 64  # features in a step of the server's
LARGEST = 1e6  # of a feature: what one client sends must not spoil the discriminator


def drawn(rows: int, inputs: int, rng: torch.Generator) -> Tensor:
    """Weights of a linear layer, by PyTorch's rule."""
    return (2 * torch.rand(rows, inputs, generator=rng) - 1) / math.sqrt(inputs)


def untrained(size: int, rng: torch.Generator) -> Tensors:
    """A discriminator of features of that size that knows no client yet."""
    state: Tensors = {"clients": torch.zeros(0, HIDDEN)}
    for layer, inputs in (("first", size), ("second", HIDDEN)):
        state[f"{layer}.weight"] = drawn(HIDDEN, inputs, rng)
        state |= {f"{layer}.{name}": torch.zeros(HIDDEN) for name in ("mean", "shift")}
        state |= {f"{layer}.{name}": torch.ones(HIDDEN) for name in ("variance", "scale")}
    return state


def discriminate(state: Mapping[str, Tensor], features: Tensor, training: bool = False) -> Tensor:
    """Logits of clients, B x K: twice a linear layer, BatchNorm and ReLU, then a linear layer.

    In training BatchNorm takes the batch's statistics, and moves the running ones in place.
    """
    x = features
    for layer in ("first", "second"):
        x = F.linear(x, state[f"{layer}.weight"])
        mean, variance, scale, shift = (state[f"{layer}.{name}"] for name in ("mean", "variance", "scale", "shift"))
        x = F.relu(F.batch_norm(x, mean, variance, scale, shift, training))
    return F.linear(x, state["clients"])


def confusion(logits: Tensor) -> Tensor:
    """KL(uniform || softmax), mean over images: zero where no client is likelier than another."""
    uniform = torch.full_like(logits, 1 / logits.shape[1])
    return F.kl_div(logits.log_softmax(1), uniform, reduction="batchmean")


@dataclass(frozen=True)
class ADCOL(Method):
    name: ClassVar[str] = "adcol"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "features"
    traits: ClassVar[Traits] = Traits(
        sends="features of some of each client's training images", remark="weights are averaged too"
    )
    ranges: ClassVar[Mapping[str, Range]] = {"mu": Range(0.01, 10.0), "rate": Range(1e-3, 0.1)}

    mu: float = 0.5  # weight of the confusion
    images: int = 512  # features that a client sends: those of its last steps
    epochs: int = 3  # of the server, over all features of a round
    rate: float = 0.01  # learning rate of the server
    momentum: float = 0.9  # of the server

    def __post_init__(self) -> None:
        for name, value in (("images", self.images), ("epochs", self.epochs)):
            if value < 1:
                raise UserError(f"adcol: {name} is {value}; give 1 or more.")

    # --- on the client -------------------------------------------------------------------------------------------
    def prepare(self, work: Work) -> None:
        work.scratch["discriminator"] = {key: value.to(work.device) for key, value in work.brief.items()}

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        rows = features.detach().float().cpu()
        before = cast(Tensor, work.scratch.get("features", rows[:0]))
        work.scratch["features"] = torch.cat([before, rows])[-self.images :]
        discriminator = cast(Tensors, work.scratch["discriminator"])
        if not discriminator:  # the first round
            return features.new_zeros(())
        term = confusion(discriminate(discriminator, features.float()))
        work.note("loss.confusion", term)
        return self.mu * term

    def report(self, work: Work) -> Tensors:
        return {"features": cast(Tensor, work.scratch["features"])}

    # --- on the server -------------------------------------------------------------------------------------------
    def forms(self, asked: Asked) -> Forms:
        shape = (UpTo(self.images), asked.net.feature_size)
        return Forms(report={"features": Form(shape, least=-LARGEST, most=LARGEST)})

    def hear(self, server: Server, reply: Reply) -> None:
        server.memory[f"features/{reply.client}"] = reply.report["features"]

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        told = unprefixed("features/", server.memory)
        if told:
            rng = torch_generator(server.seed, round=server.round + 1, purpose="adcol discriminator")
            server.memory.update(prefixed("discriminator/", self.trained(server.memory, told, rng)))
            for client in told:  # once: a round that is tried again finds the same discriminator
                del server.memory[f"features/{client}"]
        discriminator = unprefixed("discriminator/", server.memory)
        return dict.fromkeys(chosen, discriminator) if discriminator else {}

    def trained(self, memory: Memory, told: Tensors, rng: torch.Generator) -> Tensors:
        """The discriminator after some epochs on what the clients told, with a row for each client that ever told."""
        for client in sorted(told):
            memory.setdefault(f"seat/{client}", torch.tensor(len(unprefixed("seat/", memory))))
        features = torch.cat([told[client] for client in sorted(told)])
        labels = torch.cat([memory[f"seat/{client}"].expand(len(told[client])) for client in sorted(told)])
        state = unprefixed("discriminator/", memory) or untrained(features.shape[1], rng)
        new = len(unprefixed("seat/", memory)) - len(state["clients"])
        state["clients"] = torch.cat([state["clients"], drawn(new, HIDDEN, rng)])

        state = {key: value.clone() for key, value in state.items()}  # the old one may be on its way to a client
        learnt = [value for key, value in state.items() if not key.endswith((".mean", ".variance"))]
        optimizer = torch.optim.SGD([value.requires_grad_() for value in learnt], self.rate, self.momentum)
        for _ in range(self.epochs):
            for rows in torch.split(torch.randperm(len(features), generator=rng), BATCH):
                if len(rows) > 1:  # BatchNorm
                    loss = F.cross_entropy(discriminate(state, features[rows], training=True), labels[rows])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return {key: value.detach() for key, value in state.items()}
