"""Adapters: a trained net that goes on learning from the unlabelled images it is shown, batch after batch.

An answer may depend on the other images of its batch and on all that came before, so the order of images matters: rules
shuffle them by the run's seed. The trained net itself is as before after every batch; an adapter keeps what it learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.method import Method, name_of
from unseen.nets.net import Net
from unseen.nets.norms import rules
from unseen.nets.norms.layers import MomentNorm2d, StatNorm2d
from unseen.nets.norms.moments import Statistics, pooled_moments


class Adapter(Protocol):
    """Answers batches in turn."""

    def __call__(self, net: Net, x: Tensor) -> Tensor: ...


def entropy(logits: Tensor) -> Tensor:
    """Of each answer, in nats."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


class Watched(rules.Rule):
    """A rule that knows whether it was asked: a method whose `predict` sets a rule of its own would hide it."""

    def __init__(self, rule: rules.Rule, name: str) -> None:
        self.rule, self.name, self.asked = rule, name, False

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        self.asked = True
        return self.rule.statistics(norm, mean_BC, var_BC, pixels)

    def check(self, method: str) -> None:
        if not self.asked:
            raise UserError(
                f'"{method}" predicts by statistics of its own, which {self.name} cannot replace: '
                "evaluate a run of a method without them, fedfd for one."
            )


# --- statistics ------------------------------------------------------------------------------------------------------
class Tracked(rules.Rule):
    """Mean and variance of each channel as a moving mean over batches, from the first batch on."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.known: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        now = pooled_moments(mean_BC, var_BC)
        before = self.known.get(norm, now)
        mean, var = (self.momentum * b + (1 - self.momentum) * n for b, n in zip(before, now, strict=True))
        self.known[norm] = mean, var
        return Statistics(mean, norm.std(var))


class Tracking:
    """TsmoBN: every norm goes by statistics of the unseen domain alone, tracked with momentum over its batches.

    Jiang, Zhang, Kamp, Li, Dou: TsmoBN: Interventional Generalization for Unseen Clients in Federated Learning. 2021.
    """

    def __init__(self, method: Method, momentum: float) -> None:
        self.method, self.rule = method, Watched(Tracked(momentum), "tsmobn")

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        with torch.no_grad(), rules.ruled(net, self.rule):
            logits = self.method.predict(net, x)
        self.rule.check(name_of(self.method))
        return logits


# --- scales and shifts of norms --------------------------------------------------------------------------------------
class Affine:
    """Scales and shifts of norms that change from batch to batch. Between batches the net has its trained ones."""

    def __init__(self, norms: Sequence[StatNorm2d]) -> None:
        self.parameters = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
        self.values = self.trained = [parameter.detach().clone() for parameter in self.parameters]

    @contextmanager
    def adapted(self) -> Iterator[None]:
        """Inside, the net has the values so far; what they are at the end is kept."""
        needed = [parameter.requires_grad for parameter in self.parameters]
        self.write(self.values)
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            self.values = [parameter.detach().clone() for parameter in self.parameters]
            self.write(self.trained)
            for parameter, before in zip(self.parameters, needed, strict=True):
                parameter.requires_grad_(before)

    def forget(self) -> None:
        """Back to the trained net, within `adapted`."""
        self.write(self.trained)

    def write(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)


class Tent:
    """Batch statistics; after each answer a step down its mean entropy, by the norms' scales and shifts.

    Wang, Shelhamer, Liu, Olshausen, Darrell: Tent: Fully Test-Time Adaptation by Entropy Minimization. ICLR 2021.
    """

    def __init__(self, method: Method, net: Net, rate: float) -> None:
        self.method, self.rule = method, Watched(rules.BatchRule(), "tent")
        self.affine = Affine(net.norms(StatNorm2d))
        self.optimizer = torch.optim.Adam(self.affine.parameters, lr=rate)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        with self.affine.adapted(), torch.enable_grad(), rules.ruled(net, self.rule):
            logits = self.method.predict(net, x)
            self.rule.check(name_of(self.method))
            slopes = torch.autograd.grad(entropy(logits.float()).mean(), self.affine.parameters)
            step(self.optimizer, self.affine.parameters, slopes)
        return logits.detach()


def step(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], slopes: Sequence[Tensor]) -> None:
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.grad = slope
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class SAR:
    """As Tent, but by sure answers alone, by the gradient at the worst point near by, and not in the last stage.

    Niu, Wu, Zhang, Wen, Chen, Zhao, Tan: Towards Stable Test-Time Adaptation in Dynamic Wild World. ICLR 2023.
    """

    def __init__(self, method: Method, net: Net, rate: float, margin: float, rho: float, collapse: float) -> None:
        self.method, self.rule = method, Watched(rules.BatchRule(), "sar")
        last = {module for part in net.stage_modules()[-1] for module in part.modules()}
        self.affine = Affine([norm for norm in net.norms(StatNorm2d) if norm not in last])
        self.margin, self.rho, self.collapse = margin, rho, collapse
        self.smoothed: float | None = None  # entropy of sure answers, over batches
        self.rate = rate
        self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.affine.parameters, lr=self.rate, momentum=0.9)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        with self.affine.adapted(), torch.enable_grad(), rules.ruled(net, self.rule):
            logits = self.method.predict(net, x)
            self.rule.check(name_of(self.method))
            doubts = entropy(logits.float())
            sure = doubts.detach() < self.margin
            if bool(sure.any()):
                self._learn(net, x, doubts[sure].mean(), sure)
        return logits.detach()

    def _learn(self, net: Net, x: Tensor, loss: Tensor, sure: Tensor) -> None:
        parameters = self.affine.parameters
        slopes = torch.autograd.grad(loss, parameters)
        length = torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt()
        here = [parameter.detach().clone() for parameter in parameters]
        self.affine.write([p + self.rho / (length + 1e-12) * slope for p, slope in zip(here, slopes, strict=True)])
        doubts = entropy(self.method.predict(net, x).float())[sure]
        still = doubts.detach() < self.margin  # there, an answer may be sure no longer
        worst = doubts[still].mean()
        slopes = torch.autograd.grad(worst, parameters)
        self.affine.write(here)
        if not bool(still.any()):
            return
        step(self.optimizer, parameters, slopes)
        found = float(worst.detach())
        self.smoothed = found if self.smoothed is None else 0.9 * self.smoothed + 0.1 * found
        if self.smoothed < self.collapse:
            self.affine.forget()
            self.smoothed, self.optimizer = None, self._new_optimizer()


# --- heads and answers -----------------------------------------------------------------------------------------------
@contextmanager
def overheard(net: Net) -> Iterator[list[Tensor]]:
    """What the head is given, in the order of its calls."""
    heard: list[Tensor] = []
    handle = net.head.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0]))
    try:
        yield heard
    finally:
        handle.remove()


def answered(method: Method, net: Net, x: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """The method's logits, and the features that its head made them of."""
    with torch.no_grad(), overheard(net) as heard:
        logits = method.predict(net, x)
    if len(heard) != 1:
        raise UserError(
            f'"{name_of(method)}" does not predict by one head on one pass of an image, which {rule} needs: '
            "evaluate a run of another method."
        )
    return logits.float(), heard[0].float()


