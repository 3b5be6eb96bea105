"""How many images of each class: from the head's bias alone.

The gradient of cross-entropy with respect to the bias of class k is the mean over images of p_k, less the share of images
of class k (Zhao et al. 2020; Wainakh et al. 2022). The attacker estimates the mean p_k by the model's answers to public
images, before and after the client's steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, rows_of, update_of
from unseen.audits.crossed import last_linear, lent, model_entries
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import mean
from unseen.audits.record import Exchanged
from unseen.core.tensors import load
from unseen.core.types import Batch, Tensors


def shares_from(bias_slope: Tensor, mean_probability: Tensor) -> Tensor:
    """The share of images of each class, from the mean gradient of the bias."""
    shares = (mean_probability - bias_slope).clamp_min(0)
    return shares / shares.sum().clamp_min(1e-12)


def overlap(guess: Tensor, true: Tensor) -> float:
    """The part of the images that two class histograms agree on: one minus their total variation distance."""
    return float(torch.minimum(guess, true.double()).sum())


@dataclass(frozen=True)
class LabelCounts:
    name: ClassVar[str] = "class counts from the head"
    plays: ClassVar[Plays] = "coordinator"

    trials: int = 8
    batch: int = 16

    def fits(self, observed: Observed, known: Known) -> bool:
        found = last_linear(known.net)
        return found is not None and f"{found[0]}.bias" in model_entries(observed.first, known.net)

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        real = self._real(observed, known, truth)
        return [self._one_step(observed, known, truth), real, *lent([real], observed, known.net)]

    def _one_step(self, observed: Observed, known: Known, truth: Truth) -> Finding:
        one, found, blind = observed.first, [], []
        pool = truth.members(one.client, self.batch * known.times(self.trials, 8))
        for first in range(0, len(pool) - self.batch + 1, self.batch):
            victim = rows_of(pool, slice(first, first + self.batch))
            reply = known.reply(victim, one, batch_size=self.batch, local_steps=1, local_epochs=None)
            true = torch.bincount(victim.y, minlength=known.net.classes) / len(victim)
            guess = self._guess(replace(one, state=reply.state, report=reply.report), known, 1)
            found.append(overlap((guess * len(victim)).round() / len(victim), true))
            blind.append(overlap(torch.full_like(guess, 1 / len(guess)), true))
        return self._finding(found, blind, f"one step of {self.batch}", real=False)

    def _real(self, observed: Observed, known: Known, truth: Truth) -> Finding:
        found, blind = [], []
        for one in observed.exchanges:
            if one.round != observed.first.round:
                continue  # a head of the client's own begins where the attacker knows it only in the first round
            labels = truth.sites[one.client].train.labels
            true = torch.bincount(labels, minlength=known.net.classes) / len(labels)
            guess = self._guess(one, known, known.steps(one))
            found.append(overlap(guess, true))
            blind.append(overlap(torch.full_like(guess, 1 / len(guess)), true))
        return self._finding(found, blind, f"round {observed.first.round} of the run", real=True)

    def _finding(self, found: list[float], blind: list[float], when: str, real: bool) -> Finding:
        chance = sum(blind) / len(blind)
        return Finding(
            attack=self.name,
            plays=self.plays,
            saw=f"the update of the head's bias: {when}",
            real=real,
            scores={"images counted right": mean(found, chance, least=0.0, most=1.0)},
            words=f"{when}; chance is the guess that all classes are equally frequent.",
        )

    def _guess(self, one: Exchanged, known: Known, steps: int) -> Tensor:
        layer = last_linear(known.net)
        assert layer is not None
        name = f"{layer[0]}.bias"
        before = {**known.initial, **one.received}
        after = {**before, **model_entries(one, known.net)}
        slopes = known.gradient_of(update_of(before, after, [name]), replace(one, received=before), steps)
        answers = [self._answers(state, one, known) for state in ([before] if steps == 1 else [before, after])]
        return shares_from(slopes[name], torch.stack(answers).mean(0))

    def _answers(self, state: Tensors, one: Exchanged, known: Known) -> Tensor:
        """Mean probabilities on public images, norms in train mode as a client's are."""
        public: Batch = known.public
        work = known.work(one, public)
        load(known.net, state)
        seen: list[Tensor] = []
        found = last_linear(known.net)
        assert found is not None
        hook = found[1].register_forward_hook(lambda _, __, logits: seen.append(logits.detach()))
        try:
            with torch.no_grad():
                known.method.loss(work, rows_of(public, slice(0, 64)))
        finally:
            hook.remove()
        return seen[0].double().softmax(1).mean(0)
