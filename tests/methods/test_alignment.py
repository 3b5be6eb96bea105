from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work
from unseen.methods.alignment import CORAL, MMD, WIDTHS, Alignment, correlation_distance, kernel_distance

RNG = np.random.default_rng(0)
ONE, TWO, THREE = RNG.normal(size=(5, 3)), RNG.normal(size=(4, 3)) + 1, RNG.normal(size=(6, 3)) * 2


def numpy_coral(one: np.ndarray, two: np.ndarray) -> float:
    return float(((np.cov(one.T) - np.cov(two.T)) ** 2).sum() / (4 * 3**2))


def numpy_mmd(one: np.ndarray, two: np.ndarray) -> float:
    rows = np.concatenate([one, two])
    width = np.mean([((a - b) ** 2).sum() for a in rows for b in rows])

    def mean(left: np.ndarray, right: np.ndarray) -> float:
        return float(
            np.mean([np.exp(-((a - b) ** 2).sum() / (2 * w * width)) for w in WIDTHS for a in left for b in right])
        )

    return mean(one, one) + mean(two, two) - 2 * mean(one, two)


def test_distances_by_hand() -> None:
    one, two = torch.tensor(ONE), torch.tensor(TWO)
    assert correlation_distance(one, two).item() == pytest.approx(numpy_coral(ONE, TWO))
    assert kernel_distance(one, two).item() == pytest.approx(numpy_mmd(ONE, TWO))
    assert correlation_distance(one, one).item() == kernel_distance(one, one).item() == 0


@pytest.mark.parametrize(("method", "by_hand"), [(CORAL(weight=2.0), numpy_coral), (MMD(weight=2.0), numpy_mmd)])
def test_the_mean_over_pairs_of_domains_counts(method: Alignment, by_hand: object) -> None:
    features = torch.tensor(np.concatenate([ONE, TWO, THREE, np.zeros((1, 3))]))
    domain = torch.tensor([0] * 5 + [1] * 4 + [4] * 6 + [5])  # a domain with one image has no distribution
    work, images = make_work(method), replace(batch(16), domain=domain)
    term = method.penalty(work, images, features)
    pairs = [by_hand(a, b) for a, b in ((ONE, TWO), (ONE, THREE), (TWO, THREE))]  # type: ignore[operator]
    assert term.item() == pytest.approx(2 * np.mean(pairs), rel=1e-5)


@pytest.mark.parametrize("method", [CORAL(), MMD()])
def test_one_domain_is_fedavg(method: Alignment) -> None:
    work, images = make_work(method), replace(batch(), domain=torch.full((8,), 2))
    assert method.penalty(work, images, work.net.features(images.x)).item() == 0
