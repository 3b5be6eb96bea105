"""How many images of each class: from the running means of the norm layers.

A norm layer's running mean is the mean of what went into it over the site's images, so that it is the mixture of what
goes in for each class, weighed by the class counts. The attacker has the site's weights and some labelled images of the
same kind: he measures the classes' own means with them, and takes the shares whose mixture is nearest to what was sent.
The last layers are taken, whose inputs tell classes best. (With images of another kind, another scanner say, their
difference is larger than that of the classes.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from unseen.audits.attack import Known, Observed, Truth
from unseen.audits.attacks.labels import overlap
from unseen.audits.crossed import lent, model_entries
from unseen.audits.findings import Finding, Plays
from unseen.audits.measures import mean
from unseen.audits.record import Exchanged
from unseen.core.tensors import load
from unseen.core.types import Batch
from unseen.nets.net import Net
from unseen.nets.norms.layers import XAN

MOMENTUM = 0.1  # of running means, torch's and ours
TRUST = 1e3  # how much more than any channel it counts that shares add up to one


def shares_behind(mixture: Tensor, of_class: Tensor) -> Tensor:
    """Shares, none below zero, of the rows of `of_class` (K x C) whose mixture is nearest to a vector of C."""
    rows = torch.cat([of_class.T, TRUST * torch.ones(1, len(of_class))]).double()
    goal = torch.cat([mixture.double(), torch.tensor([TRUST]).double()])
    shares = torch.from_numpy(nnls(rows.numpy(), goal.numpy())[0])
    return shares / shares.sum().clamp_min(1e-12)


@dataclass(frozen=True)
class NormCounts:
    name: ClassVar[str] = "class counts from norm layers"
    plays: ClassVar[Plays] = "coordinator"

    images: int = 200  # that the attacker has of each kind, fewer where the site held out fewer
    layers: int = 3  # the last ones

    def fits(self, observed: Observed, known: Known) -> bool:
        there = model_entries(observed.first, known.net)
        return any(key in there for key in running_means(known.net).values())

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        found, blind = [], []
        for one in observed.exchanges:
            if one.round != observed.first.round:
                continue  # norms of the client's own begin where the attacker knows it only in the first round
            labels = truth.sites[one.client].train.labels
            true = torch.bincount(labels, minlength=known.net.classes).double() / len(labels)
            found.append(overlap(self.guess(one, truth.held_out(one.client, self.images), known), true))
            blind.append(overlap(torch.full_like(true, 1 / len(true)), true))
        when = f"round {observed.first.round} of the run"
        real = Finding(
            attack=self.name,
            plays=self.plays,
            saw=f"the norm layers' running means: {when}",
            real=True,
            scores={"images counted right": mean(found, sum(blind) / len(blind), least=0.0, most=1.0)},
            words=f"{when}; the attacker has up to {self.images} other images of each kind; chance is the guess that all "
            "classes are equally frequent.",
        )
        return [real, *lent([real], observed, known.net)]

    def guess(self, one: Exchanged, own: Batch, known: Known) -> Tensor:
        """The share of each class, from one reply and the attacker's own images."""
        before = {**known.initial, **one.received}
        after = {**before, **model_entries(one, known.net)}
        load(known.net, after)
        steps = known.steps(one)
        inputs = norm_inputs(known.net, own.x)
        classes = torch.bincount(own.y, minlength=known.net.classes).nonzero()[:, 0]
        mixture, of_class = [], []
        for name, values in list(inputs.items())[-self.layers :]:
            spread = values.std(0).clamp_min(1e-9)
            key, left = running_means(known.net)[name], (1 - MOMENTUM) ** steps
            site = (after[key].double() - left * before[key].double()) / (1 - left)  # without what it began with
            mixture.append(site / spread)
            of_class.append(torch.stack([values[own.y == k].mean(0) for k in classes]) / spread)
        shares = torch.zeros(known.net.classes, dtype=torch.float64)
        shares[classes] = shares_behind(torch.cat(mixture), torch.cat(of_class, dim=1))
        return shares


def running_means(net: Net) -> dict[str, str]:
    """The layers whose input has a running mean, with its name in the state."""
    kinds = (nn.modules.batchnorm._BatchNorm, XAN)
    return {
        name: f"{name}.bn.running_mean" if isinstance(layer, XAN) else f"{name}.running_mean"
        for name, layer in net.named_modules()
        if isinstance(layer, kinds)
    }


def norm_inputs(net: Net, x: Tensor) -> dict[str, Tensor]:
    """What goes into each of these layers, N x C: the mean over pixels, in the order of the forward pass."""
    seen: dict[str, list[Tensor]] = {}

    def listen(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: seen.setdefault(name, []).append(_means(inputs[0].detach()))

    hooks = [net.get_submodule(name).register_forward_pre_hook(listen(name)) for name in running_means(net)]
    net.eval()
    try:
        with torch.no_grad():
            for part in torch.split(x, 64):
                net.features(part)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in seen.items()}


def _means(maps: Tensor) -> Tensor:
    return maps.double().reshape(*maps.shape[:2], -1).mean(2)
