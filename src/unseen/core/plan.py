"""The budget of a run: the protocol sets it, a method may read it. Plain numbers and words; torch is not needed here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OptimizerPlan:
    """SGD or Adam with the settings a protocol names, and the learning rate as a function of the round."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "step"] = "constant"  # over rounds, not over local steps
    step_every: int = 20  # with "step": rounds between two decays
    step_factor: float = 0.1
    clip_norm: float | None = None  # largest gradient norm, None for no clipping
    persist: bool = False  # keep the optimizer's state on the client between rounds

    def lr_at(self, round: int, rounds: int) -> float:
        """The learning rate of round 1, 2, ..., `rounds`."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
        if self.schedule == "step":
            return self.lr * self.step_factor ** ((round - 1) // self.step_every)
        return self.lr

    def reach(self, steps: int) -> float:
        """What a constant gradient of 1 moves a weight in that many steps, in learning rates.

        The number of steps; more with SGD's momentum, in which a gradient is felt again in later steps.
        """
        momentum = self.momentum if self.name == "sgd" else 0.0
        return sum((1 - momentum**step) / (1 - momentum) for step in range(1, steps + 1))


@dataclass(frozen=True)
class Plan:
    """The budget of a run: the protocol sets it, a method may read it."""

    rounds: int
    batch_size: int
    optimizer: OptimizerPlan
    seed: int
    local_epochs: int | None = 1  # exactly one of local_epochs and local_steps is given
    local_steps: int | None = None
    participation: float = 1.0  # <= 1: the fraction of clients in a round; > 1: their number
    client_selection: Literal["last", "best"] = "last"  # which local model is uploaded
    check_every: int = 20  # with "best": local steps between two looks at the local validation set
    server_selection: Literal["last", "validation", "oracle"] = "validation"
    validation_mean: Literal["clients", "examples"] = "clients"  # plain mean over clients, or weighted by images
    precision: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"
    augmentation: str = "none"  # a preset of `unseen.data.augment`
    minimum_clients: int = 1  # a round with fewer good replies than this is an error
