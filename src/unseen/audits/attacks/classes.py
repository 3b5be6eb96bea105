"""Class counts and class means that are sent as they are: the attacker only reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unseen.audits.attack import Known, Observed, Truth
from unseen.audits.attacks.labels import overlap
from unseen.audits.crossed import is_counts, is_prototypes
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import mean, proportion


@dataclass(frozen=True)
class ToldClasses:
    name: ClassVar[str] = "classes that are told"
    plays: ClassVar[Plays] = "coordinator"

    def fits(self, observed: Observed, known: Known) -> bool:
        return any(
            is_counts(value, known.net) or is_prototypes(value, known.net)
            for one in observed.exchanges
            for value in one.report.values()
        )

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        shares, blind, right, asked = [], [], 0, 0
        for one in observed.exchanges:
            labels = truth.sites[one.client].train.labels
            true = torch.bincount(labels, minlength=known.net.classes).double() / len(labels)
            for value in one.report.values():
                if is_counts(value, known.net) and float(value.sum()) > 0:
                    shares.append(overlap(value.double() / value.double().sum(), true))
                    blind.append(overlap(torch.full_like(true, 1 / len(true)), true))
                elif is_prototypes(value, known.net):
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
                saw="each site's mean features and counts by class",
                real=True,
                scores=scores,
                words="chance of the counts is the guess that all classes are equally frequent.",
            )
        ]
