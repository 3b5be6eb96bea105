"""The exact answer of a linear layer with a bias: its input can be read from one step's gradient by a division.

Of a layer z = W a + b the gradients are dL/dW = dL/dz a' and dL/db = dL/dz, so that any row of the first over the same
entry of the second is the input a (Phong et al. 2017; Geiping et al. 2020, Sec. 3). In a network the last linear layer
gives the features of the image, exactly for a batch of one; with them the image is found among candidates. In larger
batches the row of a class is dominated by the images of this class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from unseen.audits.attack import Known, Observed, Truth, rows_of, update_of
from unseen.audits.crossed import last_linear, model_entries
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import candidates_of_a_class, likeness, of_100
from unseen.audits.record import Exchanged
from unseen.core.types import Batch

CANDIDATES = 100
FEWEST = 32  # images, however small the effort: they are cheap


def layer_input(weight_slope: Tensor, bias_slope: Tensor, row: int | None = None) -> Tensor:
    """What went into a linear layer, from its gradients: by the row with the largest gradient, or by a given one."""
    chosen = int(bias_slope.abs().argmax()) if row is None else row
    return weight_slope[chosen] / bias_slope[chosen]


@dataclass(frozen=True)
class HeadFeatures:
    name: ClassVar[str] = "features from the head"
    plays: ClassVar[Plays] = "coordinator"

    batches: Sequence[int] = (1, 4, 16)
    trials: int = 64  # images

    def fits(self, observed: Observed, known: Known) -> bool:
        found = last_linear(known.net)
        return found is not None and f"{found[0]}.bias" in model_entries(observed.first, known.net)

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        one = observed.first
        pool = truth.members(one.client, CANDIDATES)
        return [self._tried(size, one, pool, known) for size in self.batches]

    def _tried(self, size: int, one: Exchanged, pool: Batch, known: Known) -> Finding:
        try:
            return self._batches(size, one, pool, known)
        except ValueError as error:  # a BatchNorm over features trains on no single image: no client sends such a step
            return Finding(self.name, self.plays, f"one step of {size}", real=False, failed=str(error))

    def _batches(self, size: int, one: Exchanged, pool: Batch, known: Known) -> Finding:
        alone = size == 1
        candidates = self._inputs(one, pool, known, alone)
        hits, victims = 0, []
        for first in range(0, known.times(self.trials, FEWEST) // size * size, size):
            rows = torch.arange(first, first + size) % len(pool)
            victims.append(pool.y[rows])
            guesses = self._guesses(one, rows_of(pool, rows), known)
            nearest = likeness(guesses, candidates).argmax(1)
            for place, found in zip(rows.tolist(), nearest.tolist(), strict=True):
                hits += found in rows.tolist() and int(pool.y[found]) == int(pool.y[place])
        layer = last_linear(known.net)
        assert layer is not None
        return Finding(
            attack=self.name,
            plays=self.plays,
            saw=f"the update of {layer[0]} after one step of {size}",
            real=False,
            identified_of_100=of_100(hits, size * len(victims), candidates_of_a_class(pool.y, victims)),
            words=f"1 step of {size}; first round, no augmentation, labels given; chance is a guess by the label alone.",
        )

    def _guesses(self, one: Exchanged, victim: Batch, known: Known) -> Tensor:
        held = victim if len(victim) > 1 else rows_of(victim, torch.tensor([0, 0]))
        reply = known.reply(held, one, batch_size=len(victim), local_steps=1, local_epochs=None)
        layer = last_linear(known.net)
        assert layer is not None
        before = {**known.initial, **one.received}
        after = model_entries(replace(one, state=reply.state, report=reply.report), known.net)
        update = update_of(before, after, [f"{layer[0]}.weight", f"{layer[0]}.bias"])
        slopes = known.gradient_of(update, replace(one, received=before), 1)
        weight, bias = slopes[f"{layer[0]}.weight"], slopes[f"{layer[0]}.bias"]
        if len(victim) == 1:
            return layer_input(weight, bias)[None]
        return torch.stack([layer_input(weight, bias, int(label)) for label in victim.y])

    def _inputs(self, one: Exchanged, pool: Batch, known: Known, alone: bool) -> Tensor:
        """What goes into the layer for each candidate, norms in train mode: each alone, or all in one batch."""
        work = known.work(one, pool)
        found = last_linear(known.net)
        assert found is not None
        seen: list[Tensor] = []
        hook = found[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
        try:
            parts = [rows_of(pool, torch.tensor([n])) for n in range(len(pool))] if alone else [pool]
            for part in parts:
                before = len(seen)
                with torch.no_grad():
                    known.method.loss(work, part)
                del seen[before + 1 :]  # methods that look at a batch twice
        finally:
            hook.remove()
        return torch.cat([rows[: 1 if alone else len(pool)] for rows in seen])
