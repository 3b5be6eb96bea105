"""Maps, a BatchNorm, and its normalisation in plain NumPy, to hold layers and rules against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

B, C, H, W = 4, 6, 5, 3
EPS = 1e-5
Array = np.ndarray


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def maps() -> Tensor:
    # a mean far from zero: a variance computed as E[x^2] - E[x]^2 would show
    return torch.randn(B, C, H, W, generator=generator()) * 2 + 30


def norm_2d() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(C)
    g = generator()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5, generator=g)
        norm.bias.normal_(generator=g)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_(29, 1, generator=g)
        norm.running_var.uniform_(1, 5, generator=g)
    return norm


def arrays(norm: nn.BatchNorm2d) -> tuple[Array, Array, Array, Array]:
    """weight, bias, running mean, running variance in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    weight, bias, mean, var = (tensor.detach().double().numpy() for tensor in tensors)
    return weight, bias, mean.copy(), var.copy()


def apply(x: Array, mean: Array, std: Array, weight: Array, bias: Array) -> Array:
    """Normalise image by image and channel by channel; mean and std are B x C."""
    out = np.empty_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[b, c] = (x[b, c] - mean[b, c]) / std[b, c] * weight[c] + bias[c]
    return out


def close(actual: Tensor, expected: Array) -> None:
    np.testing.assert_allclose(actual.detach().double().numpy(), expected, rtol=2e-4, atol=2e-4)


def instance(x: Array) -> tuple[Array, Array]:
    return x.mean(axis=(2, 3)), x.var(axis=(2, 3))


def batch(x: Array) -> tuple[Array, Array]:
    """Over batch and pixels, as B x C."""
    mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    return np.tile(mean, (len(x), 1)), np.tile(var, (len(x), 1))
