from __future__ import annotations

import numpy as np
import torch

from unseen.nets.parts.adversarial import Discriminator, Generator, RandomProjection, label_code, unit_projection


def test_random_projection_is_a_product_with_unit_columns_and_not_a_parameter() -> None:
    torch.manual_seed(0)
    projection = RandomProjection(6, 3)
    matrix = projection.matrix.numpy()
    assert matrix.shape == (6, 3)
    np.testing.assert_allclose(np.sqrt((matrix**2).sum(axis=0)), np.ones(3), rtol=1e-6)
    h = np.arange(12, dtype=np.float32).reshape(2, 6) / 10
    by_hand = np.array([[sum(h[i, k] * matrix[k, j] for k in range(6)) for j in range(3)] for i in range(2)])
    np.testing.assert_allclose(projection(torch.from_numpy(h)).numpy(), by_hand, rtol=1e-5)
    assert list(projection.parameters()) == []
    assert list(projection.state_dict()) == ["matrix"]


def test_unit_projection_scales_each_drawn_column_by_its_own_length() -> None:
    torch.manual_seed(3)
    raw = torch.randn(4, 2).numpy()
    torch.manual_seed(3)
    got = unit_projection(4, 2).numpy()
    for column in range(2):
        length = float(np.sqrt((raw[:, column] ** 2).sum()))
        np.testing.assert_allclose(got[:, column], raw[:, column] / length, rtol=1e-6)


def test_label_code() -> None:
    labels = torch.tensor([2, 0])
    assert label_code(labels, 3, 0.7).tolist() == [[0, 0, np.float32(0.7)], [np.float32(0.7), 0, 0]]
    assert label_code(labels, 3, 0).shape == (2, 0)


def test_generator_by_hand() -> None:
    torch.manual_seed(0)
    generator = Generator(noise=2, labels=3, hidden=4, features=5)
    w1, b1, w2, b2 = (p.detach().numpy() for p in generator.parameters())
    z, label = np.array([[0.3, 0.9]], dtype=np.float32), np.array([[0, 1, 0]], dtype=np.float32)
    hidden = np.maximum(np.concatenate([z, label], axis=1) @ w1.T + b1, 0)
    by_hand = np.maximum(hidden @ w2.T + b2, 0)
    got = generator(torch.from_numpy(z), torch.from_numpy(label)).detach().numpy()
    np.testing.assert_allclose(got, by_hand, rtol=1e-5, atol=1e-7)


def test_discriminator_by_hand_sees_the_label_after_the_projection() -> None:
    torch.manual_seed(0)
    discriminator = Discriminator(features=6, labels=2, hidden=4, projected=3, projection="fixed")
    projection = discriminator.projection
    assert isinstance(projection, RandomProjection)
    w1, b1, w2, b2 = (p.detach().numpy() for p in discriminator.parameters())
    h, label = np.linspace(0, 1, 6, dtype=np.float32)[None], np.array([[0, 1]], dtype=np.float32)
    seen = np.concatenate([h @ projection.matrix.numpy(), label], axis=1)
    logit = (np.maximum(seen @ w1.T + b1, 0) @ w2.T + b2)[0, 0]
    got = discriminator(torch.from_numpy(h), torch.from_numpy(label))
    assert got.shape == (1,)
    np.testing.assert_allclose(got.item(), 1 / (1 + np.exp(-logit)), rtol=1e-5)


def test_the_three_projections() -> None:
    sizes = {
        kind: [tuple(p.shape) for p in Discriminator(8, 2, 4, 3, kind).parameters()]
        for kind in ("fixed", "trained", "none")
    }
    assert sizes["fixed"] == [(4, 5), (4,), (1, 4), (1,)]
    assert sizes["trained"] == [(3, 8), (4, 5), (4,), (1, 4), (1,)]
    assert sizes["none"] == [(4, 10), (4,), (1, 4), (1,)]
