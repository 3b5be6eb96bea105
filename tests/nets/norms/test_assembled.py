from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.nets.norms.assembled import assembled


def inputs(dtype: torch.dtype) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 5, 2, generator=rng, dtype=dtype) * 2 + 1
    return [x.requires_grad_()] + [torch.randn(4, generator=rng, dtype=dtype).requires_grad_() for _ in range(3)]


def plainly(x: Tensor, gamma_in: Tensor, gamma_bn: Tensor, beta: Tensor) -> Tensor:
    instance = F.instance_norm(x, weight=gamma_in, bias=torch.zeros_like(beta))
    return instance + F.batch_norm(x, None, None, gamma_bn, beta, training=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_same_values_and_gradients_as_torchs_two_layers(layout: torch.memory_format) -> None:
    tensors = inputs(torch.float64)
    weight = torch.randn(3, 4, 5, 2, dtype=torch.float64)
    expected = plainly(*tensors)
    wanted = torch.autograd.grad((expected * weight).sum(), tensors)
    x = tensors[0].detach().contiguous(memory_format=layout).requires_grad_()
    y, mean, var = assembled(x, *tensors[1:], eps=1e-5)
    got = torch.autograd.grad((y * weight).sum(), [x, *tensors[1:]])
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(mean[0], x.mean((0, 2, 3)))
    torch.testing.assert_close(var[0], x.var((0, 2, 3), correction=0))
    assert not mean.requires_grad and not var.requires_grad
    assert y.is_contiguous(memory_format=layout)


def test_gradients_by_finite_differences() -> None:
    tensors = inputs(torch.float64)
    assert torch.autograd.gradcheck(lambda *t: assembled(*t, eps=1e-5)[0], tensors)


def test_neither_the_input_nor_the_incoming_gradient_is_changed() -> None:
    tensors = inputs(torch.float32)
    before = tensors[0].detach().clone()
    gradient = torch.ones(3, 4, 5, 2)
    y, _, _ = assembled(*tensors, eps=1e-5)
    y.backward(gradient)
    assert torch.equal(tensors[0], before) and bool((gradient == 1).all())


def test_second_order_is_refused_and_not_wrong() -> None:
    tensors = inputs(torch.float64)
    y, _, _ = assembled(*tensors, eps=1e-5)
    (first,) = torch.autograd.grad(y.square().sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_half_precision_maps_come_back_as_they_were() -> None:
    tensors = inputs(torch.float32)
    y, _, _ = assembled(tensors[0].detach().bfloat16(), *tensors[1:], eps=1e-5)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), plainly(*tensors), rtol=0.05, atol=0.05)
