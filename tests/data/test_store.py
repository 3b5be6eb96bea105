"""Decoded once, cached by content, and clear about files that cannot be read."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.trees import paint, paint_tree
from unseen.core.errors import UserError
from unseen.data import store as room
from unseen.data.digits import index_digits
from unseen.data.domains import index_folder
from unseen.data.store import cache_folder, decode, open_store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded, as they are."""
    seen: list[Path] = []

    def counting(file: Path, size: int, *more: Any) -> np.ndarray:
        seen.append(file)
        return decode(file, size, *more)

    monkeypatch.setattr(room, "decode", counting)
    return seen


def test_images_come_out_as_they_went_in(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set")
    store = open_store(index_folder(tmp_path / "set"), 4, progress=False)
    batch = store.images.batch(torch.tensor([5, 0, 7]))
    assert batch.x.shape == (3, 3, 4, 4) and batch.x.dtype == torch.float32
    assert batch.x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.x[:, 0, 0, 0], torch.tensor([25.0, 0.0, 35.0]) / 255)
    assert batch.y.tolist() == [1, 0, 0]
    assert batch.domain.tolist() == [0, 0, 1]
    assert len(store.images) == 12 and store.images.labels.dtype == torch.int64
    assert store.domain("d1").domains.tolist() == [1] * 6


def test_channels_are_red_green_blue_and_images_are_squeezed(tmp_path: Path) -> None:
    paint(tmp_path / "set/a/c/wide.png", (255, 0, 51), size=(20, 6))
    store = open_store(index_folder(tmp_path / "set"), 8, progress=False)
    x = store.images.batch(torch.tensor([0])).x
    assert torch.equal(x[0, :, 3, 3], torch.tensor([1.0, 0.0, 0.2]))


def test_grey_palette_and_transparent_images_become_colour(tmp_path: Path) -> None:
    folder = tmp_path / "set/a/c"
    folder.mkdir(parents=True)
    Image.new("L", (4, 4), 7).save(folder / "1.png")
    Image.new("RGBA", (4, 4), (9, 8, 7, 255)).save(folder / "2.png")
    Image.new("P", (4, 4), 0).save(folder / "3.gif")
    store = open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert store.images.pixels(torch.arange(2))[:, 0, 0].tolist() == [[7, 7, 7], [9, 8, 7]]
    assert store.images.pixels(torch.tensor([2])).shape == (1, 4, 4, 3)


def test_a_second_start_decodes_nothing(tmp_path: Path, decoded: list[Path]) -> None:
    paint_tree(tmp_path / "set")
    first = open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert (first.decoded, len(decoded)) == (12, 12)
    second = open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert (second.decoded, len(decoded)) == (0, 12)
    every = torch.arange(12)
    np.testing.assert_array_equal(first.images.pixels(every), second.images.pixels(every))


def test_a_second_start_opens_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_tree(tmp_path / "set")
    open_store(index_folder(tmp_path / "set"), 4, progress=False)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} was read"))
    assert open_store(index_folder(tmp_path / "set"), 4, progress=False).decoded == 0


def test_the_same_images_elsewhere_are_known(tmp_path: Path, decoded: list[Path]) -> None:
    paint_tree(tmp_path / "set")
    open_store(index_folder(tmp_path / "set"), 4, progress=False)
    shutil.copytree(tmp_path / "set", tmp_path / "copy", copy_function=shutil.copyfile)
    assert open_store(index_folder(tmp_path / "copy"), 4, progress=False).decoded == 0
    assert len(decoded) == 12


def test_another_size_or_a_changed_image_is_decoded_anew(tmp_path: Path, decoded: list[Path]) -> None:
    paint_tree(tmp_path / "set")
    open_store(index_folder(tmp_path / "set"), 4, progress=False)
    open_store(index_folder(tmp_path / "set"), 5, progress=False)
    assert len(decoded) == 24
    paint(tmp_path / "set/d0/c0/0.png", 200)
    store = open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert len(decoded) == 36
    assert store.images.pixels(torch.tensor([0]))[0, 0, 0, 0] == 200


