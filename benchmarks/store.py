"""An epoch of augmented batches: from JPEG files with PIL and torchvision, against the store and batched augmentation.

    python benchmarks/store.py [--root ../shared/data/PACS] [--images 2000] [--size 96] [--batch 32]

Both sides use one core and make the same batches: `domainbed` (random resized crop, flip, colour jitter, grey). The
store is timed as a second start: the quick look at every file, and the epoch, but no decoding. Without a folder of
images, JPEGs of 227 px are made first. The epoch is cut into rounds in which the two take turns, and each one's CPU
time is that of its best round: other work on the machine then does not matter much.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from speed import keep, keep_option

from unseen.core.platform import ask_for_kernels, keep_freed_memory
from unseen.data.augment import augment
from unseen.data.domains import DomainIndex, index_folder
from unseen.data.store import StoreImages, open_store
from unseen.nets.torchvision_ops import declare_missing_operators

declare_missing_operators()  # lets torchvision be imported without its compiled operators

from torchvision import transforms  # noqa: E402

WANTED = 3.0
ROUNDS = 10


def make_jpegs(root: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for k in range(count):
        file = root / f"domain{k % 2}" / f"class{k % 5}" / f"{k:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        blotches = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
        blotches.resize((227, 227), Image.Resampling.BICUBIC).save(file, quality=90)


def some_of(index: DomainIndex, count: int) -> DomainIndex:
    """Every n-th image: all domains and classes."""
    rows = np.linspace(0, len(index) - 1, min(count, len(index))).astype(int)
    chosen = replace(index, paths=tuple(index.paths[row] for row in rows))
    return replace(chosen, domain=index.domain[rows], label=index.label[rows], group=index.group[rows])


def from_files(index: DomainIndex, size: int, batch: int, order: torch.Tensor) -> float:
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
        ]
    )
    total = 0.0
    for rows in order.split(batch):
        images = [Image.open(index.root / index.paths[row]).convert("RGB") for row in rows.tolist()]
        total += float(torch.stack([transform(image) for image in images]).mean())
    return total


def from_store(images: StoreImages, batch: int, order: torch.Tensor) -> float:
    rng = torch.Generator().manual_seed(0)
    total = 0.0
    for rows in order.split(batch):
        total += float(augment(images.batch(rows).x, "domainbed", rng).mean())
    return total


def timed(work: Callable[[], float]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2] / "shared/data/PACS")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    keep_option(parser)
    args = parser.parse_args()
    ask_for_kernels()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run of unseen does; it holds for both sides
    with tempfile.TemporaryDirectory() as scratch:
        root = args.root
        if not root.is_dir():
            root = Path(scratch) / "jpegs"
            make_jpegs(root, args.images)
        index = some_of(index_folder(root), args.images)
        cache = Path(scratch) / "cache"
        first = timed(lambda: float(open_store(index, args.size, workers=1, progress=False, cache=cache).decoded))
        order = torch.randperm(len(index), generator=torch.Generator().manual_seed(0))
        start = time.process_time()
        second = open_store(index, args.size, progress=False, cache=cache)
        opening = time.process_time() - start
        assert second.decoded == 0, "this is not a second start"
        files = store = float("inf")
        for part in order.chunk(ROUNDS):
            scale = len(order) / len(part)
            files = min(files, scale * timed(partial(from_files, index, args.size, args.batch, part)))
            store = min(store, opening + scale * timed(partial(from_store, second.images, args.batch, part)))
    ratio = files / store
    print(f"{len(index):,} images at {args.size} px in batches of {args.batch}, from {root}")
    print(f"decoding once:                {first:7.2f} s")
    print(f"opening the store again:      {opening:7.2f} s")
    print(f"epoch, PIL and torchvision:   {files:7.2f} s")
    print(f"the same, from the store:     {store:7.2f} s")
    print(f"ratio:                        {ratio:7.2f} x (wanted: at least {WANTED:.0f} x)")
    if args.keep:
        made = "JPEGs of random blotches, 227 px" if root != args.root else root.name
        shown = {"images": len(index), "of": made, "size": args.size, "batch": args.batch}
        keep(f"store-{args.size}", {**shown, "files": files, "store": store, "ratio": ratio})
    raise SystemExit(0 if ratio >= WANTED else 1)


if __name__ == "__main__":
    main()
