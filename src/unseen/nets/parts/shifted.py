"""A loss somewhere else: gradients at weights that are moved for the moment, for steps that look ahead or around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Gradients = Sequence[Tensor | None]  # one for each parameter; None where the loss does not depend on it


def stepped(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters an optimizer moves."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients(loss: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """The loss's gradients, returned and not accumulated in `.grad`."""
    return list(torch.autograd.grad(loss, list(parameters), allow_unused=True))


@contextmanager
def shifted(parameters: Sequence[nn.Parameter], moves: Gradients) -> Iterator[None]:
    """Inside, each parameter is moved by its move; afterwards it has its old bits again."""
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, move in zip(parameters, moves, strict=True):
            if move is not None:
                parameter.add_(move)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)


@contextmanager
def untracked(module: nn.Module) -> Iterator[None]:
    """Passes inside leave running statistics, and all other buffers, as they were."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, old in before:
            # `data`: graphs of passes before this one hold the buffers, which they do not read, and must stay usable.
            buffer.data.copy_(old)


def along(parameters: Sequence[nn.Parameter], slopes: Gradients) -> Tensor:
    """The linear function whose gradients are exactly these: what `descend` takes when they are known already."""
    terms = [(p * slope).sum() for p, slope in zip(parameters, slopes, strict=True) if slope is not None]
    return torch.stack(terms).sum()
