"""What a net computes under other weights: a model from another time, frozen, without a second module in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unseen.core.tensors import prefixed
from unseen.nets.net import Net

Found = TypeVar("Found")


class Levels(NamedTuple):
    """What every stage of a net says of a batch."""

    maps: list[Tensor]  # after each stage, B x C x H x W
    features: Tensor
    logits: Tensor


def levels(net: Net, x: Tensor) -> Levels:
    """One forward pass that keeps what it passes by."""
    maps = []
    for stage in range(net.stages):
        x = net.run_stage(stage, x)
        maps.append(x)
    features = net.pool(x)
    return Levels(maps, features, net.head(features))


class _Pass(nn.Module):
    """A function of a net and images as a module, which is what `functional_call` runs with other weights."""

    def __init__(self, net: Net, compute: Callable[[Net, Tensor], object]) -> None:
        super().__init__()
        self.net, self.compute = net, compute

    def forward(self, x: Tensor) -> object:
        return self.compute(self.net, x)


@contextmanager
def evaluating(net: Net) -> Iterator[None]:
    """Every module in eval mode, then as it was."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def frozen_levels(net: Net, state: Mapping[str, Tensor], x: Tensor) -> Levels:
    """`levels` of the net with `state` in place of its own, in eval mode and without gradients."""
    return _frozen(levels, net, state, x)


def frozen_features(net: Net, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """`net.features` likewise; the state need not have what features do not depend on, as the head."""
    return _frozen(Net.features, net, state, x)


def _frozen(compute: Callable[[Net, Tensor], Found], net: Net, state: Mapping[str, Tensor], x: Tensor) -> Found:
    with torch.no_grad(), evaluating(net):
        found: Found = functional_call(_Pass(net, compute), prefixed("net.", state), (x,))
        return found
