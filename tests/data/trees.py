"""Small folders of images for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from unseen.data.domains import DomainIndex


def plant(root: Path, files: Iterable[str]) -> None:
    """Make files below a root; they are not images, only named like them."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"")


def paint(file: Path, value: int | tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    """A real image of one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, value if isinstance(value, tuple) else (value, value, value)).save(file)


def paint_tree(root: Path, domains: int = 2, classes: int = 2, each: int = 3) -> None:
    """ROOT/d0/c0/0.png, ...: every image has a grey of its own."""
    value = 0
    for d in range(domains):
        for c in range(classes):
            for k in range(each):
                paint(root / f"d{d}" / f"c{c}" / f"{k}.png", value)
                value += 5


def made_up(domain: Iterable[int], label: Iterable[int], group: Iterable[int] | None = None) -> DomainIndex:
    """An index without files."""
    d, k = np.array(list(domain), dtype=np.int64), np.array(list(label), dtype=np.int64)
    return DomainIndex(
        name="made-up",
        domains=tuple(f"d{i}" for i in range(int(d.max()) + 1)),
        classes=tuple(f"c{i}" for i in range(int(k.max()) + 1)),
        paths=tuple(f"{i}.png" for i in range(len(d))),
        domain=d,
        label=k,
        group=np.arange(len(d)) if group is None else np.array(list(group), dtype=np.int64),
    )
