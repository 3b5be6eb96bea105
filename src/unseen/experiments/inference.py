"""Rules for test time (`inference_rules`), applied to any run without training again: read, predict by, evaluate."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from unseen.core.errors import UserError, nearest, unknown
from unseen.core.metrics import Measured
from unseen.core.options import convert, spelled
from unseen.core.types import ImageSet
from unseen.experiments.adaptation import Watched
from unseen.experiments.inference_rules import RULES, Inference
from unseen.federation.measure import Score, examine
from unseen.method import name_of
from unseen.nets.net import Net
from unseen.nets.norms import rules
from unseen.nets.norms.layers import MomentNorm2d, StatNorm2d, make_pluggable
from unseen.runs.directory import RunDirectory
from unseen.runs.images import store_of
from unseen.runs.model import Trained, load_trained
from unseen.runs.planning import read_named
from unseen.runs.results import EvaluationLine, number
from unseen.runs.run import one_thread
from unseen.runs.settings import NO_TARGET


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
        if inference.statistics and inference.name != "own":
            _make_ready(trained.net, name_of(trained.method))
        self.adapter = inference.adapter(trained.method, trained.net, self.seed)

    def __call__(self, net: Net, x: Tensor) -> Tensor:
        return torch.cat([self._some(net, part) for part in torch.split(x, self.inference.most() or len(x))])

    def _some(self, net: Net, x: Tensor) -> Tensor:
        if self.adapter is not None:
            with torch.inference_mode(False):  # some learn, and need gradients; what came from inference mode has none
                return self.adapter(net, x.clone())
        first, self.seen = self.seen, self.seen + len(x)
        rule = self.inference.rule(first, len(x), self.seed)
        if rule is None:
            return self.method.predict(net, x)
        watched = Watched(rule, self.inference.name)
        with rules.ruled(net, watched):
            logits = self.method.predict(net, self.inference.views(x, first, self.seed))
        watched.check(name_of(self.method))
        return logits[: len(x)]


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
        inference.label,
        number(found.accuracy),
        number(found.loss),
        found.examples,
        asdict(inference),
        more,
        inference.depends,
    )
    run.append_evaluation(line)
    return line


def score(trained: Trained, inference: Inference, images: ImageSet) -> tuple[Score, Measured | None]:
    """Accuracy, loss and the other measures of a model under a rule."""
    with one_thread():
        return examine(Predictor(trained, inference), trained.net, images, trained.settings.plan)
