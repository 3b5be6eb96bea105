"""Style statistics: whose are they, and is this image behind them?

The attacker computes the same statistics of any image he has, by the method's own survey and the model that the client
had. *Which site*: the statistics of the run against those of other images of each site. *Which image*: a client tells the
style of k images; of 100 candidates, one of which is among the k, the nearest one is named. With k = 1 this is a look in a
table; it falls as k grows, unless the styles of single images are told, row by row.
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
FEWEST = 16  # trials, however small the effort: they are cheap


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
        one = found[0][0]
        game = Game.of(one.client, known.times(self.trials, FEWEST), max(self.behind), truth)
        single = centres(game.candidates, one, known)
        findings = [self._site(found, observed, known, truth)]
        findings += [self._image(count, game, single, one, known) for count in self.behind]
        return findings + also_at_sites(findings, found, observed)

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

    def _image(self, count: int, game: Game, single: Tensor, one: Exchanged, known: Known) -> Finding:
        told = [centres_told(group, one, known, augmented=True) for group in game.groups(count)]
        hits = sum(named(rows, single) == trial for trial, rows in enumerate(told))
        return Finding(
            attack=f"{self.name}: {behind_words(count)}",
            plays=self.plays,
            saw=f"the style of {count} image{'s' * (count > 1)}",
            real=False,
            identified_of_100=of_100(hits, len(told), len(game.candidates)),
            words="one of the images is among 100 candidates; measured as the client does, augmentation included.",
        )


@dataclass(frozen=True)
class Game:
    """100 candidates of a site; of each of the first ones the site tells the style, alone or with others of its images."""

    candidates: Batch
    others: Batch
    trials: int

    @classmethod
    def of(cls, client: str, trials: int, most: int, truth: Truth) -> Game:
        pool = truth.members(client, CANDIDATES + trials * (most - 1))
        candidates = rows_of(pool, slice(0, CANDIDATES))
        return cls(candidates, rows_of(pool, slice(len(candidates), None)), min(trials, len(candidates)))

    def groups(self, count: int) -> list[Batch]:
        """The images behind each vector: the candidate first."""
        groups = [rows_of(self.candidates, torch.tensor([trial])) for trial in range(self.trials)]
        if count == 1 or not len(self.others):
            return groups
        return [joined([own, self._others(trial, count - 1)]) for trial, own in enumerate(groups)]

    def _others(self, trial: int, count: int) -> Batch:
        return rows_of(self.others, torch.arange(trial * count, (trial + 1) * count) % len(self.others))


def behind_words(count: int) -> str:
    return f"{count} image{'s' * (count > 1)} behind a vector"


def also_at_sites(
    findings: list[Finding], found: list[tuple[Exchanged, str, Tensor]], observed: Observed
) -> list[Finding]:
    """The same findings for a curious site, where the styles are handed on."""
    if not any(handed_on(value, [one.brief for one in observed.exchanges]) for _, _, value in found):
        return []
    return [
        replace(f, plays="site", words=f"{f.words} The same numbers were handed on to other sites.", pictures={})
        for f in findings
    ]


def centres_told(images: Batch, one: Exchanged, known: Known, augmented: bool = False) -> Tensor:
    """The channel means and spreads that a client with these images would tell: one row, or one for each of some images.

    How they spread over images is left out: it says nothing of one image.
    """
    told = _told(images, one, known, augmented)
    return told.flatten(1) if told.ndim == 3 else told[:2].reshape(1, -1)


def centres(images: Batch, one: Exchanged, known: Known) -> Tensor:
    """Of each image alone."""
    return torch.cat([centres_told(rows_of(images, torch.tensor([n])), one, known) for n in range(len(images))])


def named(rows: Tensor, candidates: Tensor) -> int:
    """The candidate that one of the rows is nearest to, each column scaled by its spread over the candidates."""
    spread = candidates.double().std(0).clamp_min(1e-9)
    return int(torch.cdist(rows.double() / spread, candidates.double() / spread).min(0).values.argmin())


def _told(images: Batch, one: Exchanged, known: Known, augmented: bool = False) -> Tensor:
    """The style that a client with these images would tell."""
    report = known.reply(images, one, kind="survey", augmented=augmented).report
    return next(value for value in report.values() if is_style(value, known.net))


def _vector(value: Tensor) -> Tensor:
    """One vector per site: 2 x C or 4 x C as it is, N x 2 x C by its mean and its spread over the N."""
    rows = value if value.ndim == 2 else torch.cat([value.mean(0), value.var(0, correction=0)])
    return rows.flatten()
