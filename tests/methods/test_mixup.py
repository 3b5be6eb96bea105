from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.tiny_work import batch, make_work
from unseen.methods.mixup import Mixup


def test_the_loss_by_hand() -> None:
    work, images = make_work(Mixup(alpha=0.7)), batch()
    rng = torch.Generator().manual_seed(0)  # as that of make_work
    share = np.random.default_rng(int(torch.randint(2**62, (), generator=rng))).beta(0.7, 0.7)
    partner = torch.randperm(8, generator=rng)
    work.net.eval()
    loss = work.method.loss(work, images)
    logits = work.net(torch.stack([share * images.x[i] + (1 - share) * images.x[partner[i]] for i in range(8)]))
    chances = logits.log_softmax(1).detach().numpy()
    expected = -np.mean(
        [share * chances[i, images.y[i]] + (1 - share) * chances[i, images.y[partner[i]]] for i in range(8)]
    )
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)


def test_a_mixture_of_nothing_is_fedavg() -> None:
    work, images = make_work(Mixup(alpha=1e-6)), batch()  # lambda is 0 or 1: each image is whole, and has its own label
    work.net.eval()
    plain = F.cross_entropy(work.net(images.x), images.y)
    torch.testing.assert_close(work.method.loss(work, images), plain, rtol=1e-4, atol=1e-5)
