from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work
from unseen.methods.irm import IRM, invariance


def numpy_slope(logits: np.ndarray, labels: np.ndarray) -> float:
    """d/ds of the mean cross-entropy of s * logits at s = 1: the logits expected under softmax, minus the label's."""
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    return float(((chances * logits).sum(1) - logits[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize("halves", [False, True])
def test_invariance_by_hand(halves: bool) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(7, 3)), rng.integers(0, 3, 7)

    def by_hand(rows: np.ndarray) -> float:
        if halves:
            return numpy_slope(rows[::2], labels[::2]) * numpy_slope(rows[1::2], labels[1::2])
        return numpy_slope(rows, labels) ** 2

    rows = torch.tensor(logits, requires_grad=True)
    term = invariance(rows, torch.tensor(labels), halves)
    assert term.item() == pytest.approx(by_hand(logits), rel=1e-4)
    term.backward()  # type: ignore[no-untyped-call]
    step, numeric = 1e-4, np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        for sign in (1, -1):
            moved = logits.copy()
            moved[place] += sign * step
            numeric[place] += sign * by_hand(moved) / (2 * step)
    assert rows.grad is not None
    np.testing.assert_allclose(rows.grad.numpy(), numeric, atol=1e-5)


def test_it_counts_only_after_the_first_rounds() -> None:
    work, images = make_work(IRM(weight=3.0, warmup=0.5), rounds=4), batch()
    features = work.net.features(images.x)
    expected = 3.0 * invariance(work.net.head(features), images.y).item()
    found = []
    for round in (1, 2, 3, 4):
        work.round = round
        found.append(work.method.penalty(work, images, features).item())
    assert found == pytest.approx([0, 0, expected, expected])
