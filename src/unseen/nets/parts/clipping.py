"""A client's change of what it sends, of bounded length: what differential privacy adds its noise to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from unseen.core.types import Tensors

VARIANCE = "running_var"  # BatchNorm's name for the one kind of state that must not be negative


def change_of(before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Iterable[str]) -> Tensors:
    """The change of every number that is not a counter, in float64."""
    return {
        name: after[name].detach().cpu().double() - before[name].cpu().double()
        for name in names
        if after[name].is_floating_point()
    }


def norm_of(change: Mapping[str, Tensor]) -> float:
    return float(torch.stack([value.square().sum() for value in change.values()]).sum().sqrt())


def clipped(change: Mapping[str, Tensor], most: float) -> Tensors:
    """The change, shortened to the norm `most` where it is longer."""
    scale = min(1.0, most / max(norm_of(change), 1e-30))
    return {name: value * scale for name, value in change.items()}


def moved(before: Mapping[str, Tensor], change: Mapping[str, Tensor], names: Iterable[str]) -> Tensors:
    """The state after a change. Counters stay as they were; a variance that noise made negative becomes zero."""
    after = {}
    for name in names:
        value = before[name]
        if name in change:
            value = (value.double() + change[name]).to(value.dtype)
        after[name] = value.clamp_min(0) if name.endswith(VARIANCE) else value
    return after
