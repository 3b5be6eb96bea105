"""FedSpeed: a proximal term whose pull is taken back in what is sent, and gradients that look a step ahead.

Sun, Shen, Huang, Ding, Tao: FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy.
ICLR 2023.

The method: x is the model a client received, c its correction, 0 at first. With g the gradient of the batch's loss at w and
g' that at w + rho * g, a step goes along (1 - alpha) * g + alpha * g' - c + pull * (w - x). After the last step
c <- c - pull * (w - x), and the client sends w - c / pull. The server takes the plain mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch

from unseen.core.forms import Asked, Forms
from unseen.core.types import Batch, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.shifted import along, gradients, shifted, stepped, untracked


@dataclass(frozen=True)
class FedSpeed(Method):
    name: ClassVar[str] = "fedspeed"
    year: ClassVar[int] = 2023
    family: ClassVar[str] = "flat minima"
    passes: ClassVar[float] = 2.0
    traits: ClassVar[Traits] = Traits(counts_images=False)
    ranges: ClassVar[Mapping[str, Range]] = {"pull": Range(0.01, 1.0), "rho": Range(0.01, 0.5)}

    pull: float = 0.1  # 1 / lambda, of the proximal term
    rho: float = 0.1  # how far ahead the second gradient is taken
    alpha: float = 1.0  # weight of the gradient ahead; the other one has the rest

    def prepare(self, work: Work) -> None:
        share = work.method.share(work.net)
        common = share.up & share.down  # what a client keeps as its own is not pulled anywhere
        work.scratch["start"] = {
            key: p.detach().clone() for key, p in work.net.named_parameters() if p.requires_grad and key in common
        }

    def step(self, work: Work, batch: Batch) -> None:
        parameters = stepped(work.optimizers["main"])
        dice = torch.get_rng_state(), work.rng.get_state()
        loss = work.method.loss(work, batch)
        work.note("loss", loss)
        here = gradients(loss, parameters)
        torch.set_rng_state(dice[0])  # both passes are of the same function: the same dropout, the same mixed styles
        work.rng.set_state(dice[1])
        with untracked(work.net), shifted(parameters, [None if g is None else self.rho * g for g in here]):
            ahead = gradients(work.method.loss(work, batch), parameters)
        mixed = [
            None if one is None or two is None else (1 - self.alpha) * one + self.alpha * two
            for one, two in zip(here, ahead, strict=True)
        ]
        self.descend(work, along(parameters, mixed))

    def gradient(self, work: Work) -> None:
        start = cast(Tensors, work.scratch["start"])
        for key, parameter in work.net.named_parameters():
            if parameter.grad is not None and key in start:
                correction = work.memory.get(key, torch.zeros(())).to(parameter.device)
                parameter.grad.add_(self.pull * (parameter.detach() - start[key]) - correction)

    def forms(self, asked: Asked) -> Forms:
        return Forms()  # `report` changes the weights that are sent, and tells nothing else

    def report(self, work: Work) -> Tensors:
        start = cast(Tensors, work.scratch["start"])
        with torch.no_grad():
            for key, parameter in work.net.named_parameters():
                if key in start:
                    before = work.memory.get(key, torch.zeros(())).to(parameter.device)
                    correction = before - self.pull * (parameter - start[key])
                    work.memory[key] = correction.cpu()
                    parameter.sub_(correction / self.pull)  # what is sent
        return {}
