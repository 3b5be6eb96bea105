"""DP: local differential privacy. A client's whole update is clipped, and noise is added before it leaves.

Clipping and Gaussian noise for a client's update: McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent
Language Models, ICLR 2018; here the client itself adds the noise. The account is in `core/accountant.py`.

The method: after its last step a client takes its change of all that it sends, shortens it to the norm C where it is longer,
and adds N(0, (2 C z)^2) to every number. Two changes are at most 2 C apart, whatever the client's images are, so that a
round is private for the site's images as a whole, and rounds add up. The rest is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Forms
from unseen.core.seeding import private_generator
from unseen.core.tensors import load
from unseen.core.types import Tensors, Work
from unseen.method import ALL_LOADED, WEIGHTS_ALONE, Method, Traits
from unseen.nets.parts.clipping import change_of, clipped, moved, norm_of


@dataclass(frozen=True)
class DP(Method):
    name: ClassVar[str] = "dp"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "privacy"
    traits: ClassVar[Traits] = Traits(needs=frozenset({WEIGHTS_ALONE, ALL_LOADED}))

    clip: float = 1.0  # C, the largest norm of a client's change
    noise: float = 1.0  # z, the noise in multiples of the sensitivity 2 C; 0: clipping alone, which is no privacy
    delta: float = 1e-5  # for which epsilon is told

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.clip > 0 and self.noise >= 0 and 0 < self.delta < 1):
            raise UserError("dp needs clip > 0, noise >= 0 and 0 < delta < 1.")

    @property
    def about(self) -> Traits:
        words = f"local noise {self.noise:g}" if self.noise else "clipping alone"
        return replace(self.traits, noise=self.noise, delta=self.delta if self.noise else None, remark=words)

    def forms(self, asked: Asked) -> Forms:
        return Forms()  # its report changes the weights before they leave, and tells nothing

    def prepare(self, work: Work) -> None:
        share = work.method.share(work.net)
        if share.up - share.down:
            raise UserError(
                "dp adds noise to what clients load and send; this method keeps a part of it at the client."
            )

    def report(self, work: Work) -> Tensors:
        sent = sorted(work.method.share(work.net).up)
        change = change_of(work.received, work.net.state_dict(), sent)
        work.note("dp.norm", norm_of(change))
        change = clipped(change, self.clip)
        if (epsilon := self.about.epsilon(work.plan.rounds)) is not None:
            work.note("dp.epsilon", epsilon)  # of all rounds: where a site alone adds noise, its replies say how much
            rng = private_generator(work.plan.seed, round=work.round, client=work.client, purpose="local noise")
            spread = 2 * self.clip * self.noise
            change = {
                name: value + spread * torch.randn(value.shape, generator=rng, dtype=value.dtype)
                for name, value in change.items()
            }
        load(work.net, moved(work.received, change, sent))
        return {}
