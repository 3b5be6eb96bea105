"""Rules for the statistics that a trained net normalises by, applied to any run without training again.

`own` is the method's own prediction; the others put a rule of `unseen.nets.norms.rules` over it (FedFD-A, Table 3 c). What is
drawn for an image depends on its place in the unseen domain and the run's seed, not on the batch that it is in.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from unseen.core.errors import UserError, nearest, unknown
from unseen.core.metrics import Measured
from unseen.core.options import convert, spelled
from unseen.core.seeding import torch_generator
from unseen.core.types import ImageSet
from unseen.data.augment import Recipe, apply
from unseen.federation.measure import Score, examine
from unseen.method import name_of
from unseen.nets.net import Net
from unseen.nets.norms import rules
from unseen.nets.norms.layers import MomentNorm2d, StatNorm2d, make_pluggable
from unseen.nets.norms.moments import Statistics
from unseen.runs.directory import RunDirectory
from unseen.runs.images import store_of
from unseen.runs.model import Trained, load_trained
from unseen.runs.planning import read_named
from unseen.runs.results import EvaluationLine, number
from unseen.runs.run import one_thread
from unseen.runs.settings import NO_TARGET

SPATIAL = Recipe(crop=(0.7, 1.0), flip=0.5)  # MixNorm's views; its paper says: spatial augmentations


@dataclass(frozen=True)
class Inference:
    """The method's own prediction."""

    name: ClassVar[str] = "own"

    @property
    def label(self) -> str:
        """`iabn`, `tbn (batch=1)`: the fields that are not as usual are named."""
        usual = asdict(type(self)())
        changed = ", ".join(f"{key}={value:g}" for key, value in asdict(self).items() if value != usual[key])
        return self.name + (f" ({changed})" if changed else "")

    def rule(self, first: int, images: int, seed: int) -> rules.Rule | None:
        """By which statistics the norms go, for `images` images from place `first` on. None: as they are."""
        return None

    def views(self, x: Tensor, first: int, seed: int) -> Tensor:
        """What the net sees: the images themselves first, then whatever else the statistics need."""
        return x

    def most(self) -> int | None:
        """Images in one pass at most; None: as many as there are."""
        return None

    def order(self, images: int, seed: int) -> Tensor:
        """In which order the images come. A domain lists them class by class."""
        return torch.arange(images)


@dataclass(frozen=True)
class TBN(Inference):
    """The statistics of the test batch. The only rule here under which images influence each other."""

    name: ClassVar[str] = "tbn"
    batch: int = 64  # images in a batch; 1: each image by its own statistics, FedFD-A's reading

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"tbn: batch is {self.batch}; give 1 or more.")

    def rule(self, first: int, images: int, seed: int) -> rules.Rule:
        return rules.BatchRule()

    def most(self) -> int:
        return self.batch

    def order(self, images: int, seed: int) -> Tensor:
        # Shuffled: a batch of one class is normalised by what makes it that class, and the answer is lost.
        return torch.randperm(images, generator=_dice(seed, 0, self.name))


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


RULES: dict[str, type[Inference]] = {
    kind.name: kind for kind in (Inference, TBN, IABN, MixNorm, FixedAlpha, RandomAlpha)
}


def _dice(seed: int, place: int, purpose: str) -> torch.Generator:
    return torch_generator(seed, client=str(place), purpose=f"inference {purpose}")


def inference_of(name: str, given: Mapping[str, Any] | None = None) -> Inference:
    """`"iabn"` and `{"k": "3"}` -> a rule."""
    if name not in RULES:
        raise unknown("inference rule", name, RULES, f"The rules are {', '.join(RULES)}.")
    kind, values = RULES[name], {}
    hints = {f.name: typing.get_type_hints(kind)[f.name] for f in fields(kind)}
    for key, raw in (given or {}).items():
        if key not in hints:
            known = ", ".join(hints) or "none"
            raise UserError(f'The rule "{name}" has no field "{key}".{nearest(key, hints)} Its fields: {known}.')
        try:
            values[key] = convert(hints[key], raw)
        except (ValueError, TypeError):
            raise UserError(
                f'"{raw}" does not fit the field {key} of {name}: it takes {spelled(hints[key])}.'
            ) from None
    return kind(**values)


