"""Moments against plain NumPy."""

from __future__ import annotations

import torch

from tests.nets.norms.by_hand import close, generator, instance, maps
from unseen.nets.norms.moments import instance_moments


def test_moments_and_their_gradient() -> None:
    x = maps()
    mean, var = instance_moments(x)
    close(mean, instance(x.double().numpy())[0])
    close(var, instance(x.double().numpy())[1])
    small = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=generator(), requires_grad=True)
    assert torch.autograd.gradcheck(instance_moments, (small,))
    assert torch.autograd.gradgradcheck(instance_moments, (small,))


def test_moments_of_bfloat16_are_float32() -> None:
    assert instance_moments(maps().bfloat16())[0].dtype == torch.float32
