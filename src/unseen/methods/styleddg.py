"""StyleDDG with a server: every client's styles are known to all others; images take them, go beyond them and mix them.

Zehtabi, Han, Hosseinalipour, Brinton: Decentralized Domain Generalization with Style Sharing: Formal Model and Convergence
Analysis. 2025. There neighbours in a network exchange models and styles without a server; here all are neighbours of all.

The method: a client tells, after each of the first stages, mean and variance over its images of the channel means and
standard deviations. In a step, with probability p after each of them: half of the batch takes styles drawn near those of
one other client; another half goes `alpha` times farther from the batch's centre; then every style is mixed with another
one, by a share from Beta(mixing, mixing). Models are averaged with equal weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.core.forms import Asked, Form, Forms
from unseen.core.types import ClientId, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.neighbours import NeighbourStyles, measuring
from unseen.nets.parts.style_space import as_in_training, summary
from unseen.nets.surgery import insert_after


@dataclass(frozen=True)
class StyleDDG(Method):
    name: ClassVar[str] = "styleddg"
    year: ClassVar[int] = 2025
    family: ClassVar[str] = "styles"
    traits: ClassVar[Traits] = Traits(
        sends="style statistics after the first stages: mean and variance over its images of the channel means and "
        "standard deviations, handed on to all other clients",
        remark="all clients are neighbours, by a server",
        counts_images=False,
    )
    ranges: ClassVar[Mapping[str, Range]] = {"p": Range(0.2, 1.0, log=False), "alpha": Range(0.3, 5.0)}

    p: float = 0.5  # probability of new styles, per batch and stage
    alpha: float = 1.0  # how far beyond the batch's styles
    mixing: float = 0.1  # of Beta(mixing, mixing)
    stages: tuple[int, ...] = (0, 1, 2)  # after which styles are told and changed

    def build(self, net: Net) -> Net:
        return insert_after(net, self.stages, lambda: NeighbourStyles(self.p, self.alpha, self.mixing))

    def surveys(self, round: int) -> bool:
        return True

    def survey(self, work: Work) -> Tensors:
        modules = work.net.norms(NeighbourStyles)
        order = torch.randperm(len(work.site.train), generator=work.rng)
        batches = max(1, round(len(order) / work.plan.batch_size))  # of about the plan's size: no image is left out
        with as_in_training(work.net), measuring(modules):
            for rows in torch.tensor_split(order, batches):
                work.net.maps(work.fetch(rows).x)
            told = [(torch.cat(parts) for parts in zip(*module.heard or (), strict=True)) for module in modules]
            return {f"stage{number}": summary(*parts).cpu() for number, parts in zip(self.stages, told, strict=True)}

    def forms(self, asked: Asked) -> Forms:
        least = torch.tensor([[-torch.inf], [0.0], [0.0], [0.0]])  # only means may be negative
        channels = asked.net.stage_channels
        return Forms(survey={f"stage{stage}": Form((4, channels[stage]), least=least) for stage in self.stages})

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        notes: dict[ClientId, Tensors] = {}
        for client in chosen:
            others = [surveys[other] for other in sorted(surveys) if other != client]
            if others:
                notes[client] = {name: torch.stack([other[name] for other in others]) for name in others[0]}
        return notes

    def prepare(self, work: Work) -> None:
        for stage, module in zip(self.stages, work.net.norms(NeighbourStyles), strict=True):
            module.received = work.brief.get(f"stage{stage}")
