"""Which kind of images does an update come from?

The coordinator has some images of each kind (other scanners, other drawing styles). He plays a client with each of them
for a few steps, from the model that the clients had, and takes the kind whose simulated change is most like the change
that came: of all weights and running statistics, each tensor scaled to length one, after what all changes have in common
was taken out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth
from unseen.audits.crossed import model_entries
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import proportion
from unseen.audits.record import Exchanged


def kinds_of(changes: Tensor, simulated: Tensor) -> Tensor:
    """For each row the simulated kind with the highest cosine, after the mean row was taken out of both."""
    one, two = (rows - rows.mean(0) for rows in (changes, simulated))
    one, two = (rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12) for rows in (one, two))
    cosines: Tensor = one @ two.T
    return cosines.argmax(1)


@dataclass(frozen=True)
class DomainOfUpdate:
    name: ClassVar[str] = "kind of images from updates"
    plays: ClassVar[Plays] = "coordinator"

    images: int = 64  # that the attacker has of each kind
    steps: int = 5

    def fits(self, observed: Observed, known: Known) -> bool:
        return len(observed.clients) > 1

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        clients, right, asked = observed.clients, 0, 0
        rounds = sorted({one.round for one in observed.exchanges})
        for number in rounds:
            there = [one for one in observed.exchanges if one.round == number]
            played = [self._played(there[0], client, known, truth) for client in clients]
            names = self._names(there, known)
            before = {**known.initial, **there[0].received}
            real = torch.stack([_change(model_entries(one, known.net), before, names) for one in there])
            simulated = torch.stack([_change(state, before, names) for state in played])
            guesses = kinds_of(real, simulated)
            right += sum(clients[g] == one.client for g, one in zip(guesses.tolist(), there, strict=True))
            asked += len(there)
        return [
            Finding(
                attack=self.name,
                plays=self.plays,
                saw=f"the updates of rounds {', '.join(map(str, rounds))}",
                real=True,
                scores={"sites told right": proportion(right, asked, 1 / len(clients))},
                words=f"{asked} updates; the attacker has {self.images} other images of each kind.",
            )
        ]

    def _played(self, one: Exchanged, client: str, known: Known, truth: Truth) -> Mapping[str, Tensor]:
        images = truth.held_out(client, self.images)
        reply = known.reply(images, one, augmented=True, local_steps=self.steps, local_epochs=None)
        return model_entries(replace(one, state=reply.state, report=reply.report), known.net)

    def _names(self, there: list[Exchanged], known: Known) -> list[str]:
        entries = model_entries(there[0], known.net)
        whole = {**known.initial, **there[0].received}
        return sorted(name for name, value in entries.items() if value.is_floating_point() and name in whole)


def _change(state: Mapping[str, Tensor], before: Mapping[str, Tensor], names: list[str]) -> Tensor:
    parts = [(state[name].double() - before[name].double()).flatten() for name in names]
    return torch.cat([part / part.norm().clamp_min(1e-12) for part in parts])
