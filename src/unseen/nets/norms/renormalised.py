"""Maps normalised by whatever statistics a rule makes of the images' own: about the cost of one BatchNorm.

A rule turns the B x C moments of the images into a scale and a shift per image and channel. On CPUs a step's time goes
into walking over the maps and into new memory for them. So they are walked over as seldom as possible, and one new
tensor of their size is made forward and one backward, as by BatchNorm itself; autograd alone would make three and four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unseen.nets.norms.moments import in_cache, moments, sums_along

Fold = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class _Between:
    """What the two functions below tell each other. Tensors without a graph, for graphs must not hold themselves."""

    room: Tensor | None = None  # memory of the size of the maps, for a result
    scale: Tensor | None = None

    def take(self) -> Tensor:
        room, self.room = self.room, None
        assert room is not None
        return room


class _Moments(torch.autograd.Function):
    """Mean and biased variance over H x W, and the maps.

    The maps pass through so that both of their gradients meet here: `_MultiplyAdd`, the only one who takes them, passes
    on the gradient that it got, and one walk multiplies it by the scale and adds what the moments pass back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, between: _Between) -> tuple[Tensor, Tensor, Tensor]:
        mean, var, between.room = moments(x)
        ctx.save_for_backward(x, mean)
        ctx.set_materialize_grads(False)
        ctx.between = between
        return x.view_as(x), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None]:
        grad, grad_mean, grad_var = gradients
        for_x, scale = ctx.between.take(), ctx.between.scale
        assert grad is not None
        x, mean = ctx.saved_tensors
        if grad_mean is None and grad_var is None:
            return torch.mul(grad, scale[:, :, None, None], out=for_x), None
        pixels = x.shape[2] * x.shape[3]
        slope = torch.zeros_like(mean) if grad_var is None else grad_var * (2 / pixels)
        offset = -slope * mean if grad_mean is None else grad_mean / pixels - slope * mean
        numbers = (value[:, :, None, None] for value in (scale, slope, offset))
        for part, part_grad, out, by_grad, by_x, plus in in_cache(x, grad, for_x, *numbers):
            torch.mul(part_grad, by_grad, out=out).addcmul_(part, by_x).add_(plus)
        return for_x, None


class _MultiplyAdd(torch.autograd.Function):
    """x * scale + shift. The gradient for x is not yet multiplied by the scale: `_Moments` does it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, between: _Between) -> Tensor:
        ctx.save_for_backward(x)
        ctx.between, between.scale = between, scale.detach()
        return torch.addcmul(shift[:, :, None, None], x, scale[:, :, None, None], out=between.take())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (grad,) = ctx.saved_tensors, gradients
        for_scale, for_shift, ctx.between.room = sums_along(grad, x)
        return grad if ctx.needs_input_grad[0] else None, for_scale, for_shift, None


def renormalised(x: Tensor, fold: Fold) -> Tensor:
    """`x * scale + shift` with `scale, shift = fold(mean, var)` of each image and channel, B x C or 1 x C.

    Differentiable once in the maps and in all that `fold` uses. 16-bit maps are computed in float32.
    """
    between = _Between()
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    passed, mean, var = cast(tuple[Tensor, ...], _Moments.apply(wide, between))  # type: ignore[no-untyped-call]
    scale, shift = (value.expand_as(mean) for value in fold(mean, var))
    y = cast(Tensor, _MultiplyAdd.apply(passed, scale, shift, between))  # type: ignore[no-untyped-call]
    return y.to(x.dtype)
