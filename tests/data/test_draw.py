"""Pictures are drawn whole, in the asked form, without a window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.trees import made_up, paint_tree
from unseen.core.errors import UserError
from unseen.data.domains import index_folder
from unseen.data.draw import draw_partition, draw_samples
from unseen.data.split import partition
from unseen.data.store import open_store


def test_samples_show_every_domain(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set", domains=3, classes=12, each=2)
    store = open_store(index_folder(tmp_path / "set"), 8, progress=False, cache=tmp_path / "cache")
    out = draw_samples(store, tmp_path / "pictures/samples.png", per_domain=20)
    picture = np.asarray(Image.open(out).convert("RGB")).astype(int)
    grey = set(picture[(picture == picture[..., :1]).all(axis=-1)][:, 0].tolist())
    # The greys of the last domain's images, which no text or background has, are in the picture.
    assert len(grey & {240 + 5 * k for k in range(3)}) > 0 and len(grey) > 20
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["samples.png"]


def test_the_same_samples_every_time(tmp_path: Path) -> None:
    paint_tree(tmp_path / "set", each=6)
    store = open_store(index_folder(tmp_path / "set"), 8, progress=False, cache=tmp_path / "cache")
    one, two = (draw_samples(store, tmp_path / name, per_domain=2).read_bytes() for name in ("1.png", "2.png"))
    assert one == two


@pytest.mark.parametrize("rule", ["domain", "mixed:8:0.5:1"])
def test_a_partition_is_drawn(tmp_path: Path, rule: str) -> None:
    index = made_up([d for d in range(3) for _ in range(40)], [k % 4 for k in range(120)])
    clients = partition(index, ("d0", "d2"), rule, 0)
    out = draw_partition(index, clients, tmp_path / "partition.png")
    picture = np.asarray(Image.open(out).convert("RGB")).reshape(-1, 3)
    colours = {tuple(int(v) for v in pixel) for pixel in picture[::3]}
    assert (0x2F, 0x6F, 0x9F) in colours and (0x4D, 0x8B, 0x57) in colours  # d0 and d2
    assert (0xC2, 0x6A, 0x2D) not in colours  # d1 is not a source


def test_other_forms(tmp_path: Path) -> None:
    index = made_up([0, 0, 1], [0, 1, 0])
    svg = draw_partition(index, {"a": np.array([0, 1]), "b": np.array([2])}, tmp_path / "p.svg")
    assert "<svg" in svg.read_text()
    with pytest.raises(UserError, match=r"\.png, \.svg or \.pdf"):
        draw_partition(index, {"a": np.array([0])}, tmp_path / "p.xyz")
    with pytest.raises(UserError, match="no clients"):
        draw_partition(index, {}, tmp_path / "p.png")