def read_rules(words: str, given: Mapping[str, str] | None = None) -> list[Inference]:
    """`"tbn:batch=1,iabn"` or `"all"` -> rules; `given` fields are for those that have them."""
    listed = [name for name in RULES if name != "own"] if words.strip() == "all" else words.split(",")
    named = [read_named(word) for word in listed]
    own = {name: inference_of(name).__dataclass_fields__ for name, _ in named}
    for key, value in (given or {}).items():
        if not any(key in known for known in own.values()):
            inference_of(named[0][0], {key: value})  # says which fields there are
    return [
        inference_of(name, {**{k: v for k, v in (given or {}).items() if k in own[name]}, **fields})
        for name, fields in named
    ]


class Predictor:
    """A trained net's prediction under a rule, for images that come in order."""

    def __init__(self, trained: Trained, inference: Inference) -> None:
        self.method, self.inference, self.seed = trained.method, inference, trained.settings.seed
        self.seen = 0
        if inference.rule(0, 0, 0) is not None:
            _make_ready(trained.net, name_of(trained.method))

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        return torch.cat([self._some(net, part) for part in torch.split(x, self.inference.most() or len(x))])

    def _some(self, net: Net, x: Tensor) -> Tensor:
        first, self.seen = self.seen, self.seen + len(x)
        rule = self.inference.rule(first, len(x), self.seed)
        if rule is None:
            return self.method.predict(net, x)
        watched = _Watched(rule)
        with rules.ruled(net, watched):
            logits = self.method.predict(net, self.inference.views(x, first, self.seed))
        if not watched.asked:
            raise UserError(
                f'"{name_of(self.method)}" predicts by statistics of its own, which {self.inference.name} cannot '
                "replace: "
                "evaluate a run of a method without them, fedfd for one."
            )
        return logits[: len(x)]


class _Watched(rules.Rule):
    """A rule that knows whether it was asked: a method whose `predict` sets a rule of its own would hide it."""

    def __init__(self, rule: rules.Rule) -> None:
        self.rule, self.asked = rule, False

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        self.asked = True
        return self.rule.statistics(norm, mean_BC, var_BC, pixels)


def _make_ready(net: Net, method: str) -> None:
    """Norms that follow rules. A net whose norms are of another kind is an error: a rule would pass it by."""
    others = [norm for norm in net.norms(MomentNorm2d) if not isinstance(norm, StatNorm2d)]
    if others:
        raise UserError(
            f'"{method}" has normalisation layers of its own ({type(others[0]).__name__}): '
            "inference rules are for runs with BatchNorm."
        )
    if not net.norms(StatNorm2d):
        make_pluggable(net)
        net.eval()


def evaluate_run(run: RunDirectory, inference: Inference, device: str | None = None) -> EvaluationLine:
    """The selected model of a run on the whole unseen domain under a rule; also appended to the run's evaluations."""
    trained = load_trained(run.path, device)
    settings = trained.settings
    if settings.target == NO_TARGET:
        raise UserError(f"The run in {run.path} left no domain out: there is nothing to test it on.")
    images = store_of(settings).domain(settings.target)
    images = images.subset(inference.order(len(images), settings.seed))
    found, more = score(trained, inference, images)
    line = EvaluationLine(
        inference.label, number(found.accuracy), number(found.loss), found.examples, asdict(inference), more
    )
    run.append_evaluation(line)
    return line


def score(trained: Trained, inference: Inference, images: ImageSet) -> tuple[Score, Measured | None]:
    """Accuracy, loss and the other measures of a model under a rule."""
    with one_thread():
        return examine(Predictor(trained, inference), trained.net, images, trained.settings.plan)
