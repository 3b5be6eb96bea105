"""What crossed, told by names and shapes alone. Attacks choose by this and never by a method's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from unseen.audits.attack import Known, Observed
from unseen.audits.findings import Finding
from unseen.audits.record import Exchanged
from unseen.core.types import Tensors
from unseen.nets.net import Net
from unseen.nets.parts.branches import Branches


def last_linear(net: Net) -> tuple[str, nn.Linear] | None:
    """The layer that gives the logits, with its name in the state, if it is linear and has a bias."""
    layers = [(name, layer) for name, layer in net.head.named_modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1][1].bias is None:
        return None
    name, layer = layers[-1]
    return (f"head.{name}" if name else "head"), layer


def model_entries(one: Exchanged, net: Net) -> Tensors:
    """The model that went up, with those parts of it that went up as a row (a head or norms of the client's own)."""
    entries = dict(one.state)
    for module in net.modules():
        if isinstance(module, Branches):
            size = module.rows.shape[1]
            for value in one.report.values():
                if value.ndim == 1 and value.numel() == size:
                    entries |= module.entries(value)
    return entries


def is_style(value: Tensor, net: Net) -> bool:
    """Channel means and spreads, of maps or of pixels: 2 x C or 4 x C of many images, or N x 2 x C of single ones."""
    channels = value.shape[-1] if value.ndim else 0
    return channels in (3, *net.stage_channels) and (
        (value.ndim == 2 and value.shape[0] in (2, 4)) or (value.ndim == 3 and value.shape[1] == 2)
    )


def is_spectrum(value: Tensor) -> bool:
    """Amplitudes of images: N x 3 x F x F, none below zero."""
    return value.ndim == 4 and value.shape[1] == 3 and value.shape[2] == value.shape[3] and bool((value >= 0).all())


def is_counts(value: Tensor, net: Net) -> bool:
    """A whole number of images for each class."""
    return value.ndim == 1 and len(value) == net.classes and bool((value >= 0).all() and (value == value.round()).all())


def is_prototypes(value: Tensor, net: Net) -> bool:
    """A feature vector for each class."""
    return value.ndim == 2 and tuple(value.shape) == (net.classes, net.feature_size)


def told_slope(one: Exchanged, net: Net) -> Tensor | None:
    """The gradient of the head's bias, where a survey tells it."""
    layer = last_linear(net)
    return None if layer is None else one.survey.get(f"{layer[0]}.bias".removeprefix("head."))


def surveyed(observed: Observed, known: Known, kind: str) -> list[tuple[Exchanged, str, Tensor]]:
    """Styles or spectra that went up, with whose they are."""
    found = []
    for one in observed.exchanges:
        for name, value in one.survey.items():
            if is_style(value, known.net) if kind == "styles" else is_spectrum(value):
                found.append((one, name, value))
    return found


def handed_on(value: Tensor, briefs: Iterable[Mapping[str, Tensor]]) -> bool:
    """Did the same numbers go down to a site?"""
    rows = value.reshape(1, -1) if value.ndim == 2 else value.flatten(1)
    for brief in briefs:
        for sent in brief.values():
            if sent.ndim >= 2 and sent.shape[-1] == value.shape[-1] and sent[0].numel() and sent.numel():
                flat = sent.reshape(-1, rows.shape[1]) if sent.numel() % rows.shape[1] == 0 else sent.new_zeros(0, 1)
                if flat.shape[1] == rows.shape[1] and bool((torch.cdist(rows[:1], flat) == 0).any()):
                    return True
    return False


def lent(findings: list[Finding], observed: Observed, net: Net) -> list[Finding]:
    """The same findings for a curious site, where every site is lent the others' own parts of the model."""
    if not any(key in observed.first.received for key in net.state_of(Branches, part="rows")):
        return []
    return [replace(f, plays="site", words=f"{f.words} Every site is lent the others' parts.") for f in findings]
