from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work, tiny_net
from unseen.methods.fpl import FPL, clustered

SIZE = tiny_net(FPL()).feature_size


def test_many_alike_do_not_outvote_the_cluster_that_differs() -> None:
    one = [[1.0, 0.0], [1.0, 0.02], [1.0, 0.01], [0.0, 1.0], [0.1, 1.0]]  # five clients, one class
    means = torch.tensor(one, dtype=torch.float64)[:, None]
    found = clustered(means, torch.ones(5, 1))
    by_hand = np.array([np.mean(one[:3], axis=0), np.mean(one[3:], axis=0)])
    order = found["clusters"][:, 0].argsort(descending=True)
    np.testing.assert_allclose(found["clusters"][order].numpy(), by_hand, rtol=1e-6)
    np.testing.assert_allclose(found["unbiased"][0].numpy(), by_hand.mean(0), rtol=1e-6)
    assert found["classes"].tolist() == [0, 0]


def test_clients_without_a_class_and_classes_without_a_client() -> None:
    means = torch.ones(2, 3, 4, dtype=torch.float64)
    means[1, 0] = 5.0
    found = clustered(means, torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    assert found["classes"].tolist() == [0, 1]  # the second client's 5.0 is of no image
    assert found["clusters"].tolist() == [[1.0] * 4] * 2
    assert found["unbiased"][2].tolist() == [0.0] * 4


def test_the_penalty_by_hand() -> None:
    rng = torch.Generator().manual_seed(3)
    brief = {
        "clusters": torch.randn(3, SIZE, generator=rng),
        "classes": torch.tensor([0, 0, 2]),
        "unbiased": torch.randn(3, SIZE, generator=rng),
    }
    method = FPL(temperature=0.5, contrast=2.0, consistency=3.0)
    work, images = make_work(method, brief=brief), batch()
    features = work.net.features(images.x)
    labels, rows = images.y.numpy(), features.detach().numpy()
    clusters = brief["clusters"].numpy()
    contrast, consistency = [], []
    for row, label in zip(rows, labels, strict=True):
        if label == 1:  # has no prototype
            continue
        cosines = clusters @ row / np.linalg.norm(row) / np.linalg.norm(clusters, axis=1)
        powers = np.exp(cosines / 0.5)
        contrast.append(-np.log(powers[brief["classes"].numpy() == label].sum() / powers.sum()))
        consistency.append(((row - brief["unbiased"].numpy()[label]) ** 2).mean())
    expected = 2 * np.mean(contrast) + 3 * np.mean(consistency)
    assert method.penalty(work, images, features).item() == pytest.approx(expected, rel=1e-4)
    assert FPL().penalty(make_work(FPL()), images, features).item() == 0
