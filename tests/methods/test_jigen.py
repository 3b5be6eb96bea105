from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.tiny_work import batch, make_work
from unseen.methods.jigen import JiGen
from unseen.nets.parts.images import distant_permutations, rearranged


def test_the_loss_by_hand() -> None:
    for shuffled in (True, False):
        work, images = make_work(JiGen(whole=0.3, orders=5, classify_shuffled=shuffled)), batch(16)
        rng = torch.Generator().manual_seed(0)
        order = torch.randint(6, (16,), generator=rng)
        order[torch.rand(16, generator=rng) < 0.3] = 0
        every = torch.from_numpy(np.concatenate([np.arange(9)[None], distant_permutations(5)]))
        assert 0 < int((order > 0).sum()) < 16
        features = work.net.features(rearranged(images.x, every[order]))
        rows = slice(None) if shuffled else order == 0
        expected = F.cross_entropy(work.net.head(features)[rows], images.y[rows])
        expected = expected + 0.7 * F.cross_entropy(work.net.extras["jigsaw"](features), order)
        torch.testing.assert_close(work.method.loss(work, images), expected)


def test_whole_images_only() -> None:
    work, images = make_work(JiGen(whole=1.0, weight=0.0)), batch()
    expected = F.cross_entropy(work.net(images.x), images.y)
    torch.testing.assert_close(work.method.loss(work, images), expected)
    assert work.net.extras["jigsaw"].weight.shape == (31, 256)
