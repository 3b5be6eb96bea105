"""The interface: an attack is one small file with a frozen dataclass.

It says what it needs of what crossed (`fits`), whom it plays, and does its work in `attack(observed, known, truth)`:

    observed   what crossed: the recorded exchanges and the final model
    known      what the attacker knows besides: method, architecture, plan, and public images of a domain no client has
    truth      the clients' own images. They may only score a guess, or stand among the candidates of a game; a guess that
               used them would be no attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from unseen.audits.findings import Finding, Plays
from unseen.audits.record import Exchanged
from unseen.core.plan import Plan
from unseen.core.seeding import torch_generator
from unseen.core.tensors import load, snapshot
from unseen.core.types import Batch, ClientId, ImageSet, Order, Reply, Site, Tensors, Work
from unseen.core.updates import stepped_state
from unseen.data.memory import TensorImages
from unseen.federation.client import ClientRunner, epoch_cuts
from unseen.federation.client_state import ClientStates
from unseen.method import Method
from unseen.nets.net import Net


@dataclass(frozen=True)
class Observed:
    """What crossed."""

    exchanges: tuple[Exchanged, ...]
    final: Mapping[str, Tensor] = field(default_factory=dict)  # the model that everybody gets in the end

    @property
    def clients(self) -> list[ClientId]:
        return list(dict.fromkeys(one.client for one in self.exchanges))

    @property
    def first(self) -> Exchanged:
        return self.exchanges[0]


@dataclass(frozen=True)
class Known:
    """What the attacker knows besides: everything but the clients' images and what they keep."""

    method: Method
    build: Callable[[], Net]  # the run's net as it begins
    plan: Plan
    augment: Callable[[Tensor, torch.Generator], Tensor]
    public: Batch  # labelled images of a domain that no client has
    seed: int = 0
    effort: float = 1.0  # how long the costly attacks try: 1 is minutes for digits

    @cached_property
    def net(self) -> Net:
        """One net for all attacks; each loads what it needs."""
        return self.build()

    @cached_property
    def initial(self) -> Tensors:
        return snapshot(self.build())

    @cached_property
    def stepped(self) -> frozenset[str]:
        """The weights that clients load, train and send."""
        return stepped_state(self.net, self.method.share(self.net))

    def times(self, count: int, least: int = 1) -> int:
        return max(least, round(count * self.effort))

    def generator(self, purpose: str) -> torch.Generator:
        return torch_generator(self.seed, purpose=f"audit {purpose}")

    def steps(self, one: Exchanged) -> int:
        """The optimizer steps behind a reply."""
        return self.plan.local_steps or len(epoch_cuts(one.images, self.plan)) * (self.plan.local_epochs or 1)

    # --- to play a client ----------------------------------------------------------------------------------------
    def reply(self, images: Batch, one: Exchanged, kind: str = "train", augmented: bool = False, **plan: Any) -> Reply:
        """What a client with these images would have answered in an exchange, by the library's own client loop."""
        changed = replace(self.plan, client_selection="last", **plan)
        rows = TensorImages(images.x, images.y, images.domain)
        site = Site(one.client, rows, rows)
        load(self.net, self.initial)
        change = self.augment if augmented else _unchanged
        site_of = {one.client: site}.__getitem__
        runner = ClientRunner(self.method, self.net, changed, site_of, NothingKept(Path()), change)
        order = Order("survey" if kind == "survey" else "train", one.round, one.received, one.brief)
        return runner.reply(one.client, order)

    def work(self, one: Exchanged, images: Batch) -> Work:
        """A client's desk with the received model on it, for the attacker's own losses."""
        load(self.net, {**self.initial, **one.received})
        rows = TensorImages(images.x, images.y, images.domain)
        work = Work(
            client=one.client,
            method=self.method,
            net=self.net,
            site=Site(one.client, rows, rows),
            plan=self.plan,
            round=one.round,
            received=one.received,
            brief=one.brief,
            memory={},
            rng=self.generator("work"),
            fetch=lambda indices: rows.batch(indices),
            steps=1,
        )
        work.rows = torch.arange(len(images))
        work.optimizers["main"] = work.optimizer(self.net.trainable())
        self.method.prepare(work)
        self.net.train()
        return work

    def predict(self, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits of the method's own prediction under a state."""
        load(self.net, {**self.initial, **state})
        self.net.eval()
        with torch.no_grad():
            parts = [self.method.predict(self.net, part) for part in torch.split(x, 64)]
        return torch.cat(parts).float()

    def gradient_of(self, update: Mapping[str, Tensor], one: Exchanged, steps: int) -> Tensors:
        """The mean gradient behind an update, where the optimizer is SGD: decay is taken out, momentum is counted."""
        optimizer = self.plan.optimizer
        length = optimizer.lr_at(one.round, self.plan.rounds) * optimizer.reach(steps)
        return {
            name: -value / length - optimizer.weight_decay * one.received[name].double()
            for name, value in update.items()
        }


class NothingKept(ClientStates):
    """Of a client that is played once: it has nothing from before, and nothing is written for later."""

    def load(self, client: ClientId, round: int) -> tuple[Tensors, Tensors]:
        return {}, {}

    def save(self, client: ClientId, round: int, state: Tensors, memory: Tensors) -> None: ...

    def hold(self, client: ClientId, round: int, received: Tensors) -> None: ...

    def release(self, client: ClientId) -> None: ...


def _unchanged(x: Tensor, rng: torch.Generator) -> Tensor:
    return x


def update_of(received: Mapping[str, Tensor], state: Mapping[str, Tensor], names: Sequence[str]) -> Tensors:
    """How far a client moved some of its weights, in float64."""
    there = [name for name in names if name in received and name in state]
    return {name: state[name].double() - received[name].double() for name in there}


@dataclass(frozen=True)
class Truth:
    """The clients' own images."""

    sites: Mapping[ClientId, Site]
    seed: int = 0

    def members(self, client: ClientId, count: int) -> Batch:
        """Some of the images that the client trained on."""
        return self._some(self.sites[client].train, count, f"members {client}")

    def held_out(self, client: ClientId, count: int) -> Batch:
        """Images of the same site that no one trained on: those that select, and those of the in-domain test."""
        site = self.sites[client]
        sets = [images for images in (site.validation, site.test) if images is not None and len(images)]
        share = [count * len(images) // max(1, sum(len(s) for s in sets)) for images in sets]
        parts = [
            self._some(images, max(1, n), f"held {client} {i}")
            for i, (images, n) in enumerate(zip(sets, share, strict=True))
        ]
        return joined(parts)

    def _some(self, images: ImageSet, count: int, purpose: str) -> Batch:
        order = torch.randperm(len(images), generator=torch_generator(self.seed, purpose=f"audit {purpose}"))
        return images.batch(order[:count])


def joined(parts: Sequence[Batch]) -> Batch:
    return Batch(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y", "domain")))


def rows_of(batch: Batch, rows: Tensor | slice) -> Batch:
    return Batch(batch.x[rows], batch.y[rows], batch.domain[rows])


class Attack(Protocol):
    """One way to learn something from what crossed."""

    @property
    def name(self) -> str: ...

    @property
    def plays(self) -> Plays: ...

    def fits(self, observed: Observed, known: Known) -> bool:
        """Did what it needs cross? By names and shapes of tensors and types of modules, never by a method's name."""
        ...

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]: ...