class T3A:
    """Each class is represented by the surest features that were taken for it, its row of the head among them.

    Iwasawa, Matsuo: Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization. NeurIPS 2021.
    """

    def __init__(self, method: Method, net: Net, keep: int) -> None:
        if not isinstance(net.head, nn.Linear):
            raise UserError(
                f'"{name_of(method)}" has no linear head, which t3a needs: evaluate a run of another method.'
            )
        self.method, self.keep, self.classes = method, keep, net.classes
        self.features = net.head.weight.detach().float().clone()
        with torch.no_grad():
            self._label(cast(Tensor, net.head(net.head.weight)).float())

    def _label(self, logits: Tensor) -> None:
        self.labels, self.doubts = logits.argmax(1), entropy(logits)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        logits, features = answered(self.method, net, x, "t3a")
        self.features = torch.cat([self.features, features])
        self.labels = torch.cat([self.labels, logits.argmax(1)])
        self.doubts = torch.cat([self.doubts, entropy(logits)])
        if self.keep >= 0:
            best = [self._surest(label) for label in range(self.classes)]
            rows = torch.cat(best)
            self.features, self.labels, self.doubts = self.features[rows], self.labels[rows], self.doubts[rows]
        members = F.one_hot(self.labels, self.classes).float()
        centres = F.normalize(members.T @ F.normalize(self.features, dim=1), dim=1)
        return features @ centres.T

    def _surest(self, label: int) -> Tensor:
        rows = torch.nonzero(self.labels == label).flatten()
        return rows[self.doubts[rows].argsort(stable=True)[: self.keep]]


class LAME:
    """The answers of a batch are moved: each to what it was, and to those of images whose features are like its own.

    Boudiaf, Mueller, Ben Ayed, Bertinetto: Parameter-free Online Test-time Adaptation. CVPR 2022.
    """

    STEPS, CLOSE = 100, 1e-8

    def __init__(self, method: Method, affinity: Literal["knn", "rbf"], neighbours: int) -> None:
        self.method, self.affinity, self.neighbours = method, affinity, neighbours

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        logits, features = answered(self.method, net, x, "lame")
        return corrected(logits, self.likeness(features), self.STEPS, self.CLOSE).log()

    def likeness(self, features: Tensor) -> Tensor:
        """W: 1 for the nearest ones of each image (knn), or e^(-d^2 / 2 width^2)."""
        unit = F.normalize(features, dim=1)
        apart = (unit[:, None] - unit[None]).square().sum(2).sqrt()
        count = len(apart)
        if self.affinity == "rbf":
            width = apart.sort(1).values[:, min(self.neighbours, count) - 1].mean().clamp_min(1e-12)
            return torch.exp(-apart.square() / (2 * width.square()))
        others = apart + torch.diag(torch.full((count,), math.inf, device=apart.device))
        nearest = others.argsort(dim=1, stable=True)[:, : min(self.neighbours, count - 1)]
        return torch.zeros_like(apart).scatter_(1, nearest, 1.0)


def corrected(logits: Tensor, likeness: Tensor, steps: int, close: float) -> Tensor:
    """Z <- softmax(log p + W Z) until the energy Z . (log Z - log p - W Z) moves no more."""
    known = (logits.softmax(1) + 1e-10).log()
    answers, before = known.softmax(1), math.inf
    for number in range(steps):
        pull = likeness @ answers
        answers = (known + pull).softmax(1)
        energy = float((answers * (answers.clamp_min(1e-20).log() - known - pull)).sum())
        if number > 1 and abs(energy - before) <= close * abs(before):
            break
        before = energy
    return answers.clamp_min(1e-20)
