"""Class counts that are sent as they are, or that class means and gradients of the head tell: the attacker reads them.

The gradient of the head's bias over all images of a site is the mean of the probabilities less the class shares (see
`labels`); the attacker takes the probabilities from public images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.audits.attack import Known, Observed, Truth
from unseen.audits.attacks.labels import overlap, shares_from
from unseen.audits.crossed import is_counts, is_prototypes, told_slope
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import mean, proportion


@dataclass(frozen=True)
class ToldClasses:
    name: ClassVar[str] = "classes that are told"
    plays: ClassVar[Plays] = "coordinator"

    def fits(self, observed: Observed, known: Known) -> bool:
        return (
            any(
                is_counts(value, known.net) or is_prototypes(value, known.net)
                for one in observed.exchanges
                for value in one.report.values()
            )
            or told_slope(observed.first, known.net) is not None
        )

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        shares, blind, right, asked = [], [], 0, 0
        for one in observed.exchanges:
            labels = truth.sites[one.client].train.labels
            true = torch.bincount(labels, minlength=known.net.classes).double() / len(labels)
            guesses = [
                value.double() / value.double().sum()
                for value in one.report.values()
                if is_counts(value, known.net) and float(value.sum()) > 0
            ]
            slope = told_slope(one, known.net)
            if slope is not None:
                answers = known.predict(one.received, known.public.x).double().softmax(1).mean(0)
                guesses.append(shares_from(slope.double(), answers))
            shares += [overlap(guess, true) for guess in guesses]
            blind += [overlap(torch.full_like(true, 1 / len(true)), true)] * len(guesses)
            for value in one.report.values():
                if is_prototypes(value, known.net):
                    right += int(((value.abs().sum(1) > 0) == (true > 0)).sum())
                    asked += known.net.classes
        scores = {}
        if shares:
            scores["images counted right"] = mean(shares, sum(blind) / len(blind), least=0.0, most=1.0)
        if asked:
            scores["classes told right (there or not)"] = proportion(right, asked)
        return [
            Finding(
                attack=self.name,
                plays=self.plays,
                saw="what each site told of its classes: counts, mean features, or the head's gradient",
                real=True,
                scores=scores,
                words="chance of the counts is the guess that all classes are equally frequent.",
            )
        ]
