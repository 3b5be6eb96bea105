from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.test_fediir import softmax
from tests.tiny_work import batch, make_work
from unseen.methods.fedlgf import FedLGF, apart


def kl(target: np.ndarray, answers: np.ndarray) -> float:
    p, q = softmax(target), softmax(answers)
    return float((p * np.log(p / q)).sum(1).mean())


def test_the_worst_move_by_hand() -> None:
    """The gradient of the divergence by the move, in closed form for a linear head."""
    method, rng = FedLGF(variant="weights", start=0.4, size=0.2), np.random.default_rng(0)
    work = make_work(method)
    rows, logits = rng.normal(size=(6, 256)), rng.normal(size=(6, 3))
    weight, bias = rng.normal(size=(3, 256)), rng.normal(size=3)
    move = torch.rand(3, 256, generator=torch.Generator().manual_seed(7)).double().numpy() - 0.5
    move /= np.linalg.norm(move, axis=1, keepdims=True)
    there = softmax(rows @ (weight + 0.4 * move).T + bias)
    slope = 0.4 * (there - softmax(logits)).T @ rows / 6
    worst = rows @ (weight + 0.2 * slope / np.linalg.norm(slope, axis=1, keepdims=True)).T + bias
    head = {"weight": torch.tensor(weight), "bias": torch.tensor(bias)}
    net = work.net.double()
    found = method.moved(net, head, torch.tensor(rows), torch.tensor(logits), torch.Generator().manual_seed(7))
    np.testing.assert_allclose(found.numpy(), worst, rtol=1e-4, atol=1e-4)
    assert not found.requires_grad


def test_the_worst_move_of_singular_values_by_hand() -> None:
    """W = sum over i of s_i u_i v_i: the slope by s_i is u_i' G v_i with the gradient G by W, and 0 where s_i is cut."""
    method, rng = FedLGF(variant="singular", start=30.0, size=0.5), np.random.default_rng(0)
    work = make_work(method)
    rows, logits = rng.normal(size=(6, 256)) / 16, rng.normal(size=(6, 3))
    weight, bias = rng.normal(size=(3, 256)), rng.normal(size=3)
    move = torch.randn(3, generator=torch.Generator().manual_seed(0)).double().numpy()
    move /= np.linalg.norm(move)
    u, s, v = np.linalg.svd(weight, full_matrices=False)
    tried = s + 30 * move
    kept = tried > 0
    assert 0 < kept.sum() < 3  # otherwise nothing is seen of relu
    there = softmax(rows @ ((u * tried * kept) @ v).T + bias)
    by_weight = (there - softmax(logits)).T @ rows / 6
    slope = 30 * kept * np.diag(u.T @ by_weight @ v.T)
    worst = rows @ ((u * (s + 0.5 * slope / np.linalg.norm(slope))) @ v).T + bias
    head = {"weight": torch.tensor(weight), "bias": torch.tensor(bias)}
    net = work.net.double()
    found = method.moved(net, head, torch.tensor(rows), torch.tensor(logits), torch.Generator().manual_seed(0))
    np.testing.assert_allclose(found.numpy(), worst, rtol=1e-5, atol=1e-6)
    assert not found.requires_grad and not np.allclose(found.numpy(), rows @ weight.T + bias, atol=1e-3)


def test_the_default_moves_singular_values_as_the_authors_run_it() -> None:
    plain, theirs = FedLGF(variant="weights"), FedLGF()
    assert (plain.draws, plain.start, plain.size) == ("uniform", 0.1, 0.01)
    assert (theirs.draws, theirs.start, theirs.size) == ("normal", 10.0, 0.1)
    assert plain.about.remark == "weights moved, not singular values"
    assert theirs.about.remark == "" and theirs.about.needs == plain.about.needs != FedLGF(far=0.0).about.needs
    work, images = make_work(theirs), batch()
    theirs.prepare(work)
    work.method.step(work, images)
    assert all(bool(p.isfinite().all()) for p in work.net.parameters())


def test_without_far_the_received_model_is_not_kept() -> None:
    for far, kept in ((0.0, False), (0.1, True)):
        work = make_work(FedLGF(far=far))
        work.method.prepare(work)
        assert ("received" in work.scratch) == kept


def test_the_penalty_is_of_the_own_answers_alone() -> None:
    work, images = make_work(FedLGF(near=2.0, far=0.0, size=0.5)), batch()
    work.method.prepare(work)
    features = work.net.features(images.x)
    logits = work.net.head(features)
    state = work.rng.get_state()
    own = work.method.moved(  # type: ignore[attr-defined]
        work.net, dict(work.net.head.named_parameters()), features.detach(), logits.detach(), work.rng
    )
    work.rng.set_state(state)
    term = work.method.penalty(work, images, features)
    assert term.item() == pytest.approx(2 * kl(own.numpy(), logits.detach().numpy()), rel=1e-3)
    assert apart(logits, own).item() == pytest.approx(term.item() / 2, rel=1e-5)


def test_far_is_by_the_received_model() -> None:
    """A net that has left the received one by its head alone: far compares the two heads, near is of the own."""
    work, images = make_work(FedLGF(near=0.0, far=1.0, start=0.1, size=1e-6)), batch()
    work.method.prepare(work)
    work.net.eval()
    with torch.no_grad():
        received = work.net(images.x)
        work.net.head.bias += torch.tensor([1.0, 0.0, -1.0])
        features = work.net.features(images.x)
    term = work.method.penalty(work, images, features)
    assert term.item() == pytest.approx(kl(received.numpy(), work.net.head(features).detach().numpy()), rel=1e-2)
