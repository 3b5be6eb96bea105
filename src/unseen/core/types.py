"""What travels between server and clients, and what a client works with while it carries out an order.

Shape suffixes used in the package: B batch, C channels, H height, W width, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from unseen.core.plan import Plan

if TYPE_CHECKING:
    from unseen.method import Method
    from unseen.nets.net import Net

ClientId = str
Tensors = dict[str, Tensor]  # flat: one state_dict, one Flower ArrayRecord, one safetensors file
Metrics = dict[str, float]
Memory = MutableMapping[str, Tensor]
Kind = Literal["survey", "train", "evaluate", "keys", "shares", "unmask"]  # the last three: `federation/secure`
Held = Literal["validation", "test"]  # images that a client does not train on: to select by, and to measure with


class Share(NamedTuple):
    """State keys that cross the wire. Chosen by module type, never by a substring of the name."""

    up: frozenset[str]  # uploaded and averaged: the evaluation model is made of these
    down: frozenset[str]  # loaded by clients; a client keeps its own of everything else

    def keeping(self, own: frozenset[str]) -> Share:
        """Clients keep their own `own`; the server still averages them for the evaluation model."""
        return Share(self.up, self.down - own)

    def private(self, own: frozenset[str]) -> Share:
        """`own` never leaves the client and is not averaged."""
        return Share(self.up - own, self.down - own)


@dataclass(frozen=True)
class Order:
    """Server -> one client."""

    kind: Kind
    round: int
    state: Tensors  # nothing: the model that came with the survey of the same round
    brief: Tensors = field(default_factory=dict)  # what the method wrote for this client alone
    evaluate: bool = False  # also measure the received evaluation model on the client's validation images
    images: Held = "validation"  # which images an "evaluate" order asks about
    calibrate: bool = False  # an "evaluate" order also asks for what calibrates the model, of the validation images
    sealing: Tensors = field(default_factory=dict)  # of secure aggregation, by other clients: their keys or shares


@dataclass(frozen=True)
class Reply:
    """One client -> server."""

    client: ClientId
    kind: Kind
    round: int
    num_examples: int  # training images; for "evaluate" orders, the images that it asks about
    state: Tensors = field(default_factory=dict)  # the model's share
    report: Tensors = field(default_factory=dict)  # beyond the model: the method's; of "evaluate", what calibrates
    metrics: Metrics = field(default_factory=dict)
    sender: str = ""  # who brought it, as the engine knows them and not as they call themselves: a node's id
    sealing: Tensors = field(default_factory=dict)  # of secure aggregation: keys, shares, or the masked model


@dataclass
class Server:
    """All the server remembers: saving this is a checkpoint."""

    state: Tensors
    seed: int = 0  # for the server's own draws
    round: int = 0  # the last finished round
    rounds: int = 0  # of the whole run
    memory: Memory = field(default_factory=dict)
    met: set[ClientId] = field(default_factory=set)  # clients that have trained: they hold what is theirs
    enrolled: dict[ClientId, int] = field(default_factory=dict)  # training images that each client began with
    stepped: frozenset[str] | None = None  # state that clients load, train and send; not saved, the net says it anew


@dataclass(frozen=True)
class Batch:
    """Images in [0, 1], labels, and the domain each image is from (an index: a client may hold several)."""

    x: Tensor
    y: Tensor
    domain: Tensor

    def __len__(self) -> int:
        return int(self.y.shape[0])


class ImageSet(Protocol):
    """Images of one client, one domain or one folder: decoded once, indexed, never copied."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Tensor: ...  # int64, one per image

    @property
    def domains(self) -> Tensor: ...  # int64, one per image

    def batch(self, indices: Tensor) -> Batch: ...  # float32 in [0, 1], channels last in memory, not augmented


@dataclass(frozen=True)
class Site:
    """A client's own data. The target domain is never in it."""

    client: ClientId
    train: ImageSet
    validation: ImageSet  # these select: the round on the server, a checkpoint on the client
    test: ImageSet | None = None  # these only measure: nothing was selected by them; None or empty if there are none

    def held(self, which: Held) -> ImageSet | None:
        return self.validation if which == "validation" else self.test


@dataclass
class Work:
    """What one client works with while it carries out one order."""

    client: ClientId
    method: Method  # the whole composed method: a verb that needs another verb asks it here
    net: Net
    site: Site
    plan: Plan
    round: int
    received: Mapping[str, Tensor]  # the server's state, read-only: the proximal anchor, the frozen global head, mu_G
    brief: Mapping[str, Tensor]  # what the server wrote for this client alone
    memory: Memory  # survives rounds, never leaves the client
    rng: torch.Generator  # from (seed, round, client): the same on every engine
    fetch: Callable[[Tensor], Batch]  # augmented training images by their index (StableFDG's singleton classes)
    epoch: int = 0  # local epoch, from 0
    step: int = 0  # local step, from 0
    steps: int = 0  # local steps in this round
    rows: Tensor = field(default_factory=lambda: torch.arange(0))  # where this step's images are in site.train
    optimizers: MutableMapping[str, torch.optim.Optimizer] = field(default_factory=dict)  # "main" is all parts'
    notes: dict[str, list[float]] = field(default_factory=dict)  # numbers of this round, averaged into the reply
    scratch: MutableMapping[str, object] = field(default_factory=dict)  # for this order only: frozen modules, anchors
    whole: Work | None = None  # in a composed method: the work of which this one is a part's view

    @property
    def device(self) -> torch.device:
        return torch.device(self.plan.device)

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return self.plan.optimizer.lr_at(self.round, self.plan.rounds)

    def note(self, name: str, value: Tensor | float) -> None:
        """Remember a number for the log: its mean over the steps is in the reply's metrics."""
        number = float(value.detach()) if isinstance(value, Tensor) else float(value)
        self.notes.setdefault(name, []).append(number)

    def optimizer(self, parameters: Sequence[torch.nn.Parameter], lr_scale: float = 1.0) -> torch.optim.Optimizer:
        """An optimizer of the plan's kind over some parameters, at `lr_scale` times the round's learning rate."""
        plan = self.plan.optimizer
        lr = self.lr * lr_scale
        if plan.name == "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=plan.momentum, weight_decay=plan.weight_decay)
        kind = torch.optim.Adam if plan.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=lr, weight_decay=plan.weight_decay)

    def withdraw(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Take parameters out of the main optimizer: they get another one, or a group with its own settings."""
        theirs = set(parameters)
        for group in self.optimizers["main"].param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter not in theirs]


class Engine(Protocol):
    """Delivers orders and brings replies. Knows no method by name."""

    def clients(self) -> Sequence[ClientId]: ...

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]: ...  # as they arrive, in the clients' order