def test_a_cut_off_array_is_made_again(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set")
    open_store(index_folder(tmp_path / "set"), 4, progress=False)
    (array,) = (tmp_path / "cache/images").glob("*.npy")
    array.write_bytes(array.read_bytes()[:-10])
    store = open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert store.decoded == 12
    assert store.images.pixels(torch.tensor([11]))[0, 0, 0, 0] == 55


def test_any_number_of_threads_gives_the_same_array(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set", domains=3, classes=3, each=16)
    index = index_folder(tmp_path / "set")
    stores = [open_store(index, 4, workers=w, progress=False, cache=tmp_path / f"cache{w}") for w in (1, 3)]
    one, three = (store.images.pixels(torch.arange(144)) for store in stores)
    np.testing.assert_array_equal(one, three)


def test_a_broken_image_stops_with_its_path_and_the_way_on(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set")
    (tmp_path / "set/d0/c1/1.png").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"d0/c1/1\.png cannot be read .*--skip-broken"):
        open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert not list((tmp_path / "cache/images").glob("*.npy")) + list((tmp_path / "cache/images").glob(".tmp*"))


def test_broken_images_are_left_out_and_listed(tmp_path: Path, decoded: list[Path]) -> None:
    paint_tree(tmp_path / "set")
    whole = (tmp_path / "set/d1/c0/2.png").read_bytes()
    (tmp_path / "set/d0/c1/1.png").write_bytes(b"not an image")
    (tmp_path / "set/d1/c0/2.png").write_bytes(whole[: len(whole) // 2])
    for count in (10, 0):  # decoded now, then cached
        store = open_store(index_folder(tmp_path / "set"), 4, skip_broken=True, progress=False)
        assert store.decoded == count
        assert store.left_out == ("d0/c1/1.png", "d1/c0/2.png")
        assert len(store.index) == len(store.images) == 10
        values = store.images.pixels(torch.arange(10))[:, 0, 0, 0].tolist()
        assert values == [0, 5, 10, 15, 25, 30, 35, 45, 50, 55]
    with pytest.raises(UserError, match="d0/c1/1"):
        open_store(index_folder(tmp_path / "set"), 4, progress=False)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint_tree(tmp_path / "set")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(room.os, "fsync", full)
    with pytest.raises(UserError, match=r"disk is full: .*cache.*UNSEEN_CACHE"):
        open_store(index_folder(tmp_path / "set"), 4, progress=False)
    assert not [file for file in (tmp_path / "cache/images").iterdir() if file.suffix == ".npy"]


def test_subsets_of_subsets_and_a_pickled_set_show_the_same_images(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set")
    images = open_store(index_folder(tmp_path / "set"), 4, progress=False).images
    some = images.subset(torch.tensor([9, 3, 6])).subset(np.array([2, 0]))
    assert some.batch(torch.tensor([0, 1])).x[:, 0, 0, 0].mul(255).round().tolist() == [30, 45]
    sent = pickle.dumps(some)
    assert len(sent) < 5_000
    again = pickle.loads(sent)
    assert torch.equal(again.batch(torch.arange(2)).x, some.batch(torch.arange(2)).x)
    assert torch.equal(again.labels, some.labels)


def test_drawn_images_are_cached_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    calls: list[int] = []

    def draw() -> np.ndarray:
        calls.append(1)
        return np.full((len(index), 32, 32, 3), 9, dtype=np.uint8)

    index = replace(index_digits(), draw=draw)
    assert open_store(index, 32).decoded == len(index)
    assert open_store(index, 32).decoded == 0
    assert open_store(index, 16).images.batch(torch.tensor([0])).x.shape == (1, 3, 16, 16)
    assert len(calls) == 2  # once per size


def test_large_jpegs_are_decoded_smaller_and_look_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 640)[None, :, None].repeat(480, 0).repeat(3, 2).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "big.jpg", quality=95)
    small = decode(tmp_path / "big.jpg", 32).astype(int)
    plain = np.asarray(Image.open(tmp_path / "big.jpg").resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(small - plain).max() <= 3


def test_the_cache_is_where_it_should_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("UNSEEN_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "unseen"


def test_a_size_of_nothing_is_refused(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set")
    with pytest.raises(UserError, match="image size"):
        open_store(index_folder(tmp_path / "set"), 0)
