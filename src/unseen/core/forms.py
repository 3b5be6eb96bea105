"""The form of what clients tell beyond the model: names, shapes, dtypes and bounds, said by the method.

The server holds every reply against it before any code of the method sees the reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unseen.core.plan import Plan
from unseen.core.types import Share

if TYPE_CHECKING:
    from unseen.nets.net import Net

MOST_UNDECLARED = 256_000_000  # bytes of a report whose method says nothing of its form


@dataclass(frozen=True)
class UpTo:
    """A free axis: any length from 1 to `most`."""

    most: int

    def __str__(self) -> str:
        return f"1 to {self.most}"


Axis = int | UpTo


@dataclass(frozen=True)
class Form:
    """One tensor. `least` and `most` bound its numbers: one bound for all of them, or a tensor that broadcasts."""

    shape: tuple[Axis, ...]
    dtype: torch.dtype = torch.float32
    least: float | Tensor | None = None
    most: float | Tensor | None = None

    def fault(self, value: Tensor) -> str:
        """What is wrong with a tensor, as the end of a sentence; empty when nothing is."""
        if value.dtype != self.dtype:
            return f"is {value.dtype}, not {self.dtype}"
        if not self._fits(tuple(value.shape)):
            return f"has shape {tuple(value.shape)}, not ({', '.join(map(str, self.shape))})"
        if self.least is not None and bool((value < self.least).any()):
            return "holds a number that is too small"
        if self.most is not None and bool((value > self.most).any()):
            return "holds a number that is too large"
        return ""

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            1 <= size <= axis.most if isinstance(axis, UpTo) else size == axis
            for size, axis in zip(shape, self.shape, strict=True)
        )


@dataclass(frozen=True)
class Forms:
    """All that a method's clients tell beyond the model, by name. Nothing else is taken."""

    survey: Mapping[str, Form] = field(default_factory=dict)
    report: Mapping[str, Form] = field(default_factory=dict)
    undeclared: tuple[str, ...] = ()  # how the names begin of which nothing was said: a method without `forms`

    def below(self, prefix: str) -> Forms:
        """As one part's of a composed method."""
        return Forms(
            {prefix + name: form for name, form in self.survey.items()},
            {prefix + name: form for name, form in self.report.items()},
            tuple(prefix + start for start in self.undeclared),
        )

    def __add__(self, other: Forms) -> Forms:
        return Forms(
            {**self.survey, **other.survey}, {**self.report, **other.report}, self.undeclared + other.undeclared
        )


ANYTHING = Forms(undeclared=("",))


@dataclass(frozen=True)
class Asked:
    """What may decide the form of a reply."""

    net: Net
    plan: Plan
    share: Share  # of the whole method
    round: int
    images: int  # training images that the client counts


def form_fault(forms: Mapping[str, Form], undeclared: tuple[str, ...], tensors: Mapping[str, Tensor]) -> str:
    """Why a report is not what its method says; empty when it is."""
    unknown = [name for name in tensors if name not in forms]
    for name in unknown:
        if not name.startswith(undeclared):
            return f'"{name}" of its report is not declared by the method'
        if tensors[name].is_complex():
            return f'"{name}" of its report is complex'
    if sum(tensors[name].nbytes for name in unknown) > MOST_UNDECLARED:
        return f"its report has more than {MOST_UNDECLARED / 1e6:.0f} MB that the method does not declare"
    for name, form in forms.items():
        if name not in tensors:
            return f'"{name}" of its report is missing'
        if fault := form.fault(tensors[name]):
            return f'"{name}" of its report {fault}'
    return ""
