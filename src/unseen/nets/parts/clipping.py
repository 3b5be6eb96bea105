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
    """The state after a change. Counters stay as they were, and so does a variance that noise would make negative.

    A variance of zero would multiply what comes after it by hundreds.
    """
    after = {}
    for name in names:
        old = before[name]
        new = (old.double() + change[name]).to(old.dtype) if name in change else old
        after[name] = torch.where(new > 0, new, old) if name.endswith(VARIANCE) else new
    return after
