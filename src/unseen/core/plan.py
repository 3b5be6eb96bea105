"""The budget of a run: the protocol sets it, a method may read it. Plain numbers and words; torch is not needed here.

A run's directory is named by the settings that differ from the defaults here and in `runs/settings.py`. So a new field
with a default leaves finished runs where they are; a default that is changed does not, and is therefore never changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from unseen.core.options import option
from unseen.core.words import PEEKS

MANY = 10**9  # of rounds, steps, images: nobody means more
BUDGET, OPTIMIZER, SELECTION, HOW = "Budget", "Optimizer", "Selection and testing", "How"


Augmentation = Literal["none", "domainbed", "jigen", "fedadg", "gperxan", "dassl", "digits"]  # data/augment.py has them
Allow = Literal["weights,statistics", "weights"]  # what may leave a client; numbers for the log always do


@dataclass(frozen=True)
class OptimizerPlan:
    """SGD or Adam with the settings a protocol names, and the learning rate as a function of the round."""

    name: Literal["sgd", "adam", "adamw"] = option(
        "sgd", "The clients' optimizer: sgd, adam or adamw.", name="optimizer", panel=OPTIMIZER
    )
    lr: float = option(0.01, "Learning rate.", panel=OPTIMIZER, above=0)
    momentum: float = option(0.0, "Momentum of SGD.", panel=OPTIMIZER, least=0, most=0.999999)
    weight_decay: float = option(0.0, "Weight decay.", panel=OPTIMIZER, least=0)
    schedule: Literal["constant", "cosine", "step"] = option(
        "constant", "Learning rate over the rounds: constant, cosine or step.", panel=OPTIMIZER
    )
    step_every: int = option(20, "With the schedule step: rounds between two decays.", panel=OPTIMIZER, least=1)
    step_factor: float = option(0.1, "With the schedule step: factor of a decay.", panel=OPTIMIZER, above=0)
    clip_norm: float | None = option(None, "Largest norm of a gradient, or none.", panel=OPTIMIZER, above=0)
    persist: bool = option(
        False, "Clients keep the optimizer's state between rounds.", name="keep_optimizer", panel=OPTIMIZER
    )

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
    """The budget of a run."""

    rounds: int = option(10, "Rounds.", panel=BUDGET, least=1, most=MANY)
    batch_size: int = option(32, "Images per step; BatchNorm needs two.", panel=BUDGET, least=2, most=MANY)
    keep_last: bool = option(False, "Train also on the images that are left over in an epoch.", panel=BUDGET)
    optimizer: OptimizerPlan = field(default_factory=OptimizerPlan)
    seed: int = 0
    local_epochs: int | None = option(1, "Local epochs per round.", panel=BUDGET, least=1, most=MANY)
    local_steps: int | None = option(
        None, "Local steps per round, instead of epochs.", panel=BUDGET, least=1, most=MANY
    )
    participation: float = option(
        1.0, "Clients in a round: a fraction up to 1, or a number.", panel=BUDGET, above=0, most=MANY
    )
    client_selection: Literal["last", "best"] = option(
        "last", "Local model that a client uploads: last or best.", panel=SELECTION
    )
    check_every: int = option(
        20, "With best: local steps between two looks at the local validation images.", panel=SELECTION, least=1
    )
    server_selection: Literal["last", "validation", "oracle"] = option(
        "validation", f"Round to keep: validation, last, or oracle ({PEEKS} at the unseen domain).", panel=SELECTION
    )
    validation_mean: Literal["clients", "examples"] = option(
        "clients", "Validation over clients (plain mean) or examples (by images).", panel=SELECTION
    )
    precision: Literal["float32", "bfloat16"] = option("float32", "float32 or bfloat16.", panel=HOW)
    device: str = option("cpu", "auto, cpu, cuda, cuda:NUMBER or mps. (default: auto)", panel=HOW)
    augmentation: Augmentation = option("none", "Changes to the training images, as in a paper.", panel=BUDGET)
    minimum_clients: int = option(1, "A round with fewer good replies is an error.", panel=HOW, least=1)
    most_images: int = option(
        100_000_000, "A client that counts more training images is refused.", panel=HOW, least=1, most=10**15
    )
    allow: Allow = option(
        "weights,statistics",
        "What may leave a client: weights,statistics or weights; a method that sends more is refused.",
        panel=HOW,
    )
    secure: bool = option(
        False, "Secure aggregation: the server learns the mean of the models, and no single one.", panel=HOW
    )
    test_every: int = option(
        0, "Rounds between two tests on the unseen domain, for the curve only; 0: none.", panel=SELECTION, least=0
    )
