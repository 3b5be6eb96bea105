from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from unseen.nets.parts.images import (
    OPERATIONS,
    distant_permutations,
    rand_augment,
    random_kernel,
    rearranged,
)


def images(count: int = 4, size: int = 12) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def run(name: str, x: Tensor, strength: float) -> np.ndarray:
    return OPERATIONS[name](x, torch.full((len(x),), strength)).numpy()


def luma(x: np.ndarray) -> np.ndarray:
    return 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]


@pytest.mark.parametrize("strength", [-0.5, 0.5])
def test_enhancements_by_hand(strength: float) -> None:
    x = images()
    a, factor = x.numpy(), 1 + 0.9 * strength
    np.testing.assert_allclose(run("brightness", x, strength), (a * factor).clip(0, 1), atol=1e-6)
    grey = luma(a)[:, None]
    np.testing.assert_allclose(run("colour", x, strength), (grey + factor * (a - grey)).clip(0, 1), atol=1e-6)
    middle = grey.mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(run("contrast", x, strength), (middle + factor * (a - middle)).clip(0, 1), atol=1e-6)
    smooth = a.copy()
    for i in range(1, 11):
        for j in range(1, 11):
            patch = a[:, :, i - 1 : i + 2, j - 1 : j + 2].sum((2, 3))
            smooth[:, :, i, j] = (patch + 4 * a[:, :, i, j]) / 13
    np.testing.assert_allclose(run("sharpness", x, strength), (smooth + factor * (a - smooth)).clip(0, 1), atol=1e-5)


def test_levels_by_hand() -> None:
    x = torch.round(images() * 255) / 255
    a = np.round(x.numpy() * 255).astype(int)
    np.testing.assert_allclose(run("posterize", x, -0.5), (a & 0b11111100) / 255, atol=1e-6)  # 8 - 2 bits
    np.testing.assert_allclose(run("solarize", x, 0.25), np.where(x >= 0.75, 1 - x, x), atol=1e-6)
    stretched = run("auto contrast", x, 1.0)
    low, high = x.numpy().min((2, 3), keepdims=True), x.numpy().max((2, 3), keepdims=True)
    np.testing.assert_allclose(stretched, (x.numpy() - low) / (high - low), atol=1e-5)
    flat = torch.full((1, 3, 4, 4), 0.3)
    for name in ("auto contrast", "equalize"):
        np.testing.assert_array_equal(run(name, flat, 1.0), flat.numpy())


def test_equalize_against_pillow() -> None:
    from PIL import Image, ImageOps

    x = torch.round(images(1, 32).square() * 255) / 255
    picture = Image.fromarray((x[0].permute(1, 2, 0) * 255).round().byte().numpy())
    expected = np.asarray(ImageOps.equalize(picture)).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(run("equalize", x, 1.0)[0], expected, atol=1e-6)


def test_geometry_moves_a_point_where_it_should() -> None:
    x = torch.zeros(1, 3, 33, 33)
    x[:, :, 10, 20] = 1  # 6 above and 4 right of the centre

    def centre(y: np.ndarray) -> tuple[float, float]:
        weight = y[0, 0] / y[0, 0].sum()
        rows, columns = np.mgrid[:33, :33]
        return float((weight * rows).sum()), float((weight * columns).sum())

    assert centre(run("shift x", x, 0.2)) == pytest.approx((10, 20 + 0.2 * 150 / 331 * 33), abs=0.05)
    assert centre(run("shift y", x, -0.2)) == pytest.approx((10 - 0.2 * 150 / 331 * 33, 20), abs=0.05)
    assert centre(run("shear x", x, 1.0)) == pytest.approx((10, 20 + 0.3 * 6), abs=0.05)
    assert centre(run("shear y", x, 1.0)) == pytest.approx((10 - 0.3 * 4, 20), abs=0.05)
    turned = centre(run("rotate", x, 1.0))  # by 30 degrees: the distance from the centre stays
    assert np.hypot(turned[0] - 16, turned[1] - 16) == pytest.approx(np.hypot(6, 4), abs=0.1)
    angle = np.degrees(np.arctan2(turned[0] - 16, turned[1] - 16) - np.arctan2(-6, 4))
    assert abs(angle) == pytest.approx(30, abs=1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_strength_for_all_images_is_that_of_each_to_the_bit(name: str) -> None:
    x = images().contiguous(memory_format=torch.channels_last)
    for strength in (0.0, 0.3, -0.7):
        for_all = OPERATIONS[name](x, torch.full((1,), strength))
        for_each = OPERATIONS[name](x, torch.full((len(x),), strength))
        assert torch.equal(for_all, for_each) and for_all.stride() == for_each.stride()


def test_every_image_draws_for_itself_and_strength_zero_is_nearly_nothing() -> None:
    x = images(16)
    one, two = (rand_augment(x, 2, 1 / 3, torch.Generator().manual_seed(seed)) for seed in (0, 0))
    assert torch.equal(one, two) and one.shape == x.shape
    assert bool((one >= 0).all()) and bool((one <= 1 + 1e-6).all())
    changed = (one - x).abs().flatten(1).amax(1) > 1e-3
    assert changed.sum() > 8
    assert not torch.equal(one, rand_augment(x, 2, 1 / 3, torch.Generator().manual_seed(1)))
    assert torch.equal(rand_augment(x, 0, 1.0, torch.Generator()), x)
    for name in set(OPERATIONS) - {"auto contrast", "equalize", "solarize", "posterize"}:
        np.testing.assert_allclose(run(name, x, 0.0), x.numpy(), atol=1e-4)


def test_random_kernels_keep_the_size_of_what_they_see() -> None:
    rng = torch.Generator().manual_seed(0)
    kernels = [random_kernel((1, 3, 5, 7), rng) for _ in range(200)]
    assert {k.shape[2] for k in kernels} == {1, 3, 5, 7}
    for size in (1, 3, 5, 7):
        entries = torch.cat([k.flatten() for k in kernels if k.shape[2] == size])
        assert float(entries.var()) == pytest.approx(1 / (3 * size * size), rel=0.25)


def test_permutations_are_far_apart_and_always_the_same() -> None:
    # Three tiles: from 012, the first order that differs everywhere is 120; then 201.
    assert distant_permutations(2, 3).tolist() == [[1, 2, 0], [2, 0, 1]]
    orders = distant_permutations(30)
    assert orders.shape == (30, 9) and all(sorted(order) == list(range(9)) for order in orders.tolist())
    everyone = np.concatenate([np.arange(9)[None], orders])
    distances = (everyone[:, None] != everyone[None]).sum(2)[np.triu_indices(31, 1)]
    assert distances.min() >= 7
    assert (orders[0] != np.arange(9)).all()


def test_rearranging_by_hand_with_a_border() -> None:
    x = images(2, 10)  # tiles of 3, a border of one pixel at the end
    order = torch.tensor([[8, 7, 6, 5, 4, 3, 2, 1, 0], list(range(9))])
    y = rearranged(x, order)
    assert torch.equal(y[1], x[1])
    for t in range(9):
        i, j, m, n = t // 3, t % 3, (8 - t) // 3, (8 - t) % 3
        got = y[0, :, 3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
        assert torch.equal(got, x[0, :, 3 * m : 3 * m + 3, 3 * n : 3 * n + 3])
    assert torch.equal(y[:, :, 9], x[:, :, 9]) and torch.equal(y[:, :, :, 9], x[:, :, :, 9])
