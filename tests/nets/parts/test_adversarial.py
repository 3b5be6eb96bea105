from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unseen.nets.parts.adversarial import (
    Activation,
    Classifier,
    Discriminator,
    End,
    Generator,
    RandomProjection,
    label_code,
    two_layer_classifier,
    unit_projection,
)


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


@pytest.mark.parametrize("end", ["relu", "linear"])
@pytest.mark.parametrize(("kind", "slope"), [("relu", 0.0), ("leaky", 0.01)])
def test_generator_by_hand(kind: Activation, slope: float, end: End) -> None:
    torch.manual_seed(0)
    generator = Generator(noise=2, labels=3, features=5, between=kind, end=end)
    w1, b1, w2, b2 = (p.detach().numpy() for p in generator.parameters())
    z, label = np.array([[0.3, 0.9]], dtype=np.float32), np.array([[0, 1, 0]], dtype=np.float32)
    before = np.concatenate([z, label], axis=1) @ w1.T + b1
    assert (before < 0).any()
    hidden = np.where(before > 0, before, slope * before)
    by_hand = hidden @ w2.T + b2
    assert (by_hand < 0).any()
    if end == "relu":
        by_hand = np.maximum(by_hand, 0)
    got = generator(torch.from_numpy(z), torch.from_numpy(label)).detach().numpy()
    np.testing.assert_allclose(got, by_hand, rtol=1e-5, atol=1e-7)


def test_initial_weights_are_within_the_authors_bounds_and_fill_them() -> None:
    """G: Xavier, gain 1/2, +-sqrt(6 / (in + out)) / 2. D: He, +-sqrt(6 / in)."""
    torch.manual_seed(0)
    generator, discriminator = Generator(30, 10, 60, "leaky", "relu"), Discriminator(60, 10, 50, 20, "trained", "leaky")
    bounds = {
        "G first": (generator.layers[0], 0.5 * np.sqrt(6 / (40 + 60))),
        "G second": (generator.layers[2], 0.5 * np.sqrt(6 / (60 + 60))),
        "D projection": (discriminator.projection, np.sqrt(6 / 60)),
        "D first": (discriminator.layers[0], np.sqrt(6 / 30)),
        "D second": (discriminator.layers[2], np.sqrt(6 / 50)),
    }
    for name, (layer, bound) in bounds.items():
        assert isinstance(layer, nn.Linear)
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound, name


@pytest.mark.parametrize("kind", ["relu", "official"])
def test_two_layer_classifier_by_hand(kind: Classifier) -> None:
    torch.manual_seed(0)
    classifier = two_layer_classifier(6, 3, kind)
    w1, b1, w2, b2 = (p.detach().numpy() for p in classifier.parameters())
    assert w1.shape == (6, 6) and w2.shape == (3, 6)
    h = np.linspace(0, 2, 12, dtype=np.float32).reshape(2, 6)
    middle = h @ w1.T + b1
    assert (middle < 0).any()
    by_hand = (np.maximum(middle, 0) if kind == "relu" else middle) @ w2.T + b2
    np.testing.assert_allclose(classifier(torch.from_numpy(h)).detach().numpy(), by_hand, rtol=1e-5, atol=1e-6)


def test_the_official_classifier_starts_with_hes_weights() -> None:
    torch.manual_seed(0)
    hidden, output = (layer.weight for layer in two_layer_classifier(400, 100, "official") if hasattr(layer, "weight"))
    for weight in (hidden, output):
        assert float(weight.detach().std()) == pytest.approx(np.sqrt(2 / 400), rel=0.02)


@pytest.mark.parametrize(("kind", "slope"), [("relu", 0.0), ("leaky", 0.01)])
def test_discriminator_by_hand_sees_the_label_after_the_projection(kind: Activation, slope: float) -> None:
    torch.manual_seed(0)
    discriminator = Discriminator(6, labels=2, hidden=8, projected=3, projection="fixed", between=kind)
    projection = discriminator.projection
    assert isinstance(projection, RandomProjection)
    w1, b1, w2, b2 = (p.detach().numpy() for p in discriminator.parameters())
    h, label = np.linspace(0, 1, 6, dtype=np.float32)[None], np.array([[0, 1]], dtype=np.float32)
    seen = np.concatenate([h @ projection.matrix.numpy(), label], axis=1)
    before = seen @ w1.T + b1
    assert (before < 0).any()
    logit = (np.where(before > 0, before, slope * before) @ w2.T + b2)[0, 0]
    got = discriminator(torch.from_numpy(h), torch.from_numpy(label))
    assert got.shape == (1,)
    np.testing.assert_allclose(got.item(), 1 / (1 + np.exp(-logit)), rtol=1e-5)


def test_the_three_projections() -> None:
    sizes = {
        kind: [tuple(p.shape) for p in Discriminator(8, 2, 4, 3, kind, "relu").parameters()]
        for kind in ("fixed", "trained", "none")
    }
    assert sizes["fixed"] == [(4, 5), (4,), (1, 4), (1,)]
    assert sizes["trained"] == [(3, 8), (4, 5), (4,), (1, 4), (1,)]
    assert sizes["none"] == [(4, 10), (4,), (1, 4), (1,)]
