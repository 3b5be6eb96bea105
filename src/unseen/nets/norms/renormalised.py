"""Maps normalised by whatever statistics a rule makes of the images' own: about the cost of one BatchNorm.

A rule turns the B x C moments of the images into a scale and a shift per image and channel. On CPUs a step's time goes
into walking over the maps and into new memory for them. So they are walked over as seldom as possible, and one new
tensor of their size is made forward and one backward, as by BatchNorm itself; autograd alone would make three and four.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Fold = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class _Moments(torch.autograd.Function):
    """Mean and biased variance over H x W, and the maps; `memory` gets a tensor of their size for later.

    The maps pass through so that both of their gradients meet here: the one that arrives is `_MultiplyAdd`'s own new
    tensor, nobody else's, and what the moments pass back is added into it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, memory: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(dim=(2, 3))
        maps = x - mean[:, :, None, None]
        var = maps.mul_(maps).mean(dim=(2, 3))
        memory.append(maps)
        ctx.save_for_backward(x, mean)
        ctx.set_materialize_grads(False)
        return x.view_as(x), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        maps, grad_mean, grad_var = gradients
        if grad_mean is None and grad_var is None:
            return maps, None
        x, mean = ctx.saved_tensors
        pixels = x.shape[2] * x.shape[3]
        slope = torch.zeros_like(mean) if grad_var is None else grad_var * (2 / pixels)
        offset = -slope * mean if grad_mean is None else grad_mean / pixels - slope * mean
        if maps is None:
            maps = torch.zeros_like(x)
        return maps.addcmul_(x, slope[:, :, None, None]).add_(offset[:, :, None, None]), None


class _MultiplyAdd(torch.autograd.Function):
    """x * scale + shift, written into the memory that the moments have done with."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, memory: list[Tensor]) -> Tensor:
        ctx.save_for_backward(x, scale)
        return torch.addcmul(shift[:, :, None, None], x, scale[:, :, None, None], out=memory.pop())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        (grad,) = gradients
        maps = grad * x
        for_scale, for_shift = maps.sum(dim=(2, 3)), grad.sum(dim=(2, 3))
        for_x = torch.mul(grad, scale[:, :, None, None], out=maps) if ctx.needs_input_grad[0] else None
        return for_x, for_scale, for_shift, None


def renormalised(x: Tensor, fold: Fold) -> Tensor:
    """`x * scale + shift` with `scale, shift = fold(mean, var)` of each image and channel, B x C or 1 x C.

    Differentiable once in the maps and in all that `fold` uses. 16-bit maps are computed in float32.
    """
    memory: list[Tensor] = []
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    passed, mean, var = cast(tuple[Tensor, ...], _Moments.apply(wide, memory))  # type: ignore[no-untyped-call]
    scale, shift = (value.expand_as(mean) for value in fold(mean, var))
    y = cast(Tensor, _MultiplyAdd.apply(passed, scale, shift, memory))  # type: ignore[no-untyped-call]
    return y.to(x.dtype)
