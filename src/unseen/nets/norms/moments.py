"""Moments of maps, and maps normalised by them: the arithmetic under every layer and rule.

The mean and the variance of every channel of every image are computed once (`instance_moments`); batch statistics are
pooled from those; whatever a layer or rule makes of them is folded with the affine map into one scale and one shift per
image and channel, and one multiply-add over the maps applies it. B x C numbers are cheap; passes over B x C x H x W maps
are what a step costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Statistics(NamedTuple):
    """What to subtract and what to divide by: B x C, or 1 x C for all images alike."""

    mean: Tensor
    std: Tensor


class _InstanceMoments(torch.autograd.Function):
    """Mean and biased variance over H x W.

    torch.var_mean is not vectorised on CPUs: a normalisation built on it took 5 to 15 times as long, forward and
    backward. The gradient of both moments together is one multiply-add.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(dim=(2, 3))
        deviation = x - mean[:, :, None, None]
        var = deviation.mul_(deviation).mean(dim=(2, 3))
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
