"""Maps normalised by whatever statistics a rule makes of the images' own: about the cost of one BatchNorm.

A rule turns the B x C moments of the images into a scale and a shift per image and channel. On CPUs a step's time goes
into moving maps through memory and into new memory. So the maps are walked over in runs of a few images that stay in the
cache between two operations, and one new tensor of their size is made forward and one backward, as by BatchNorm itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Fold = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


RUN = 1 << 18  # numbers in a run: 1 MB of float32


def runs(x: Tensor) -> list[slice]:
    """The batch in runs of images."""
    images = max(1, RUN // x[0].numel())
    return [slice(start, start + images) for start in range(0, len(x), images)]


class _Moments(torch.autograd.Function):
    """Mean and biased variance over H x W, and the maps.

    The maps pass through so that both of their gradients meet here: the one that arrives is `_MultiplyAdd`'s own new
    tensor, nobody else's, and what the moments pass back is added into it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(dim=(2, 3))
        var = torch.empty_like(mean)
        for run in runs(x):
            deviation = x[run] - mean[run, :, None, None]
            torch.mean(deviation.mul_(deviation), dim=(2, 3), out=var[run])
        ctx.save_for_backward(x, mean)
        ctx.set_materialize_grads(False)
        return x.view_as(x), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensor | None:
        maps, grad_mean, grad_var = gradients
        if grad_mean is None and grad_var is None:
            return maps
        x, mean = ctx.saved_tensors
        pixels = x.shape[2] * x.shape[3]
        slope = torch.zeros_like(mean) if grad_var is None else grad_var * (2 / pixels)
        offset = -slope * mean if grad_mean is None else grad_mean / pixels - slope * mean
        if maps is None:
            maps = torch.zeros_like(x)
        for run in runs(x):
            maps[run].addcmul_(x[run], slope[run, :, None, None]).add_(offset[run, :, None, None])
        return maps


class _MultiplyAdd(torch.autograd.Function):
    """x * scale + shift, with one scale and one shift per image and channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return torch.addcmul(shift[:, :, None, None], x, scale[:, :, None, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        (grad,) = gradients
        maps = torch.empty_like(x)
        for_scale, for_shift = torch.empty_like(scale), torch.empty_like(scale)
        for run in runs(x):
            torch.sum(torch.mul(grad[run], x[run], out=maps[run]), dim=(2, 3), out=for_scale[run])
            torch.sum(grad[run], dim=(2, 3), out=for_shift[run])
            torch.mul(grad[run], scale[run, :, None, None], out=maps[run])
        return maps, for_scale, for_shift


def renormalised(x: Tensor, fold: Fold) -> Tensor:
    """`x * scale + shift` with `scale, shift = fold(mean, var)` of each image and channel, B x C or 1 x C.

    Differentiable once in the maps and in all that `fold` uses. 16-bit maps are computed in float32.
    """
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    passed, mean, var = cast(tuple[Tensor, ...], _Moments.apply(wide))  # type: ignore[no-untyped-call]
    scale, shift = (value.expand_as(mean).contiguous() for value in fold(mean, var))
    y = cast(Tensor, _MultiplyAdd.apply(passed, scale, shift))  # type: ignore[no-untyped-call]
    return y.to(x.dtype)
