"""Gradient matching: images whose update is like the one that was sent.

Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients: How easy is it to break privacy in federated learning?
NeurIPS 2020. The distance of two updates is one minus their cosine; total variation keeps the images smooth; Adam goes by
the signs of the gradient, and its rate falls by ten after 3/8, 5/8 and 7/8 of the iterations. Several local steps are
simulated one after the other, and the whole update is matched.

An upper bound: no augmentation, the labels and their order are given (labels can be read from the head's update), and the
candidates are of the same site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unseen.audits.attack import Known, Observed, Truth, rows_of, update_of
from unseen.audits.findings import Finding, Picture, Plays
from unseen.audits.measures import candidates_of_a_class, likeness, mean, of_100, psnr, side_by_side
from unseen.audits.record import Exchanged
from unseen.core.seeding import torch_generator
from unseen.core.types import Batch, Tensors, Work

CANDIDATES = 100


@dataclass(frozen=True)
class Case:
    """A client with so many images, trained on for so many local epochs in batches of so many."""

    images: int
    batch: int
    epochs: int = 1
    trials: int = 1
    fewest: int = 1  # trials, however small the effort
    norms: Literal["train", "eval"] = "train"
    least: int = 100  # iterations, however small the effort: fewer leave noise of a single image
    spared: bool = False  # left out where the effort is too small for one trial of it

    @property
    def steps(self) -> int:
        return self.epochs * self.images // self.batch

    @property
    def words(self) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"{self.images} image{'s' * (self.images > 1)}, {steps} of {self.batch}, norms in {self.norms} mode"


CASES = (
    Case(1, 1, trials=8, fewest=4),
    Case(1, 1, trials=8, fewest=4, norms="eval"),
    Case(4, 4, trials=2, least=60),
    Case(16, 16, least=30),
    Case(4, 4, epochs=4, trials=2, spared=True),
    Case(16, 4, least=30),
)


@dataclass(frozen=True)
class GradientMatching:
    name: ClassVar[str] = "gradient matching"
    plays: ClassVar[Plays] = "coordinator"

    cases: Sequence[Case] = CASES
    iterations: int = 200
    rate: float = 0.1
    smoothness: float = 0.1  # weight of the total variation

    def fits(self, observed: Observed, known: Known) -> bool:
        return any(name in known.stepped for name in observed.first.state) and known.plan.optimizer.name == "sgd"

    def attack(self, observed: Observed, known: Known, truth: Truth) -> list[Finding]:
        tried = [case for case in self.cases if not case.spared or known.effort * case.trials >= 1]
        return [self._case(case, observed.first, known, truth) for case in tried]

    def _case(self, case: Case, one: Exchanged, known: Known, truth: Truth) -> Finding:
        pool = truth.members(one.client, CANDIDATES)
        trials = known.times(case.trials, case.fewest)
        hits, noise, shown, labels = 0, [], [], []
        for trial in range(trials):
            rows = torch.arange(trial * case.images, (trial + 1) * case.images) % len(pool)
            victim = rows_of(pool, rows)
            sent, victim = self._sent(case, victim, one, known)
            guess = self._reconstruct(case, sent, victim, one, known, trial)
            nearest = likeness(guess, pool.x).argmax(1)
            for place, found in enumerate(nearest.tolist()):
                # Images of one class in one batch have no order: each may be found at the place of the other.
                hits += any(
                    bool(torch.equal(pool.x[found], x)) and int(y) == int(victim.y[place])
                    for x, y in zip(victim.x, victim.y, strict=True)
                )
            noise += [psnr(a, b) for a, b in zip(guess, victim.x, strict=True)]
            shown.append((victim.x, guess))
            labels.append(victim.y)
        names = f"matching-{case.images}x{case.batch}-{case.steps}-{case.norms}.png"
        picture: Picture = side_by_side(*(torch.cat(parts)[:16] for parts in zip(*shown, strict=True)))
        return Finding(
            attack=self.name,
            plays=self.plays,
            saw=f"the update of the weights: {case.words}",
            real=False,
            scores={"PSNR in dB": mean(noise)},
            identified_of_100=of_100(hits, trials * case.images, candidates_of_a_class(pool.y, labels)),
            words=f"{case.words}; first round, no augmentation, labels given; chance is a guess by the label alone.",
            pictures={names: picture},
        )

    def _sent(self, case: Case, victim: Batch, one: Exchanged, known: Known) -> tuple[Tensors, Batch]:
        """The update of a client with the victim's images, and these in the order in which it saw them."""
        if case.norms == "eval":  # the library's clients train in train mode: this one is simulated
            work = known.work(one, victim)
            known.net.eval()
            moved = simulated(work, start_of(one, known), victim, cuts_of(case))
            return {name: value.detach().double() for name, value in moved.items()}, victim
        # A client needs two images: with one, the second is there and is not drawn.
        held = victim if len(victim) > 1 else rows_of(victim, torch.tensor([0, 0]))
        reply = known.reply(
            held, one, batch_size=case.batch, local_steps=case.steps, local_epochs=None, keep_last=False
        )
        return update_of(one.received, reply.state, sorted(known.stepped)), _as_seen(case, victim, one, known)

    def _reconstruct(
        self, case: Case, sent: Tensors, victim: Batch, one: Exchanged, known: Known, trial: int
    ) -> Tensor:
        work = known.work(one, victim)
        if case.norms == "eval":
            known.net.eval()
        start = {name: value for name, value in start_of(one, known).items() if name in sent}

        def moved(x: Tensor) -> Tensors:
            return simulated(work, start, Batch(x, victim.y, victim.domain), cuts_of(case))

        rng = known.generator(f"matching {case.words} {trial}")
        begin = (0.5 + 0.05 * torch.randn(victim.x.shape, generator=rng)).clamp(0, 1)
        iterations = min(self.iterations, known.times(self.iterations, case.least))
        return match(moved, sent, begin, iterations, self.rate, self.smoothness)


