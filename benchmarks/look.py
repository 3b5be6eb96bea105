"""Which score tells the style of a site that was left out? Asked of sources alone, for every choice of a target.

    python benchmarks/look.py digits [--model RUN]
    python benchmarks/look.py pacs --root FOLDER [--weights FILE]

For a target T, each of the other domains is left out in turn. A score knows the look of the two that remain (of a part of
their images), and is asked to tell the rest of their images from the domain that was left out: an AUROC. T itself is not
looked at. Candidates: the look of pixels (`unseen.core.look`) by several distances, and means and spreads of channels after
the first stages of a net (a run's, or the one that training starts from). Also counted, as it must not be flagged: images of
the known domains that were saved as JPEG, or made 5 % darker.

Writes benchmarks/results/look/NAME.json.
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from trust import auroc

from unseen.core import look
from unseen.core.files import write_json
from unseen.data.catalog import load_index
from unseen.data.store import open_store
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.runs.model import load_trained
from unseen.runs.protocols import PROTOCOLS

RECORDS = Path(__file__).parent / "results" / "look"
EACH = 480  # images of a domain
LIKE = 0.975  # of a site's own images are within the limit
OWN = ", each site's limit"
Array = np.ndarray[Any, Any]
Whiten = Callable[[Array], Array]  # of known images' numbers: a matrix that makes distances of differences


def by_pixels(pixels_NHWC: Array) -> Array:
    return look.look_of(pixels_NHWC.transpose(0, 3, 1, 2).astype(np.float32) / 255)


def by_stage(net: Net, stage: int, pixels_NHWC: Array) -> Array:
    """Mean and logarithm of the spread of each channel after a stage."""
    found = []
    with torch.inference_mode():
        for x in torch.from_numpy(pixels_NHWC.transpose(0, 3, 1, 2).astype(np.float32) / 255).split(64):
            for s in range(stage + 1):
                x = net.run_stage(s, x)
            found.append(torch.cat([x.mean((2, 3)), (x.std((2, 3)) + look.SOFT).log()], 1))
    return torch.cat(found).double().numpy()


def shrunk(part: float, least: float, known_ND: Array) -> Array:
    """Distances by all correlations less `part` of them; with 1, each number counts by itself."""
    return look.whitening(np.cov(known_ND.T), part, least)


class Known:
    """Looks of known domains: a third of the images each for the Gaussians, for the limit, and for the question.

    One limit for all sites, or each site's own: then distances are told in limits, so that they can be compared.
    """

    def __init__(self, numbers: dict[str, Array], names: tuple[str, ...], whiten: Whiten, own_limits: bool) -> None:
        self.sites = [(numbers[name][0::3].mean(axis=0), whiten(numbers[name][0::3])) for name in names]
        own = [self._distance(*site, numbers[name][1::3]) for site, name in zip(self.sites, names, strict=True)]
        pooled = np.concatenate(own)
        self.limits = [np.quantile(each if own_limits else pooled, LIKE) for each in own]

    @staticmethod
    def _distance(mean: Array, white: Array, asked: Array) -> Array:
        result: Array = np.linalg.norm((asked - mean) @ white, axis=1)
        return result

    def distance(self, asked: Array) -> Array:
        """To the nearest site, in limits."""
        each = [self._distance(*site, asked) / limit for site, limit in zip(self.sites, self.limits, strict=True)]
        result: Array = np.min(each, axis=0)
        return result


def as_jpeg(pixels: Array) -> Array:
    """Saved once more, as a camera or an archive does."""
    found = []
    for one in pixels:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "JPEG", quality=85)
        found.append(np.asarray(Image.open(file)))
    return np.stack(found)


def darker(pixels: Array) -> Array:
    return (pixels * 0.95).astype(np.uint8)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("data", choices=("digits", "pacs"))
    asked.add_argument("--root", type=Path)
    asked.add_argument("--weights", help="of the net whose stages are asked, for pacs")
    asked.add_argument("--model", type=Path, help="a run whose net's stages are asked")
    given = asked.parse_args()
    torch.set_num_threads(1)
    index, protocol = load_index(given.data, given.root), PROTOCOLS[given.data]
    store, rng = open_store(index, protocol.data.image_size), np.random.default_rng(0)
    rows = {name: np.sort(rng.permutation(index.rows(name))[:EACH]) for name in index.domains}
    pixels = {name: store.images.pixels(torch.from_numpy(each)) for name, each in rows.items()}
    net = None
    if given.model is not None:
        net = load_trained(given.model, "cpu").net
    elif given.weights:
        net = create_net(
            protocol.net.backbone, len(index.classes), image_size=protocol.data.image_size,
            bottleneck=protocol.net.bottleneck, weights=given.weights, seed=0,
        ).eval()  # fmt: skip
    kinds: dict[str, tuple[Callable[[Array], Array], list[tuple[str, Whiten]]]] = {
        "pixels": (
            by_pixels,
            [
                (f"correlations by {1 - part:g}", partial(shrunk, part, look.LEAST_SPREAD))
                for part in (0.05, 0.5, look.SHRUNK, 1.0)
            ]
            + [
                ("correlations by 0.2, any spread", partial(shrunk, look.SHRUNK, 0.001)),
                (f"correlations by 0.2{OWN}", partial(shrunk, look.SHRUNK, look.LEAST_SPREAD)),
            ],
        )
    }
    for stage in range(3 if net is not None else 0):
        assert net is not None
        kinds[f"channels after stage {stage + 1}"] = (
            partial(by_stage, net, stage),
            [(f"correlations by {1 - part:g}", partial(shrunk, part, 0.05)) for part in (0.5, look.SHRUNK, 1.0)],
        )
    found = []
    for kind, (numbers_of, distances) in kinds.items():
        numbers = {name: numbers_of(each) for name, each in pixels.items()}
        third = {name: each[2::3] for name, each in pixels.items()}
        changed = {
            word: {name: numbers_of(change(each)) for name, each in third.items()}
            for word, change in (("jpeg", as_jpeg), ("darker", darker))
        }
        for words, whiten in distances:
            for pair in itertools.combinations(index.domains, 2):
                known = Known(numbers, pair, whiten, words.endswith(OWN))
                inside = np.concatenate([known.distance(numbers[name][2::3]) for name in pair])
                same = {w: np.concatenate([known.distance(each[name]) for name in pair]) for w, each in changed.items()}
                for name in index.domains:
                    if name in pair:
                        continue
                    found.append(
                        {
                            "numbers": kind,
                            "distance": words,
                            "known": pair,
                            "left_out": name,
                            "targets": [t for t in index.domains if t not in (*pair, name)],
                            "auroc": auroc(-inside, -(there := known.distance(numbers[name]))),
                            "found": float((there > 1).mean()),
                            "flagged": float((inside > 1).mean()),
                            "flagged_changed": {w: float((each > 1).mean()) for w, each in same.items()},
                        }
                    )
            own = [one["auroc"] for one in found if (one["numbers"], one["distance"]) == (kind, words)]
            print(f"{kind}, {words}: {100 * np.mean(own):.1f}", flush=True)
    write_json(RECORDS / f"{given.data}.json", {"images_of_a_domain": EACH, "found": found})


if __name__ == "__main__":
    sys.exit(main())
