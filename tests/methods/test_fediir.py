from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny_work import batch, make_work
from unseen.core.types import Server
from unseen.methods.fediir import FedIIR


def softmax(logits: np.ndarray) -> np.ndarray:
    chances: np.ndarray = np.exp(logits - logits.max(1, keepdims=True))
    return chances / chances.sum(1, keepdims=True)


def numpy_slopes(rows: np.ndarray, labels: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
    errors = softmax(rows @ weight.T + bias) - np.eye(len(bias))[labels]
    return errors.T @ rows / len(rows), errors.mean(0)


def test_a_client_tells_the_gradient_of_its_loss_by_the_head() -> None:
    work = make_work(FedIIR())
    work.net.eval()
    with torch.no_grad():
        told = work.method.survey(work)
        everything = work.site.train.batch(torch.arange(32))
        rows, labels = work.net.features(everything.x).numpy(), everything.y.numpy()
    by_hand = numpy_slopes(rows, labels, *(p.detach().numpy() for p in work.net.head.parameters()))
    np.testing.assert_allclose(told["weight"].numpy(), by_hand[0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(told["bias"].numpy(), by_hand[1], rtol=1e-3, atol=1e-5)
    assert float(told["images"]) == 32


def test_the_server_weighs_by_images_and_remembers_earlier_rounds() -> None:
    method, server = FedIIR(ema=0.75), Server({})
    told = {
        c: {"bias": torch.tensor([v]), "images": torch.tensor(n)} for c, v, n in (("a", 1.0, 30.0), ("b", 5.0, 10.0))
    }
    assert method.brief(server, told, ["a", "b"])["b"]["bias"].item() == pytest.approx(0.25 * 2.0)
    assert method.brief(server, {"a": told["a"]}, ["a"])["a"]["bias"].item() == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert method.brief(server, {}, ["a"]) == {}


def test_the_penalty_by_hand_and_its_gradient_reaches_the_features() -> None:
    rng = np.random.default_rng(0)
    mean = {"weight": rng.normal(size=(3, 256)).astype("f"), "bias": rng.normal(size=3).astype("f")}
    work, images = make_work(FedIIR(weight=0.3), brief={k: torch.tensor(v) for k, v in mean.items()}), batch()
    rows = torch.tensor(rng.normal(size=(8, 256)), dtype=torch.float32, requires_grad=True)
    term = work.method.penalty(work, images, rows)
    own = numpy_slopes(
        rows.detach().numpy(), images.y.numpy(), *(p.detach().numpy() for p in work.net.head.parameters())
    )
    by_hand = ((own[0] - mean["weight"]) ** 2).sum() + ((own[1] - mean["bias"]) ** 2).sum()
    assert term.item() == pytest.approx(0.3 * by_hand, rel=1e-4)
    term.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None and float(rows.grad.abs().sum()) > 0
    work.brief = {}
    assert work.method.penalty(work, images, rows).item() == 0
