from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.tiny_work import batch, make_work
from unseen.methods.rsc import RSC


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def test_the_mask_by_hand() -> None:
    torch.manual_seed(0)
    head = nn.Linear(9, 4).double()
    z, labels = torch.rand(6, 9, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    w, b = head.weight.detach().numpy(), head.bias.detach().numpy()
    gradient = w[labels.numpy()]  # of a linear head: the class's own row, for every image
    low = gradient < np.percentile(gradient, 100 * 2 / 3, axis=1, keepdims=True)
    before, after = softmax(z.numpy() @ w.T + b), softmax((z.numpy() * low) @ w.T + b)
    fall = (before - after)[np.arange(6), labels.numpy()]
    spared = fall < np.percentile(fall, 100 * 2 / 3)
    kept = RSC().mask(head, z, labels)
    np.testing.assert_array_equal(kept.numpy(), low | spared[:, None])
    assert spared.sum() == 4 and (~kept).sum(1).tolist().count(3) == 2  # a third of 9 features in a third of 6 images


def test_the_loss_is_on_what_is_left() -> None:
    work, images = make_work(RSC()), batch()
    z = work.net.features(images.x)
    kept = RSC().mask(work.net.head, z.detach(), images.y)
    loss = work.method.loss(work, images)
    torch.testing.assert_close(loss, F.cross_entropy(work.net.head(z * kept), images.y))
    assert all(p.grad is None for p in work.net.parameters())  # the probe leaves nothing behind
