"""Folders of three sites and of a new one: from the built-in digits, or from PACS.

    python make_sites.py OUT --each 20
    python make_sites.py OUT --each 20 --pacs FOLDER --new sketch --unlabelled 40

OUT/sites/SITE/CLASS/* are the sites that train; OUT/new/CLASS/* is the one that comes later. With --unlabelled, the new
site has more images, so many of each class, which nobody has labelled: OUT/new/unlabelled/*.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from PIL import Image


def place_of(out: Path, site: str, new: str) -> Path:
    return out / "new" if site == new else out / "sites" / site


def from_digits(out: Path, each: int, new: str) -> None:
    """The first images of each class and look, as PNG files."""
    import numpy as np
    import torch

    from unseen.data.catalog import load_index
    from unseen.data.store import open_store

    index = load_index("digits", None)
    images = open_store(index, 32).images
    for d, site in enumerate(index.domains):
        for k, name in enumerate(index.classes):
            folder = place_of(out, site, new) / name
            folder.mkdir(parents=True, exist_ok=True)
            rows = np.flatnonzero((index.domain == d) & (index.label == k))[: each or None]
            for row, pixels in zip(rows, images.pixels(torch.from_numpy(rows)), strict=True):
                Image.fromarray(pixels).save(folder / f"{row:05d}.png")


def from_pacs(pacs: Path, out: Path, each: int, new: str, unlabelled: int) -> None:
    """Links to the first images of each class; the new site's next ones are without a label."""
    strangers = itertools.count()  # a name says nothing of the class
    for site in sorted(path for path in pacs.iterdir() if path.is_dir()):
        for kind in sorted(path for path in site.iterdir() if path.is_dir()):
            images = sorted(kind.iterdir())
            end = each or len(images)
            for image in images[:end]:
                link(image, place_of(out, site.name, new) / kind.name / image.name)
            for image in images[end : end + unlabelled] if site.name == new else []:
                link(image, out / "new" / "unlabelled" / f"{next(strangers):05d}{image.suffix}")


def link(image: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(image.resolve())


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("out", type=Path)
    asked.add_argument("--each", type=int, default=20, help="images per site and class; 0: all")
    asked.add_argument("--pacs", type=Path, help="the folder of PACS; without it, digits")
    asked.add_argument("--new", default=None, help="the site that comes later (default: street, or sketch)")
    asked.add_argument("--unlabelled", type=int, default=0, help="more images of each class at the new site of PACS")
    given = asked.parse_args()
    if given.pacs is None:
        from_digits(given.out, given.each, given.new or "street")
    else:
        from_pacs(given.pacs, given.out, given.each, given.new or "sketch", given.unlabelled)


if __name__ == "__main__":
    main()
