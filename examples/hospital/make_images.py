"""Stand-ins for slides of four hospitals: benign and malignant patches, each hospital in its own stain."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

STAINS = {"aachen": (205, 140, 190), "bergen": (180, 110, 170), "cadiz": (225, 170, 200), "delft": (190, 150, 215)}
SIZE = 32


def patch(rng: np.random.Generator, stain: tuple[int, int, int], malignant: bool) -> Image.Image:
    """Nuclei on stained tissue: malignant ones are more, larger and darker."""
    y, x = np.mgrid[:SIZE, :SIZE]
    pixels = np.array(stain) + rng.normal(0, 12, (SIZE, SIZE, 3))
    for _ in range(rng.integers(9, 14) if malignant else rng.integers(3, 6)):
        radius = rng.uniform(2.2, 4.0) if malignant else rng.uniform(1.5, 2.5)
        nucleus = np.hypot(x - rng.uniform(0, SIZE), y - rng.uniform(0, SIZE)) < radius
        pixels[nucleus] = np.array(stain) * (0.35 if malignant else 0.5) + rng.normal(0, 8, 3)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.6))


def main(root: Path, per_class: int) -> None:
    for number, (hospital, stain) in enumerate(STAINS.items()):
        rng = np.random.default_rng(number)
        for name, malignant in (("benign", False), ("malignant", True)):
            folder = root / hospital / name
            folder.mkdir(parents=True, exist_ok=True)
            for image in range(per_class):
                patch(rng, stain, malignant).save(folder / f"{image:03d}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40)
