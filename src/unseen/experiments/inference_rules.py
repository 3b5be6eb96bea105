"""Rules for test time: by which statistics a trained net normalises, or how it goes on learning from what it is shown.

`own` is the method's own prediction; the others put a rule of `unseen.nets.norms.rules` over it (FedFD-A, Table 3 c), or an
adapter of `unseen.experiments.adaptation`. What is drawn for an image depends on its place in the unseen domain and the
run's seed. `depends` says on what else an answer depends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.seeding import torch_generator
from unseen.data.augment import Recipe, apply
from unseen.experiments import adaptation, teacher
from unseen.method import Method
from unseen.nets.net import Net
from unseen.nets.norms import rules
from unseen.nets.norms.layers import MomentNorm2d
from unseen.nets.norms.moments import Statistics

BATCH = "the other images of its batch"
PAST = "the other images of its batch and those before"

SPATIAL = Recipe(crop=(0.7, 1.0), flip=0.5)  # MixNorm's views; its paper says: spatial augmentations


@dataclass(frozen=True)
class Inference:
    """The method's own prediction."""

    name: ClassVar[str] = "own"
    depends: ClassVar[str] = ""  # on which images beside its own an answer depends, in words
    statistics: ClassVar[bool] = True  # it is about BatchNorm's statistics: the net must have them

    @property
    def label(self) -> str:
        """`iabn`, `tbn (batch=1)`: the fields that are not as usual are named."""
        usual = asdict(type(self)())
        changed = ", ".join(f"{key}={_short(value)}" for key, value in asdict(self).items() if value != usual[key])
        return self.name + (f" ({changed})" if changed else "")

    def rule(self, first: int, images: int, seed: int) -> rules.Rule | None:
        """By which statistics the norms go, for `images` images from place `first` on. None: as they are."""
        return None

    def views(self, x: Tensor, first: int, seed: int) -> Tensor:
        """What the net sees: the images themselves first, then whatever else the statistics need."""
        return x

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter | None:
        """What answers batch after batch and learns from them. None: every batch is answered by `rule`."""
        return None

    def most(self) -> int | None:
        """Images in one pass at most; None: as many as there are."""
        return None

    def order(self, images: int, seed: int) -> Tensor:
        """In which order the images come. A domain lists them class by class."""
        return torch.arange(images)


@dataclass(frozen=True)
class Batched(Inference):
    """What rules share under which the images of a batch influence each other."""

    depends: ClassVar[str] = BATCH
    batch: int = 64  # images in a batch

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"{self.name}: batch is {self.batch}; give 1 or more.")

    def most(self) -> int:
        return self.batch

    def order(self, images: int, seed: int) -> Tensor:
        # Shuffled: a batch of one class is normalised by what makes it that class, and the answer is lost.
        return torch.randperm(images, generator=_dice(seed, 0, self.name))


@dataclass(frozen=True)
class TBN(Batched):
    """The statistics of the test batch (batch=1: each image by its own statistics, FedFD-A's reading)."""

    name: ClassVar[str] = "tbn"

    def rule(self, first: int, images: int, seed: int) -> rules.Rule:
        return rules.BatchRule()


@dataclass(frozen=True)
class IABN(Inference):
    """Running statistics, corrected where an image's differ by more than k standard errors (NOTE, NeurIPS 2022)."""

    name: ClassVar[str] = "iabn"
    k: float = 4.0  # standard errors that are taken for chance
    smallest: int = 1  # maps of so many pixels or fewer are left to the running statistics

    def rule(self, first: int, images: int, seed: int) -> rules.Rule:
        return rules.IABN(self.k, self.smallest)


@dataclass(frozen=True)
class MixNorm(Inference):
    """A share of the statistics of an image and its augmented views, the rest of the running ones (2021)."""

    name: ClassVar[str] = "mixnorm"
    number: int = 5  # views, the image itself among them
    share: float = 0.05  # of the views' statistics

    def __post_init__(self) -> None:
        if self.number < 1:
            raise UserError(f"mixnorm: number is {self.number}; give 1 or more.")

    def rule(self, first: int, images: int, seed: int) -> rules.Rule:
        return rules.MixNorm(self.number, self.share)

    def views(self, x: Tensor, first: int, seed: int) -> Tensor:
        made = [
            apply(image.expand(self.number - 1, -1, -1, -1), SPATIAL, _dice(seed, first + place, self.name))
            for place, image in enumerate(x)
        ]
        return torch.cat([x[None], torch.stack(made, dim=1)]).flatten(0, 1)


@dataclass(frozen=True)
class FixedAlpha(Inference):
    """alpha * the image's + (1 - alpha) * the running statistics, the same alpha for all (alpha-BN, 2021)."""

    name: ClassVar[str] = "fixed-alpha"
    alpha: float = 0.1  # weight of the image's own statistics; FedFD-A does not say which

    def rule(self, first: int, images: int, seed: int) -> rules.Rule:
        return rules.FixedAlpha(self.alpha)


