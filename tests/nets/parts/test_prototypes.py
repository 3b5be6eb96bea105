from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tests.tiny_work import batch, make_work
from unseen.method import Method
from unseen.nets.parts.prototypes import first_neighbours, gather, own_prototypes


def test_prototypes_are_the_mean_features_of_the_second_half_of_a_round() -> None:
    work = make_work(Method())  # four steps
    rng = np.random.default_rng(0)
    rows, labels = (
        rng.normal(size=(4, 8, work.net.feature_size)),
        rng.integers(0, 2, (4, 8)),
    )  # nothing of the third class
    for work.step in range(4):
        images = replace(batch(), y=torch.tensor(labels[work.step]))
        gather(work, images, torch.tensor(rows[work.step], requires_grad=True))
    found = own_prototypes(work)
    for k in range(2):
        late = rows[2:][labels[2:] == k]
        assert found["counts"][k] == len(late)
        np.testing.assert_allclose(found["means"][k].numpy(), late.mean(0), rtol=1e-5, atol=1e-6)
    assert found["counts"][2] == found["means"][2].abs().sum() == 0


def test_first_neighbours_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [5.0, 1.0], [-0.2, 3.0]])
    # by angle: 0 and 1 are nearest to each other, 3 is nearest to 1; 2 and 4 are nearest to each other
    assert sorted(map(sorted, first_neighbours(rows))) == [[0, 1, 3], [2, 4]]
    assert first_neighbours(rows[:1]) == [[0]]
    assert first_neighbours(rows[:0]) == []
    assert len(first_neighbours(rows[:3])) == 1  # of three rows each has a neighbour: one cluster, always
