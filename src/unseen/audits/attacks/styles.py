"""Style statistics: whose are they, and is this image behind them?

The attacker computes the same statistics of any image he has, by the method's own survey and the model that the client
had. *Which site*: the statistics of the run against those of other images of each site. *Which image*: a client tells the
style of k images; of 100 candidates, one of which is among the k, the nearest one is named. With k = 1 this is a look in a
table; it falls as k grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, joined, rows_of
from unseen.audits.crossed import handed_on, is_style, surveyed
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import nearest, of_100, proportion
from unseen.audits.record import Exchanged
from unseen.core.types import Batch

CANDIDATES = 100


@dataclass(frozen=True)
class StyleMatching:
    name: ClassVar[str] = "style matching"
    plays: ClassVar[Plays] = "coordinator"

    behind: Sequence[int] = (1, 4, 16, 64)  # k: images behind one vector
    trials: int = 25

    def fits(self, observed: Observed, known: Known) -> bool:
        return bool(surveyed(observed, known, "styles"))

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        found = surveyed(observed, known, "styles")
        handed = any(handed_on(value, [one.brief for one in observed.exchanges]) for _, _, value in found)
        findings = [self._site(found, observed, known, truth)]
        findings += [self._image(count, found[0][0], known, truth) for count in self.behind]
        if handed:
            findings += [
                replace(f, plays="site", words=f"{f.words} The same numbers were handed on to other sites.")
                for f in findings
            ]
        return findings

    def _site(
        self, found: list[tuple[Exchanged, str, Tensor]], observed: Observed, known: Known, truth: Truth
    ) -> Finding:
        right = 0
        clients = observed.clients
        for one, _, value in found:
            kinds = torch.stack([_vector(_told(truth.held_out(c, 64), one, known)) for c in clients])
            right += clients[int(nearest(_vector(value)[None], kinds))] == one.client
        return Finding(
            attack=f"{self.name}: which site",
            plays=self.plays,
            saw="the style statistics of the run",
            real=True,
            scores={"sites told right": proportion(right, len(found), 1 / len(clients))},
            words=f"{len(found)} vectors; the attacker has 64 other images of each site.",
        )

    def _image(self, count: int, one: Exchanged, known: Known, truth: Truth) -> Finding:
        trials = known.times(self.trials, 4)
        pool = truth.members(one.client, CANDIDATES + trials * (count - 1))
        candidates = rows_of(pool, slice(0, min(CANDIDATES, len(pool))))
        rest = rows_of(pool, slice(len(candidates.y), None))
        single = torch.stack(
            [_vector(_told(rows_of(candidates, torch.tensor([n])), one, known)) for n in range(len(candidates))]
        )
        # Spread over images says nothing of one image: only the means are compared.
        means = slice(0, single.shape[1] // 2)
        hits = 0
        for trial in range(trials):
            own = rows_of(candidates, torch.tensor([trial]))
            group = own
            if count > 1 and len(rest):
                rows = torch.arange(trial * (count - 1), (trial + 1) * (count - 1)) % len(rest)
                group = joined([own, rows_of(rest, rows)])
            told = _vector(_told(group, one, known, augmented=True))
            hits += int(nearest(told[None, means], single[:, means])) == trial
        return Finding(
            attack=f"{self.name}: {count} image{'s' * (count > 1)} behind a vector",
            plays=self.plays,
            saw=f"the style of {count} image{'s' * (count > 1)}",
            real=False,
            identified_of_100=of_100(hits, trials, len(candidates)),
            words="one of the images is among 100 candidates; measured as the client does, augmentation included.",
        )


def _told(images: Batch, one: Exchanged, known: Known, augmented: bool = False) -> Tensor:
    """The style that a client with these images would tell."""
    report = known.reply(images, one, kind="survey", augmented=augmented).report
    return next(value for value in report.values() if is_style(value, known.net))


def _vector(value: Tensor) -> Tensor:
    """One vector per site: 4 x C as it is (means first), N x 2 x C by its mean over the N."""
    rows = value if value.ndim == 2 else torch.cat([value.mean(0), value.var(0, correction=0)])
    return rows.flatten()