@dataclass(frozen=True)
class RandomAlpha(Inference):
    """The same with alpha ~ U(low, high), drawn for every image and norm."""

    name: ClassVar[str] = "random-alpha"
    low: float = 0.0  # smallest alpha
    high: float = 1.0  # largest alpha

    def rule(self, first: int, images: int, seed: int) -> rules.Rule:
        return _Drawn([_dice(seed, first + place, self.name) for place in range(images)], self.low, self.high)


class _Drawn(rules.Interpolated):
    """alpha from a generator per image: the n-th norm takes the n-th draw, whoever else is in the batch."""

    def __init__(self, dice: list[torch.Generator], low: float, high: float) -> None:
        super().__init__()
        self.dice, self.low, self.high = dice, low, high

    def alpha(self, norm: MomentNorm2d, instance: Statistics, reference: Statistics) -> Tensor:
        drawn = torch.stack([torch.rand(1, generator=die) for die in self.dice])
        return (self.low + (self.high - self.low) * drawn).to(instance.mean.device)


@dataclass(frozen=True)
class TsmoBN(Batched):
    """Statistics of the unseen domain alone, tracked with momentum over its batches (TsmoBN, 2021)."""

    name: ClassVar[str] = "tsmobn"
    depends: ClassVar[str] = PAST
    momentum: float = 0.9  # tau, how much of the statistics of earlier batches stays

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter:
        return adaptation.Tracking(method, self.momentum)


@dataclass(frozen=True)
class Tent(Batched):
    """Batch statistics, and a step on the entropy of the answers by the norms' scales and shifts (ICLR 2021)."""

    name: ClassVar[str] = "tent"
    depends: ClassVar[str] = PAST
    rate: float = 1e-3  # learning rate of Adam

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter:
        return adaptation.Tent(method, net, self.rate)


@dataclass(frozen=True)
class SAR(Batched):
    """Tent with flat steps on sure answers alone, and back to the start when the entropy collapses (ICLR 2023)."""

    name: ClassVar[str] = "sar"
    depends: ClassVar[str] = PAST
    rate: float = 2.5e-4  # learning rate of SGD with momentum 0.9
    margin: float = 0.4  # an answer is sure if its entropy is below this part of the largest possible
    rho: float = 0.05  # radius of the neighbourhood that must be flat
    collapse: float = 0.2  # back to the trained net if the smoothed entropy falls below

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter:
        return adaptation.SAR(method, net, self.rate, self.margin * math.log(net.classes), self.rho, self.collapse)


@dataclass(frozen=True)
class T3A(Batched):
    """The head's rows are replaced by the mean of sure features of each class that were seen (NeurIPS 2021)."""

    name: ClassVar[str] = "t3a"
    depends: ClassVar[str] = PAST
    statistics: ClassVar[bool] = False
    keep: int = 20  # M, the surest features of a class that count; -1 for all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep < 1 and self.keep != -1:
            raise UserError(f"t3a: keep is {self.keep}; give 1 or more, or -1 for all.")

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter:
        return adaptation.T3A(method, net, self.keep)


@dataclass(frozen=True)
class LAME(Batched):
    """Answers of a batch are corrected so that images with like features get like answers (CVPR 2022)."""

    name: ClassVar[str] = "lame"
    statistics: ClassVar[bool] = False
    affinity: Literal["knn", "rbf"] = "knn"  # like are the nearest ones, or all by a Gaussian of their distance
    neighbours: int = 5  # k, the nearest ones; or the one whose distance is the Gaussian's width

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours < 1:
            raise UserError(f"lame: neighbours is {self.neighbours}; give 1 or more.")

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter:
        return adaptation.LAME(method, self.affinity, self.neighbours)


@dataclass(frozen=True)
class FedSPL(Batched):
    """A student learns what its slow copy is sure of, several steps on each batch before it answers (AAAI 2025)."""

    name: ClassVar[str] = "fedspl"
    depends: ClassVar[str] = PAST
    statistics: ClassVar[bool] = False
    batch: int = 16  # images in a batch
    steps: int = 25  # on each batch; the authors' code passes over all images 25 times
    rate: float = 2e-4  # learning rate, and 30 times as much for the head
    slowness: float = 0.999  # how much of the teacher stays in a step

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 2:
            raise UserError(f"fedspl: batch is {self.batch}; give 2 or more: norms go by the batch.")

    def adapter(self, method: Method, net: Net, seed: int) -> adaptation.Adapter:
        return teacher.Pupil(method, net, self.rate, self.slowness, self.steps, seed)


KINDS = (Inference, TBN, IABN, MixNorm, FixedAlpha, RandomAlpha, TsmoBN, Tent, SAR, T3A, LAME, FedSPL)
RULES: Mapping[str, type[Inference]] = {kind.name: kind for kind in KINDS}


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dice(seed: int, place: int, purpose: str) -> torch.Generator:
    return torch_generator(seed, client=str(place), purpose=f"inference {purpose}")
