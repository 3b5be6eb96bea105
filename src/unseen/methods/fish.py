"""Fish: small steps on one domain after the other, then a part of the way they made together: gradients that agree add up.

Shi, Seely, Torr, Siddharth, Hannun, Usunier, Synnaeve: Gradient Matching for Domain Generalization. ICLR 2022.

The method: from the weights w, a step on a batch of each domain in turn leads to w'. Then w <- w + rate * (w' - w). To first
order that ascends the inner products of the domains' gradients. That needs several domains in one place: clients with
several of them, or a centralized run. A client that holds one domain has steps of `rate` times their length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.core.types import Batch, Work
from unseen.method import Method, Range
from unseen.nets.parts.shifted import stepped


@dataclass(frozen=True)
class Fish(Method):
    name: ClassVar[str] = "fish"
    year: ClassVar[int] = 2022
    family: ClassVar[str] = "gradients"
    ranges: ClassVar[Mapping[str, Range]] = {"rate": Range(0.05, 1.0)}

    rate: float = 0.5  # epsilon, how much of the way over all domains counts; 0.05, 0.1 or 0.5 in DomainBed

    def step(self, work: Work, batch: Batch) -> None:
        parameters = stepped(work.optimizers["main"])
        before = [parameter.detach().clone() for parameter in parameters]
        for part in domains_of(batch, work.rng):
            super().step(work, part)
        with torch.no_grad():
            for parameter, start in zip(parameters, before, strict=True):
                parameter.copy_(start + self.rate * (parameter - start))


def domains_of(batch: Batch, rng: torch.Generator) -> list[Batch]:
    """A batch by domain, in random order. A domain with one image in it is left out: BatchNorm needs two."""
    found: list[int] = batch.domain.unique().tolist()  # type: ignore[no-untyped-call]
    order = torch.randperm(len(found), generator=rng).tolist()
    rows = [batch.domain == found[place] for place in order]
    parts = [Batch(batch.x[own], batch.y[own], batch.domain[own]) for own in rows if int(own.sum()) > 1]
    return parts or [batch]
