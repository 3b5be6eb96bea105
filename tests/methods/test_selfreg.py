from __future__ import annotations

import numpy as np
import torch

from tests.tiny_work import batch, make_work
from unseen.methods.selfreg import SelfReg, partners


def test_partners_are_of_the_same_class_and_none_twice() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 1, 0])
    rng = torch.Generator().manual_seed(0)
    drawn = [partners(labels, rng) for _ in range(20)]
    for found in drawn:
        assert torch.equal(labels[found], labels) and sorted(found.tolist()) == list(range(8))
    assert len({tuple(found.tolist()) for found in drawn}) > 10


def test_the_loss_by_hand() -> None:
    for mixup, scaling in ((True, True), (False, True), (True, False)):
        work, images = make_work(SelfReg(mixup=mixup, scaling=scaling)), batch()
        with torch.no_grad():
            features = work.net.features(images.x)
            z, s, p = (
                t.double().numpy() for t in (features, work.net.head(features), work.net.extras["projection"](features))
            )
        rng = torch.Generator().manual_seed(0)
        a, b = (partners(images.y, rng).numpy() for _ in range(2))
        share = np.random.default_rng(int(torch.randint(2**62, (), generator=rng))).beta(0.5, 0.5)
        chances = np.exp(s) / np.exp(s).sum(1, keepdims=True)
        ce = -np.log(chances[np.arange(8), images.y.numpy()]).mean()
        near = ((s - s[a]) ** 2).mean() + 0.3 * ((z - p[a]) ** 2).mean()
        mixed = ((s - share * s[a] - (1 - share) * s[b]) ** 2).mean()
        mixed += 0.3 * ((z - share * p[a] - (1 - share) * p[b]) ** 2).mean()
        terms = share * near + (1 - share) * mixed if mixup else near
        expected = ce + (min(ce, 1) if scaling else 1) * terms
        np.testing.assert_allclose(work.method.loss(work, images).item(), expected, rtol=1e-4)
