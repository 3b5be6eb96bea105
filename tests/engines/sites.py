"""Small site folders and settings that several tests of the Flower engine share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.small_runs import settings
from unseen.runs.settings import Settings

SITES = ("east", "north", "west")
TARGET = "south"
CLASSES = ("bar", "dot", "ring")
SIZE = 16


def draw_sites(root: Path, per_class: int = 10) -> Path:
    """ROOT/SITE/CLASS/*.png: three shapes, each site in its own colours."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE]
    shapes = {
        "bar": abs(x - 8) < 2,
        "dot": (x - 8) ** 2 + (y - 8) ** 2 < 16,
        "ring": abs(np.hypot(x - 8, y - 8) - 5) < 1.5,
    }
    for number, site in enumerate((*SITES, TARGET)):
        ground, ink = rng.integers(0, 256, 3), rng.integers(0, 256, 3)
        for name, shape in shapes.items():
            folder = root / site / name
            folder.mkdir(parents=True)
            for image in range(per_class + number):
                pixels = np.where(shape[..., None], ink, ground) + rng.normal(0, 20, (SIZE, SIZE, 3))
                Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / f"{image:02d}.png")
    return root


def small(root: Path, method: str, engine: str = "local", **changes: Any) -> Settings:
    """A run of seconds."""
    given: dict[str, Any] = {
        "rounds": 2,
        "local_steps": 2,
        "batch_size": 6,
        "validation": 0.2,
        "backbone": "convnet",
        "image_size": SIZE,
        "augmentation": "digits",
        "weights": "none",
        "test_every": 0,
        **changes,
    }
    return settings(
        method=method, data="folder", target=TARGET, root=str(root), engine=engine, protocol="digits", **given
    )
