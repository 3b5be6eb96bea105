from __future__ import annotations

import numpy as np
import torch

from tests.tiny_work import batch, make_work
from unseen.methods.randconv import RandConv, disagreement


def test_disagreement_by_hand() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 4, 5))
    p = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    mean = p.mean(0)
    expected = np.mean([(p[v] * np.log(p[v] / mean)).sum(1).mean() for v in range(3)])
    np.testing.assert_allclose(disagreement([torch.from_numpy(v) for v in logits]).item(), expected, rtol=1e-6)


def test_a_view_is_a_convolution_of_normalised_images() -> None:
    method, x = RandConv(kernels=(3,), original=0.0, mixing=False), batch(2).x
    work = make_work(method)
    view = method.view(work, x)
    rng = torch.Generator().manual_seed(0)
    torch.rand((), generator=rng), torch.rand((), generator=rng), torch.randint(1, (), generator=rng)
    kernel = (torch.randn(3, 3, 3, 3, generator=rng) / np.sqrt(27)).numpy()
    mean, std = (t.flatten().numpy()[:, None, None] for t in (work.net.pixel_mean, work.net.pixel_std))
    normal = np.pad((x.numpy() - mean) / std, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for out in range(3):
        value = sum(
            kernel[out, c, i, j] * normal[:, c, 5 + i, 7 + j] for c in range(3) for i in range(3) for j in range(3)
        )
        expected = value * std[out, 0, 0] + mean[out, 0, 0]
        np.testing.assert_allclose(view[:, out, 5, 7].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_mixing_and_originals() -> None:
    x = batch(2).x
    assert torch.equal(RandConv(original=1.0, mixing=False).view(make_work(RandConv()), x), x)
    whole = RandConv(original=0.0, mixing=False).view(make_work(RandConv()), x)
    mixed = RandConv(original=1.0, mixing=True).view(make_work(RandConv()), x)  # the same dice
    rng = torch.Generator().manual_seed(0)
    torch.rand((), generator=rng)
    alpha = float(torch.rand((), generator=rng))
    torch.testing.assert_close(mixed, alpha * x + (1 - alpha) * whole)


def test_the_loss_is_that_of_the_first_view_and_the_weighted_disagreement() -> None:
    images = batch()
    plain, whole = (make_work(RandConv(weight=weight)) for weight in (0.0, 10.0))
    first = plain.method.loss(plain, images)
    total = whole.method.loss(whole, images)
    term = whole.notes["loss.consistency"][0]
    assert "loss.consistency" not in plain.notes and term > 0
    np.testing.assert_allclose(total.item(), first.item() + 10 * term, rtol=1e-5)
    same = make_work(RandConv(original=1.0, mixing=False))  # three times the same images: nothing to disagree about
    same.method.loss(same, images)
    assert abs(same.notes["loss.consistency"][0]) < 1e-6