def cuts_of(case: Case) -> list[slice]:
    return [slice(n, n + case.batch) for _ in range(case.epochs) for n in range(0, case.images, case.batch)]


def _as_seen(case: Case, victim: Batch, one: Exchanged, known: Known) -> Batch:
    """The images in the order of the client's first epoch. (Within a batch the order does not matter.)"""
    if case.batch == case.images:
        return victim
    rng = torch_generator(known.plan.seed, round=one.round, client=one.client, purpose="order")
    return rows_of(victim, torch.randperm(case.images, generator=rng))


def start_of(one: Exchanged, known: Known) -> Tensors:
    whole = {**known.initial, **one.received}
    return {name: whole[name].clone().requires_grad_() for name in sorted(known.stepped)}


class _Loss(nn.Module):
    """The method's own loss, as a module: its weights can be put in from outside."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net, self._work = work.net, work

    def forward(self, batch: Batch) -> Tensor:
        loss: Tensor = self._work.method.loss(self._work, batch)
        return loss


def simulated(work: Work, start: Tensors, batch: Batch, cuts: Sequence[slice]) -> Tensors:
    """The update of some local SGD steps, as a function of the images that can be differentiated."""
    loss, plan = _Loss(work), work.plan.optimizer
    now, speed = dict(start), dict[str, Tensor]()
    for rows in cuts:
        value = functional_call(loss, {f"net.{name}": tensor for name, tensor in now.items()}, (rows_of(batch, rows),))
        slopes = torch.autograd.grad(value, list(now.values()), create_graph=True, allow_unused=True)
        for (name, tensor), slope in zip(list(now.items()), slopes, strict=True):
            slope = torch.zeros_like(tensor) if slope is None else slope
            slope = slope + plan.weight_decay * tensor.detach()
            speed[name] = plan.momentum * speed[name] + slope if name in speed else slope
            now[name] = tensor - work.lr * speed[name]
    return {name: now[name] - start[name] for name in now}


def cosine_distance(one: Tensors, two: Tensors) -> Tensor:
    """One minus the cosine of two updates, over all tensors."""
    dots = torch.stack([(one[name] * two[name]).sum() for name in one]).sum()
    norms = [torch.stack([each[name].square().sum() for name in one]).sum() for each in (one, two)]
    return 1 - dots / (norms[0] * norms[1]).sqrt().clamp_min(1e-30)


def total_variation(x: Tensor) -> Tensor:
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def match(
    moved: Callable[[Tensor], Tensors],
    sent: Tensors,
    begin: Tensor,
    iterations: int,
    rate: float,
    smoothness: float,
) -> Tensor:
    """Images in [0, 1] whose simulated update has the direction of the one that was sent."""
    goal = {name: value.to(begin.dtype) for name, value in sent.items()}
    x = begin.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=rate)
    milestones = [iterations * eighths // 8 for eighths in (3, 5, 7)]
    falls = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, gamma=0.1)
    best, nearest = begin, float("inf")
    for _ in range(iterations):
        distance = cosine_distance(moved(x), goal)
        if float(distance.detach()) < nearest:
            best, nearest = x.detach().clone(), float(distance.detach())
        (slope,) = torch.autograd.grad(distance + smoothness * total_variation(x), x)
        x.grad = slope.sign()
        adam.step()
        falls.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return best
