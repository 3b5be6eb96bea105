"""Moments of maps, and maps normalised by them: the arithmetic under every layer and rule.

The mean and the variance of every channel of every image are computed once (`instance_moments`); batch statistics are
pooled from those; whatever a layer or rule makes of them is folded with the affine map into one scale and one shift per
image and channel, and one multiply-add over the maps applies it. B x C numbers are cheap; passes over B x C x H x W maps
are what a step costs. Where several operations walk over large maps one after the other, they do so some images at a time
(`in_cache`), so that only the first one waits for the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

CACHED = 2**20  # bytes of maps that stay in a core's cache, beside as many of a result
LARGE = 12 * 2**20  # bytes of a batch's maps from which on groups are worth the calls


class Statistics(NamedTuple):
    """What to subtract and what to divide by: B x C, or 1 x C for all images alike."""

    mean: Tensor
    std: Tensor


def in_cache(maps: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Tensors of a batch, by groups of images whose maps fit into a core's cache.

    A sum here is over one image and one channel, so that groups change no bit of it.
    """
    if not walked_in_groups(maps):
        return [(maps, *others)]
    images = max(1, CACHED * maps.shape[0] // maps.nbytes)
    return zip(*(torch.split(tensor, images) for tensor in (maps, *others)), strict=True)


def walked_in_groups(maps: Tensor) -> bool:
    """Large maps are, on a CPU; not where the size of the batch is not known (an exporter's)."""
    return maps.device.type == "cpu" and not torch.compiler.is_exporting() and maps.nbytes >= LARGE


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of `instance_moments`, and memory of the size of the maps for who needs some. Not for autograd."""
    if not walked_in_groups(x):
        mean = x.mean(dim=(2, 3))
        maps = x - mean[:, :, None, None]
        return mean, maps.mul_(maps).mean(dim=(2, 3)), maps
    mean, var = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    room = None  # one group's memory serves all, and stays in the cache
    for part, own_mean, own_var in in_cache(x, mean, var):
        torch.mean(part, dim=(2, 3), out=own_mean)
        room = torch.empty_like(part) if room is None else room[: len(part)]
        torch.sub(part, own_mean[:, :, None, None], out=room)
        torch.mean(room.mul_(room), dim=(2, 3), out=own_var)
    return mean, var, torch.empty_like(x)


def sums_along(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Over H x W the sums of grad * x and of grad, B x C each, and memory of the size of the maps. Not for autograd."""
    if not walked_in_groups(x) or grad.stride() != x.stride():  # another layout is summed in another order
        maps = grad * x
        return maps.sum(dim=(2, 3)), grad.sum(dim=(2, 3)), maps
    along, plain = x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])
    room = None
    for part, own_grad, own_along, own_plain in in_cache(x, grad, along, plain):
        room = torch.empty_like(part) if room is None else room[: len(part)]
        torch.sum(torch.mul(own_grad, part, out=room), dim=(2, 3), out=own_along)
        torch.sum(own_grad, dim=(2, 3), out=own_plain)
    return along, plain, torch.empty_like(x)


class _InstanceMoments(torch.autograd.Function):
    """Mean and biased variance over H x W.

    torch.var_mean is not vectorised on CPUs: a normalisation built on it took 5 to 15 times as long, forward and
    backward. The gradient of both moments together is one multiply-add.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, var, _ = moments(x)
        ctx.save_for_backward(x, mean)
        return mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        grad_mean, grad_var = gradients
        x, mean = ctx.saved_tensors
        pixels = x.shape[2] * x.shape[3]
        slope = grad_var * (2 / pixels)
        offset = grad_mean / pixels - slope * mean
        return torch.addcmul(offset[:, :, None, None], x, slope[:, :, None, None])


def instance_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of each image, B x C each, in float32 at least."""
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()
    mean, var = _InstanceMoments.apply(x)  # type: ignore[no-untyped-call]
    return mean, var


def multiply_add(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x * scale + shift, with one scale and shift per image and channel (B x C) or per channel (1 x C)."""
    return torch.addcmul(shift.to(x.dtype)[:, :, None, None], x, scale.to(x.dtype)[:, :, None, None])


def normalise(x: Tensor, statistics: Statistics, weight: Tensor, bias: Tensor) -> Tensor:
    """(x - mean) / std * weight + bias in one pass."""
    scale = weight / statistics.std
    return multiply_add(x, scale, bias - statistics.mean * scale)


def pooled_moments(mean_BC: Tensor, var_BC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the batch, 1 x C, from those of the images."""
    mean = mean_BC.mean(dim=0, keepdim=True)
    return mean, (var_BC + (mean_BC - mean).square()).mean(dim=0, keepdim=True)
