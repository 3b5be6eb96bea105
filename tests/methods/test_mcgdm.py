from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.test_fediir import numpy_slopes, softmax
from tests.tiny_work import batch, make_work
from unseen.core.tensors import prefixed
from unseen.core.types import Reply, Server
from unseen.methods.mcgdm import MCGDM, discrepancy


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def numpy_discrepancy(one: tuple[np.ndarray, ...], two: tuple[np.ndarray, ...]) -> float:
    rows = np.mean([1 - cosine(a, b) for a, b in zip(one[0], two[0], strict=True)])
    return float((rows + 1 - cosine(one[1], two[1])) / 2)


def test_discrepancy_by_hand() -> None:
    rng = np.random.default_rng(0)
    one, two = ((rng.normal(size=(3, 5)), rng.normal(size=3)) for _ in range(2))
    tensors = [{"weight": torch.tensor(w), "bias": torch.tensor(b)} for w, b in (one, two)]
    assert discrepancy(*tensors).item() == pytest.approx(numpy_discrepancy(one, two))


def test_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is the negative image, so that whose gradient is whose can be seen: other heads see the image alone."""
    monkeypatch.setattr("unseen.methods.mcgdm.rand_augment", lambda x, operations, strength, rng: 1 - x)
    images, rng = batch(), np.random.default_rng(3)
    heads = [{"weight": rng.normal(size=(3, 256)).astype("f"), "bias": rng.normal(size=3).astype("f")} for _ in "ab"]
    brief = {f"{c}/{key}": torch.tensor(v) for c, head in zip("ab", heads, strict=True) for key, v in head.items()}
    work = make_work(MCGDM(intra=0.6, inter=0.3), brief=brief)
    work.net.eval()
    with torch.no_grad():
        rows, copied = (work.net.features(x).numpy() for x in (images.x, 1 - images.x))
    own, labels = [p.detach().numpy() for p in work.net.head.parameters()], images.y.numpy()
    risks = [-np.log(softmax(z @ own[0].T + own[1])[np.arange(8), labels]).mean() for z in (rows, copied)]
    asked = numpy_slopes(copied, labels, *own)
    intra = numpy_discrepancy(numpy_slopes(rows, labels, *own), asked)
    others = [numpy_slopes(rows, labels, head["weight"], head["bias"]) for head in heads]
    inter = np.mean([numpy_discrepancy(other, asked) for other in others])
    by_hand = np.mean(risks) + 0.6 * intra + 0.3 * inter
    assert work.method.loss(work, images).item() == pytest.approx(by_hand, rel=1e-4)


def test_heads_travel_and_the_first_round_uses_the_servers() -> None:
    method, server = MCGDM(operations=0), Server({})
    assert method.brief(server, {}, ["a"])["a"] == {}
    work = make_work(method)
    work.net.eval()
    plain = torch.nn.functional.cross_entropy(work.net(batch().x), batch().y)
    assert work.method.loss(work, batch()).item() == pytest.approx(plain.item(), rel=1e-3)  # received = own: inter 0
    state = {"backbone.w": torch.ones(1), **prefixed("head.", dict(work.net.head.state_dict()))}
    method.hear(server, Reply("b", "train", 1, 5, state=state))
    assert sorted(method.brief(server, {}, ["a"])["a"]) == ["b/bias", "b/weight"]
