from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from tests.tiny_work import batch, make_work
from unseen.methods.sfa import SFA
from unseen.nets.parts.probabilistic import joined


def test_joined_moments_are_those_of_all_images() -> None:
    rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    state = tuple(torch.zeros(shape, dtype=torch.float64) for shape in ((), (4,), (4, 4)))
    for part in (rows[:1], rows[1:6], rows[6:]):
        state = joined(*state, part)
    assert float(state[0]) == 12
    np.testing.assert_allclose(state[1].numpy(), rows.numpy().mean(0), rtol=1e-10)
    np.testing.assert_allclose(state[2].numpy(), np.cov(rows.numpy().T, bias=True), rtol=1e-10)


def test_the_head_reads_z_alpha_plus_beta() -> None:
    work, images = make_work(SFA(scale=0.3, shift=0.2)), batch()
    z = work.net.features(images.x)
    rng = torch.Generator().manual_seed(0)
    alpha = 1 + 0.3 * torch.randn(8, 256, generator=rng)
    beta = 0.2 * torch.randn(8, 256, generator=rng)
    expected = F.cross_entropy(work.net.head(z * alpha + beta), images.y)
    torch.testing.assert_close(work.method.loss(work, images), expected)
    silent = make_work(SFA(scale=0.0, shift=0.0))
    torch.testing.assert_close(silent.method.loss(silent, images), F.cross_entropy(silent.net.head(z), images.y))


def test_noise_along_the_class_has_its_covariance_and_stays_in_memory() -> None:
    method = SFA(covariance=True)
    work = make_work(method)
    generator = torch.Generator().manual_seed(3)
    shape = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.1]])
    z = torch.cat([torch.randn(400, 3, generator=generator) @ shape.T, torch.zeros(2, 3)])
    labels = torch.tensor([0] * 400 + [1] * 2)
    beta = method._along_class(work, z, labels, torch.randn(402, 3, generator=generator))
    np.testing.assert_allclose(np.cov(beta[:400].numpy().T), (shape @ shape.T).numpy(), atol=0.5)
    assert float(beta[400:].abs().max()) < 0.02  # no spread, no noise
    assert set(work.memory) == {f"{c}/{n}" for c in (0, 1) for n in ("count", "mean", "covariance")}
    method._along_class(work, z, labels, torch.zeros(402, 3))
    assert float(work.memory["0/count"]) == 800
