from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.tiny_work import batch, make_work
from unseen.core.tensors import snapshot
from unseen.method import compose
from unseen.methods.fedprox import FedProx
from unseen.methods.fedsam import FedSAM, ascent
from unseen.methods.mixstyle import MixStyle
from unseen.nets.parts.shifted import along, shifted


@pytest.mark.parametrize("eta", [None, 0.3])
def test_ascent_by_hand(eta: float | None) -> None:
    rng = np.random.default_rng(0)
    w, g = [rng.normal(size=4), rng.normal(size=(2, 3))], [rng.normal(size=4), rng.normal(size=(2, 3))]
    t = [np.ones_like(a) if eta is None else np.abs(a) + eta for a in w]
    length = np.sqrt(sum(((a * b) ** 2).sum() for a, b in zip(t, g, strict=True)))
    got = ascent([nn.Parameter(torch.tensor(a)) for a in w], [torch.tensor(a) for a in g], 0.7, eta)
    for move, scale, slope in zip(got, t, g, strict=True):
        assert move is not None
        np.testing.assert_allclose(move.numpy(), 0.7 * scale**2 * slope / length, rtol=1e-6)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_step_is_along_the_gradient_uphill(adaptive: bool) -> None:
    method = FedSAM(adaptive=adaptive, rho=0.1)
    work, images = make_work(method), batch()
    parameters = list(work.net.parameters())
    start = [p.detach().clone() for p in parameters]
    F.cross_entropy(work.net(images.x), images.y).backward()  # type: ignore[no-untyped-call]
    running = {key: value for key, value in snapshot(work.net).items() if key in work.net.running_statistics()}
    up = ascent(parameters, [p.grad for p in parameters], 0.1, 0.01 if adaptive else None)
    with torch.no_grad():
        for p, move in zip(parameters, up, strict=True):
            p.add_(move)
            p.grad = None
    F.cross_entropy(work.net(images.x), images.y).backward()  # type: ignore[no-untyped-call]
    slopes = [p.grad.clone() for p in parameters]

    work = make_work(method)
    method.step(work, images)
    for p, old, slope in zip(work.net.parameters(), start, slopes, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.05 * slope, rtol=1e-4, atol=1e-6)
    # Only the pass at w moved the running statistics.
    for key, value in running.items():
        assert torch.equal(work.net.state_dict()[key], value), key


def test_both_passes_see_the_same_draws() -> None:
    """With a radius of nearly nothing the step is FedAvg's, also when the net mixes styles at random."""
    one = compose(MixStyle(p=1.0), FedSAM(rho=1e-9))
    two = compose(MixStyle(p=1.0), FedProx(mu=0.0))
    after = []
    for method in (one, two):
        torch.manual_seed(4)
        work = make_work(method)
        torch.manual_seed(5)
        method.step(work, batch())
        after.append(snapshot(work.net))
    for key in after[0]:
        torch.testing.assert_close(after[0][key], after[1][key], rtol=1e-4, atol=1e-6)


def test_shifted_gives_the_old_bits_back_and_along_has_these_gradients() -> None:
    p = nn.Parameter(torch.tensor([0.1, 1e8]))
    old = p.detach().clone()
    with shifted([p], [torch.tensor([0.3, 0.7])]):
        assert p[0].item() == pytest.approx(0.4)
    assert torch.equal(p.detach(), old)
    slope = torch.tensor([0.123, -4.5])
    along([p], [slope]).backward()  # type: ignore[no-untyped-call]
    assert p.grad is not None and torch.equal(p.grad, slope)
