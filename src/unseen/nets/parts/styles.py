"""Styles: the mean and standard deviation of each channel of an image's maps, and modules that change them.

The modules act in train mode only, and draw from torch's default CPU generator, which the client loop seeds per order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from unseen.nets.norms.moments import instance_moments, multiply_add

EPSILON = 1e-6


class Style(NamedTuple):
    """Mean and standard deviation per image and channel, B x C each."""

    mean: Tensor
    std: Tensor


def style_of(maps: Tensor, epsilon: float = EPSILON) -> Style:
    """The style of maps: over H x W, with the biased variance."""
    mean, var = instance_moments(maps)
    return Style(mean, (var + epsilon).sqrt())


def restyle(maps: Tensor, mean: Tensor, std: Tensor, own: Style | None = None) -> Tensor:
    """AdaIN: std * (maps - own mean) / own std + mean. `own` is computed from the maps unless given (detached, say)."""
    own = style_of(maps) if own is None else own
    scale = std / own.std
    return multiply_add(maps, scale, mean - own.mean * scale)


class MixStyle(nn.Module):
    """Mix each image's style with that of another image of the batch (Zhou et al. 2021).

    With probability p per batch: weight ~ Beta(alpha, alpha) per image, mixed = weight * own + (1 - weight) * other.
    Styles are detached: no gradient flows through them.
    """

    def __init__(self, p: float = 0.5, alpha: float = 0.1) -> None:
        super().__init__()
        self.p = p
        self.alpha = alpha

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or float(torch.rand(())) >= self.p:
            return maps
        images = maps.shape[0]
        weight = torch.distributions.Beta(self.alpha, self.alpha).sample((images, 1)).to(maps.device)
        other = torch.randperm(images).to(maps.device)
        own = style_of(maps.detach())
        return restyle(
            maps,
            weight * own.mean + (1 - weight) * own.mean[other],
            weight * own.std + (1 - weight) * own.std[other],
            own,
        )

    def extra_repr(self) -> str:
        return f"p={self.p}, alpha={self.alpha}"


def order_of(values: Tensor) -> Tensor:
    """Where the smallest value of the last dimension is, the next one, and so on; equal values in their own order.

    As `values.argsort(stable=True)`. Numpy sorts integers with the CPU's vector instructions, ten times as fast as torch
    sorts numbers with their places: so each value's bits and its place become one integer.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32:
        return values.argsort(dim=-1, stable=True)
    numbers = values.contiguous() + 0.0  # -0 has other bits than 0
    rising = numbers.view(torch.int32)
    if float(numbers.min()) < 0:  # not so after a ReLU
        rising ^= (rising >> 31).bitwise_and_(0x7FFFFFFF)  # integers in the order of the numbers
    keys = rising.long().bitwise_left_shift_(32).bitwise_or_(torch.arange(values.shape[-1]))
    keys.numpy().sort(axis=-1)  # in place, as all else here: new memory costs as much as half of the sort
    return keys.bitwise_and_(0xFFFFFFFF)


def exchanged(maps: Tensor, places: Tensor, giver: Tensor) -> Tensor:
    """Where an image has its value of a rank, the value of this rank of its giver. `places`: by rank, where the value is."""
    given = maps.flatten(2).gather(2, places).index_select(0, giver)
    # Straight to each value's place: the rank of each value, which `given` would be looked up by, costs a second sort.
    found = torch.empty_like(given).scatter_(2, places, given).view(maps.shape)
    return found.contiguous(memory_format=torch.channels_last)  # as maps are: sums of two layouts take far longer


class Exchange(torch.autograd.Function):
    """`exchanged`, where everybody gives to one: the gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, places: Tensor, giver: Tensor) -> Tensor:
        ctx.save_for_backward(places, giver)
        return exchanged(maps, places, giver)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        places, giver = ctx.saved_tensors
        return exchanged(slope, places, giver.argsort()), None, None


class EFDMix(nn.Module):
    """Move each channel's values towards those of the same rank in another image of the batch (Zhang et al. 2022).

    With probability p per batch: weight ~ Beta(alpha, alpha) per image, mixed = weight * own + (1 - weight) * other's. The
    own value counts in full for the gradient, and the other's by its share.
    """

    def __init__(self, p: float = 0.5, alpha: float = 0.1) -> None:
        super().__init__()
        self.p = p
        self.alpha = alpha

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or float(torch.rand(())) >= self.p:
            return maps
        images = maps.shape[0]
        weight = torch.distributions.Beta(self.alpha, self.alpha).sample((images, 1, 1, 1)).to(maps.device)
        other = torch.randperm(images).to(maps.device)
        places = order_of(maps.detach().flatten(2))
        matched = cast(Tensor, Exchange.apply(maps, places, other))  # type: ignore[no-untyped-call]
        return maps + (1 - weight) * (matched - maps.detach())

    def extra_repr(self) -> str:
        return f"p={self.p}, alpha={self.alpha}"


class DSU(nn.Module):
    """Resample styles from Gaussians as wide as the styles of the batch are spread (Li et al. 2022).

    With probability p per batch: mean + N(0, 1) * spread(mean) and std + N(0, 1) * spread(std), where spread is the
    standard deviation over the batch, per channel. Gradients flow through the styles.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or float(torch.rand(())) >= self.p:
            return maps
        own = style_of(maps)
        return restyle(maps, _resample(own.mean), _resample(own.std), own)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _resample(values: Tensor) -> Tensor:
    spread = (values.var(dim=0, correction=0, keepdim=True) + EPSILON).sqrt()
    return values + torch.randn(values.shape).to(values.device, values.dtype) * spread
