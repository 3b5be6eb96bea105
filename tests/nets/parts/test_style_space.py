from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.core.errors import UserError
from unseen.nets.parts.style_space import (
    balanced_rows,
    centres_of,
    extrapolate,
    mix,
    nearest_rows,
    partners_of,
    summary,
)
from unseen.nets.parts.styles import Style, restyle, style_of


def dice(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def numpy_style(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 1, loop by loop."""
    mean, std = np.zeros(x.shape[:2]), np.zeros(x.shape[:2])
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            values = x[b, c].ravel()
            mean[b, c] = values.sum() / len(values)
            std[b, c] = np.sqrt(((values - mean[b, c]) ** 2).sum() / len(values) + 1e-6)
    return mean, std


def test_style_information_of_a_client_against_numpy() -> None:
    maps = torch.randn(5, 3, 4, 6, generator=torch.Generator().manual_seed(0)) * 2 + 1
    mean, std = numpy_style(maps.numpy().astype(np.float64))
    expected = [
        mean.sum(0) / 5,
        std.sum(0) / 5,
        ((mean - mean.sum(0) / 5) ** 2).sum(0) / 5,
        ((std - std.sum(0) / 5) ** 2).sum(0) / 5,
    ]
    np.testing.assert_allclose(summary(style_of(maps)).numpy(), np.stack(expected), rtol=1e-5, atol=1e-6)


def test_extrapolation_against_numpy() -> None:
    maps = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1)) * 2 + 1
    old = style_of(maps)
    centre = Style(old.mean.mean(0), old.std.mean(0))
    new = extrapolate(old, centre, alpha=3.0)
    x = maps.numpy().astype(np.float64)
    mean, std = numpy_style(x)
    new_mean = mean + 3.0 * (mean - mean.mean(0))
    new_std = std + 3.0 * (std - std.mean(0))
    expected = new_std[..., None, None] * (x - mean[..., None, None]) / std[..., None, None] + new_mean[..., None, None]
    np.testing.assert_allclose(restyle(maps, new.mean, new.std, old).numpy(), expected, rtol=1e-4, atol=1e-4)
    unmoved = extrapolate(old, centre, alpha=0.0)
    assert torch.equal(unmoved.mean, old.mean) and torch.equal(unmoved.std, old.std)


def test_mixed_styles_lie_between_two_of_the_batch() -> None:
    style = Style(torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([[1.0], [2.0], [3.0]]))
    again = dice(3)
    share, other = again.beta(0.1, 0.1, (3, 1)), again.permutation(3)
    mixed = mix(style, 0.1, dice(3))
    for got, own in zip(mixed, style, strict=True):
        values = own.numpy()
        np.testing.assert_allclose(got.numpy(), share * values + (1 - share) * values[other], rtol=1e-5)


# --- oversampling: the example of Step 3 and of Appendix G: classes a, b, c with 3, 2 and 1 images -------------------
TOY = np.array([0, 1, 0, 2, 1, 0])


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, (0, 0, 0)), (1, (0, 0, 1)), (3, (0, 1, 2)), (6, (1, 2, 3)), (9, (2, 3, 4))],
)
def test_oversampling_of_the_papers_example(size: int, expected: tuple[int, ...]) -> None:
    rows = balanced_rows(TOY, size, dice())
    assert tuple(int((TOY[rows] == label).sum()) for label in range(3)) == expected


def test_an_oversampling_that_cannot_be_even_gives_to_random_classes() -> None:
    given_to = {tuple(TOY[balanced_rows(TOY, 4, dice(seed))][-1:]) for seed in range(30)}
    assert given_to == {(0,), (1,), (2,)}  # after 3 all classes have three; the fourth goes to any


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 40))
def test_oversampling_is_as_balanced_as_can_be(labels: list[int], size: int) -> None:
    before = np.array(labels)
    rows = balanced_rows(before, size, dice())
    assert len(rows) == size
    count_before = np.bincount(before, minlength=6)
    count_after = np.bincount(np.concatenate([before, before[rows]]), minlength=6)
    grown = count_after > count_before
    if grown.any():  # no class that grew is more than one above a class that is present
        assert count_after[grown].max() <= count_after[count_before > 0].min() + 1


# --- who keeps its style ---------------------------------------------------------------------------------------------
def test_two_clear_clusters_keep_one_image_each() -> None:
    points = np.array([[0.0, 0], [0.2, 0], [0.1, 0], [9.0, 9], [9.2, 9], [9.1, 9]], dtype=np.float32)
    centres = centres_of(points, 2, dice())
    np.testing.assert_allclose(np.sort(centres[:, 0]), [0.1, 9.1], rtol=1e-5)
    assert sorted(nearest_rows(points, centres)) == [2, 5]


def test_equal_styles_are_not_kept_twice() -> None:
    points = np.ones((6, 4), dtype=np.float32)
    kept = nearest_rows(points, centres_of(points, 3, dice()))
    assert len(set(kept.tolist())) == 3


def test_styles_that_are_not_finite_are_an_error_for_people() -> None:
    with pytest.raises(UserError, match="diverged"):
        centres_of(np.full((4, 2), np.nan, dtype=np.float32), 2, dice())


# --- partners --------------------------------------------------------------------------------------------------------
def test_partners_are_others_of_the_same_class() -> None:
    labels = np.array([2, 0, 2, 1, 0, 2, 1])  # the last row is a guest: partner of row 3, and needs none itself
    np.testing.assert_array_equal(partners_of(labels, 6), [2, 4, 5, 6, 1, 0])
    np.testing.assert_array_equal(partners_of(np.array([0, 1, 1]), 3), [0, 2, 1])  # alone: itself
