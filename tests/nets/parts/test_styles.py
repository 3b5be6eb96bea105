from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unseen.nets.parts.styles import DSU, EPSILON, MixStyle, restyle, style_of

B, C, H, W = 4, 3, 5, 4


def maps() -> Tensor:
    return torch.randn(B, C, H, W, generator=torch.Generator().manual_seed(0)) * 2 + 3


def hand_style(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(axis=(2, 3), keepdims=True), np.sqrt(x.var(axis=(2, 3), keepdims=True) + EPSILON)


def close(actual: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual.detach().double().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_style_and_restyle() -> None:
    x = maps()
    mean, std = hand_style(x.double().numpy())
    close(style_of(x).mean, mean[:, :, 0, 0])
    close(style_of(x).std, std[:, :, 0, 0])
    new_mean, new_std = torch.arange(B * C).view(B, C).float(), torch.arange(B * C).view(B, C).float() / 10
    styled = restyle(x, new_mean, new_std)
    normal = (x.double().numpy() - mean) / std
    close(styled, normal * new_std.double().numpy()[:, :, None, None] + new_mean.double().numpy()[:, :, None, None])
    close(style_of(styled).mean, new_mean.double().numpy())


def test_mixstyle() -> None:
    x = maps()
    torch.manual_seed(1)
    mixed = MixStyle(p=1.0, alpha=0.3)(x)
    torch.manual_seed(1)
    torch.rand(())
    weight = torch.distributions.Beta(0.3, 0.3).sample((B, 1)).double().numpy()[:, :, None, None]
    other = torch.randperm(B).numpy()
    mean, std = hand_style(x.double().numpy())
    normal = (x.double().numpy() - mean) / std
    close(mixed, normal * (weight * std + (1 - weight) * std[other]) + weight * mean + (1 - weight) * mean[other])
    assert not torch.allclose(mixed, x)


def test_mixstyles_styles_are_detached() -> None:
    x = maps().requires_grad_()
    torch.manual_seed(1)
    MixStyle(p=1.0, alpha=0.3)(x).sum().backward()
    torch.manual_seed(1)
    torch.rand(())
    weight = torch.distributions.Beta(0.3, 0.3).sample((B, 1)).double().numpy()[:, :, None, None]
    other = torch.randperm(B).numpy()
    _, std = hand_style(x.detach().double().numpy())
    assert x.grad is not None
    close(x.grad, np.broadcast_to((weight * std + (1 - weight) * std[other]) / std, x.shape))


def test_dsu() -> None:
    x = maps().requires_grad_()
    torch.manual_seed(1)
    resampled = DSU(p=1.0)(x)
    torch.manual_seed(1)
    torch.rand(())
    draw_mean, draw_std = (torch.randn(B, C).double().numpy()[:, :, None, None] for _ in range(2))
    mean, std = hand_style(x.detach().double().numpy())
    spread_mean = np.sqrt(mean.var(axis=0) + EPSILON)
    spread_std = np.sqrt(std.var(axis=0) + EPSILON)
    normal = (x.detach().double().numpy() - mean) / std
    close(resampled, normal * (std + draw_std * spread_std) + mean + draw_mean * spread_mean)
    # Gradients flow through the styles: a shift of all maps by one shifts every output by one.
    (gradient,) = torch.autograd.grad(resampled.sum(), x)
    assert float(gradient.sum()) == pytest.approx(x.numel(), rel=1e-4)


@pytest.mark.parametrize("module", [MixStyle(p=1.0), DSU(p=1.0)])
def test_nothing_happens_in_eval_mode_or_by_the_coin(module: nn.Module) -> None:
    x = maps()
    assert torch.equal(module.eval()(x), x)
    never = type(module)(p=0.0).train()
    assert torch.equal(never(x), x)


def test_the_coin_is_fair() -> None:
    torch.manual_seed(0)
    module = DSU(p=0.25)
    x = maps()
    changed = sum(not torch.equal(module(x), x) for _ in range(400))
    assert 70 < changed < 130
