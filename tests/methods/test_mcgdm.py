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


def test_loss_by_hand() -> None:
    """Without augmentation strength the copy differs only by what RandAugment does at 0; the net is in eval mode."""
    method, images, rng = MCGDM(intra=0.6, inter=0.3, operations=0), batch(), np.random.default_rng(3)
    heads = [{"weight": rng.normal(size=(3, 256)).astype("f"), "bias": rng.normal(size=3).astype("f")} for _ in "ab"]
    brief = {f"{c}/{key}": torch.tensor(v) for c, head in zip("ab", heads, strict=True) for key, v in head.items()}
    work = make_work(method, brief=brief)
    work.net.eval()
    rows, labels = work.net.features(images.x).detach().numpy(), images.y.numpy()
    own = [p.detach().numpy() for p in work.net.head.parameters()]
    slopes = numpy_slopes(rows, labels, *own)
    risk = -np.log(softmax(rows @ own[0].T + own[1])[np.arange(8), labels]).mean()
    others = [numpy_slopes(rows, labels, head["weight"], head["bias"]) for head in heads]
    inter = np.mean([numpy_discrepancy(other, slopes) for other in others])
    assert work.method.loss(work, images).item() == pytest.approx(risk + 0.3 * inter, rel=1e-3)  # copy = image: intra 0


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
