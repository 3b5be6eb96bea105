"""The built-in digits: whole, disjoint, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from unseen.data.digits import CLASSES, DOMAINS, draw_digits, index_digits


def test_every_original_is_in_one_domain_twice() -> None:
    index = index_digits()
    assert len(index) == 2 * 1797
    assert index.domains == ("ink", "colour", "outline", "street") == DOMAINS
    assert index.classes == tuple("0123456789") == CLASSES
    originals = [set(index.group[index.rows(domain)].tolist()) for domain in DOMAINS]
    assert set.union(*originals) == set(range(1797))
    assert sum(len(part) for part in originals) == 1797
    assert np.bincount(index.group).tolist() == [2] * 1797


def test_classes_are_spread_evenly() -> None:
    counts = index_digits().counts()
    assert counts.sum(axis=1).tolist() == [900, 898, 898, 898]
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 2


def test_rows_are_sorted_and_named_by_original_and_draw() -> None:
    index = index_digits()
    keys = list(zip(index.domain.tolist(), index.label.tolist(), index.paths, strict=True))
    assert keys == sorted(keys)
    assert index.find("S") == "street"


@pytest.mark.parametrize("domain", DOMAINS)
def test_pictures_are_the_same_every_time_and_two_draws_differ(domain: str) -> None:
    rows = index_digits().rows(domain)[:4].tolist()
    once, again = draw_digits(rows), draw_digits(rows)
    assert once.shape == (4, 32, 32, 3) and once.dtype == np.uint8
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once[0], once[1])  # two renderings of one original
    assert once.std(axis=(1, 2, 3)).min() > 8  # something is to be seen


def test_domains_look_as_they_should() -> None:
    index = index_digits()
    ink, colour, outline, street = (draw_digits(index.rows(d)[::90].tolist()).astype(float) for d in DOMAINS)

    def colourfulness(pictures: np.ndarray) -> float:
        return float((pictures.max(axis=-1) - pictures.min(axis=-1)).mean())

    assert colourfulness(ink) == 0
    assert colourfulness(colour) > 40
    assert outline.mean() > 180  # mostly paper

    def sharpness(pictures: np.ndarray) -> float:
        return float(np.abs(np.diff(pictures, axis=2)).mean() / pictures.std())

    assert sharpness(street) < sharpness(colour)
