"""Draws docs/img/problem.png: three styles to train on, a fourth that nobody saw, and what two models answer there.

    python docs/figures/problem.py FEDAVG_RUN OTHER_RUN

Both are directories of finished runs on digits with the same unseen domain and seed. Images are drawn at random, the
same share of those that FedAvg gets wrong as in the whole domain: the picture is as good as the numbers below it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from unseen.reports.names import titled
from unseen.runs.images import store_of
from unseen.runs.model import Trained, load_trained

SHOWN = 10  # images of the unseen domain
RIGHT, WRONG, SOFT = "#2e7d4f", "#c2410c", "#5c6773"


def answers(trained: Trained, x: torch.Tensor) -> NDArray[np.int64]:
    parts = [trained.logits(part).argmax(axis=1) for part in torch.split(x, 256)]
    return np.concatenate(parts)


def tile(axes: Axes, pixels: torch.Tensor) -> None:
    axes.imshow(pixels.permute(1, 2, 0).numpy())
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)


def fair_sample(wrong: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """SHOWN images, of which as large a share is wrong as in all, in a random order."""
    many = round(SHOWN * wrong.mean())
    chosen = [rng.permutation(np.flatnonzero(wrong))[:many], rng.permutation(np.flatnonzero(~wrong))[: SHOWN - many]]
    return rng.permutation(np.concatenate(chosen))


def main() -> None:
    models = [load_trained(Path(word), "cpu") for word in sys.argv[1:3]]
    settings = models[0].settings
    target = settings.target
    assert all((m.settings.target, m.settings.seed) == (target, settings.seed) for m in models)
    store = store_of(settings, progress=False)
    index, rng = store.index, np.random.default_rng(0)
    unseen = torch.from_numpy(index.rows(target))
    batch = store.images.batch(unseen)
    labels = np.asarray(index.label)[index.rows(target)]
    said = [answers(model, batch.x) for model in models]
    shown = fair_sample(said[0] != labels, rng)

    figure = plt.figure(figsize=(10, 2.75), dpi=150)
    wide, tall = 0.05, 0.05 * 10 / 2.75  # a square tile
    figure.text(0.02, 0.9, "Three sites train together", fontsize=11, weight="bold")
    for row, source in enumerate(index.sources(target)):
        rows, y = torch.from_numpy(rng.permutation(index.rows(source))[:5]), 0.6 - 0.27 * row
        for column, pixels in enumerate(store.images.batch(rows).x):
            tile(figure.add_axes((0.085 + 0.052 * column, y, wide, tall)), pixels)
        figure.text(0.075, y + tall / 2, source, ha="right", va="center", fontsize=9, color=SOFT)
    left, step = 0.475, 0.052
    figure.text(left, 0.9, f'Nobody trained on "{target}"', fontsize=11, weight="bold")
    for column, place in enumerate(shown):
        tile(figure.add_axes((left + step * column, 0.6, wide, tall)), batch.x[place])
    for row, (model, own) in enumerate(zip(models, said, strict=True)):
        y = 0.6 + tall / 2 - 0.27 * (row + 1)
        figure.text(0.465, y, titled(model.settings.method), ha="right", va="center", fontsize=10, weight="bold")
        for column, place in enumerate(shown):
            right = own[place] == labels[place]
            figure.text(
                left + step * column + wide / 2, y + 0.02, index.classes[own[place]], ha="center", va="center",
                fontsize=19, color=RIGHT if right else WRONG, weight="normal" if right else "bold",
            )  # fmt: skip
        accuracy = 100 * float((own == labels).mean())
        words = f"answers {accuracy:.1f} % of {len(labels):,} images right (seed {settings.seed})"
        figure.text(left, y - 0.105, words, fontsize=8.5, color=SOFT, va="center")
    path = Path(__file__).parents[1] / "img" / "problem.png"
    figure.savefig(path, metadata={"Software": None})
    print(path)


if __name__ == "__main__":
    main()
