"""Large maps are walked over in groups of images: not a bit may depend on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unseen.nets.norms import moments
from unseen.nets.norms.assembled import assembled
from unseen.nets.norms.moments import in_cache, instance_moments, pooled_moments
from unseen.nets.norms.renormalised import renormalised

SHAPE = (7, 21, 9, 11)  # 21: neither channels nor pixels are a whole number of vectors
LAYOUTS = {"rows": torch.contiguous_format, "channels": torch.channels_last}
Layer = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]


def by_instance(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> tuple[Tensor, ...]:
    def fold(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        scale = one / (0.3 * (var + 1e-5).sqrt() + 0.7)
        return scale, two - (0.3 * mean + three) * scale

    return (renormalised(x, fold),)


def by_batch(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> tuple[Tensor, ...]:
    def fold(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = pooled_moments(mean, var)
        scale = one * three / (var + 1e-5).sqrt()
        return scale, two - mean * scale

    return (renormalised(x, fold),)


def by_neither(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> tuple[Tensor, ...]:
    return (renormalised(x, lambda mean, var: ((one * three)[None], two[None])),)


def by_both(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> tuple[Tensor, ...]:
    return assembled(x, one, two, three, 1e-5)


def only_moments(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> tuple[Tensor, ...]:
    mean, var = instance_moments(x)
    return (x * ((mean * one + var * two) * three)[:, :, None, None], mean, var)


def computed(layer: Layer, layout: str, arriving: str) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = (torch.randn(SHAPE, generator=rng) * 2 + 1).contiguous(memory_format=LAYOUTS[layout]).requires_grad_()
    others = [torch.randn(SHAPE[1], generator=rng).requires_grad_() for _ in range(3)]
    if arriving == "spread":  # as from a mean over the maps
        grad = torch.randn(SHAPE[:2], generator=rng)[:, :, None, None].expand(SHAPE)
    else:
        grad = torch.randn(SHAPE, generator=rng).contiguous(memory_format=LAYOUTS[arriving])
    y, *rest = layer(x, *others)
    return [y.detach(), *rest, *torch.autograd.grad(y, [x, *others], grad)]


@pytest.mark.parametrize("layer", [by_instance, by_batch, by_neither, by_both, only_moments])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("arriving", [*LAYOUTS, "spread"])
def test_groups_of_images_have_the_bits_and_the_layout_of_the_whole(
    layer: Layer, layout: str, arriving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = computed(layer, layout, arriving)
    monkeypatch.setattr(moments, "LARGE", 0)
    for images in (1, 2, 3):  # 7 is a multiple of none but the first
        monkeypatch.setattr(moments, "CACHED", images * 4 * SHAPE[1] * SHAPE[2] * SHAPE[3])
        assert next(len(part) for (part,) in in_cache(torch.empty(SHAPE))) == images
        for found, expected in zip(computed(layer, layout, arriving), whole, strict=True):
            assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_a_graph_of_a_layer_is_freed_with_its_result() -> None:
    """What the two halves of a layer tell each other must not hold the graph: every step would leak its maps."""
    x, weight = torch.randn(SHAPE, requires_grad=True), torch.ones(SHAPE[1], requires_grad=True)
    freed: list[str] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, value: Tensor) -> Tensor:
            ctx.watched = _Watch(freed)  # type: ignore[attr-defined]
            return value.clone()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
            return gradients[0]

    y = by_instance(Watched.apply(x), weight, weight, weight)[0]  # type: ignore[no-untyped-call]
    assert not freed
    del y
    assert freed == ["graph"]


class _Watch:
    def __init__(self, freed: list[str]) -> None:
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append("graph")
