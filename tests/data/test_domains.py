"""Folders -> an index, and every way a folder can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.trees import plant
from unseen.core.errors import UserError
from unseen.data.domains import index_folder, index_site


def test_a_folder_becomes_rows_sorted_by_domain_class_and_name(tmp_path: Path) -> None:
    plant(tmp_path, ["b/dog/2.png", "b/dog/10.PNG", "b/cat/x.jpg", "a/cat/z.JPEG", "a/dog/y.bmp"])
    plant(tmp_path, ["a/dog/.hidden.png", "a/dog/notes.txt", ".git/dog/1.png", "readme/about.txt"])
    index = index_folder(tmp_path)
    assert index.domains == ("a", "b")
    assert index.classes == ("cat", "dog")
    assert index.paths == ("a/cat/z.JPEG", "a/dog/y.bmp", "b/cat/x.jpg", "b/dog/10.PNG", "b/dog/2.png")
    assert index.domain.tolist() == [0, 0, 1, 1, 1]
    assert index.label.tolist() == [0, 1, 0, 1, 1]
    assert index.group.tolist() == [0, 1, 2, 3, 4]
    assert index.counts().tolist() == [[1, 1], [1, 2]]
    assert index.rows("b").tolist() == [2, 3, 4]
    assert index.sources("a") == ("b",)


def test_leaving_rows_out_keeps_the_rest_in_order(tmp_path: Path) -> None:
    plant(tmp_path, ["a/cat/1.png", "a/cat/2.png", "a/cat/3.png"])
    assert index_folder(tmp_path).without([1]).paths == ("a/cat/1.png", "a/cat/3.png")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere does not exist.*--root"):
        index_folder(tmp_path / "nowhere")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(UserError, match=r"a\.zip is a file"):
        index_folder(tmp_path / "a.zip")


def test_a_folder_without_images_says_what_is_expected(tmp_path: Path) -> None:
    plant(tmp_path, ["a/dog/notes.txt"])
    with pytest.raises(UserError, match=r"no images in .*DOMAIN/CLASS"):
        index_folder(tmp_path)


def test_a_domain_that_lacks_a_class_is_named(tmp_path: Path) -> None:
    plant(tmp_path, ["a/dog/1.png", "a/cat/1.png", "b/dog/1.png", "b/cat/1.png", "c/dog/1.png"])
    with pytest.raises(UserError, match='domain "c" has no class "cat"'):
        index_folder(tmp_path)


def test_a_domain_with_a_class_of_its_own_is_named(tmp_path: Path) -> None:
    plant(tmp_path, ["a/dog/1.png", "b/dog/1.png", "c/dog/1.png", "c/cow/1.png"])
    with pytest.raises(UserError, match='domain "c" has a class "cow"'):
        index_folder(tmp_path)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    plant(tmp_path, ["a/dog/1.png", "b/dog/1.png", "a/cat/1.png", "b/cat/notes.txt"])
    with pytest.raises(UserError, match='class "cat" of domain "b" is empty'):
        index_folder(tmp_path)


def test_a_target_that_is_no_domain_is_told_the_nearest(tmp_path: Path) -> None:
    plant(tmp_path, ["photo/dog/1.png", "Real World/dog/1.png"])
    index = index_folder(tmp_path)
    with pytest.raises(UserError, match=r'"foto" is not a domain of folder\. Did you mean "photo"'):
        index.sources("foto")
    assert index.find("real_world") == "Real World"


def test_a_site_has_the_rows_of_its_domain_in_the_same_order(tmp_path: Path) -> None:
    plant(tmp_path, ["a/dog/1.png", "a/cat/1.png", "b/dog/2.png", "b/dog/10.png", "b/cat/q.png"])
    whole, site = index_folder(tmp_path), index_site(tmp_path / "b", ("cat", "dog"))
    rows = whole.rows("b")
    assert site.domains == ("b",)
    assert [f"b/{path}" for path in site.paths] == [whole.paths[row] for row in rows]
    np.testing.assert_array_equal(site.label, whole.label[rows])


def test_a_site_may_lack_a_class_but_not_have_another(tmp_path: Path) -> None:
    plant(tmp_path, ["dog/1.png"])
    assert index_site(tmp_path, ("cat", "dog")).label.tolist() == [1]
    with pytest.raises(UserError, match='class "dog" that the federation does not have'):
        index_site(tmp_path, ("cat", "cow"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images"):
        index_site(tmp_path / "empty")
