"""Draws docs/img/fedadg.png: features and reference by class, before and after training (as the paper's Figs. 3 and 4).

    python docs/figures/fedadg.py [RUN]

RUN is the directory of a finished `fedadg` run on digits; without it a short one is trained (some minutes).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import cast

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import Tensor

import unseen
from unseen.methods.fedadg import FedADG
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.nets.parts.adversarial import label_code
from unseen.runs.images import store_of
from unseen.runs.model import Trained, load_trained

UNSEEN = "street"
IMAGES = 150  # of each source domain
POINTS = 12  # of the reference, for each class
MARKERS = ("o", "s", "^")  # a source domain each


def trained_run(folder: Path) -> Trained:
    if len(sys.argv) > 1:
        return load_trained(Path(sys.argv[1]))
    unseen.run(data="digits", target=UNSEEN, method="fedadg", rounds=12, workers=1, out=folder)
    return load_trained(next(path.parent for path in folder.rglob("config.json")))


def untrained(method: FedADG, like: Net) -> Net:
    torch.manual_seed(0)
    return method.build(create_net(like.backbone_name, like.classes, image_size=like.image_size, seed=0))


def images_of(trained: Trained) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Images of the sources, their labels, the number of their domain, and the domains' names."""
    store = store_of(trained.settings, progress=False)
    sources = list(store.index.sources(trained.settings.target))
    rows = []
    for domain in sources:
        own = store.index.rows(domain)
        rows.append(torch.from_numpy(own[np.linspace(0, len(own) - 1, IMAGES).astype(int)]))
    chosen = torch.cat(rows)
    domain = torch.arange(len(sources)).repeat_interleave(IMAGES)
    return store.images.batch(chosen).x, store.images.labels[chosen], domain, sources


@torch.no_grad()
def points(method: FedADG, net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The images' features, points of the reference, and the classes of those."""
    net.eval()
    classes = torch.arange(net.classes).repeat_interleave(POINTS)
    label = label_code(classes, net.classes, method.one_hot)
    return net.features(x), method.draw_reference(net, label, torch.Generator().manual_seed(0)), classes


def distance(h: Tensor, y: Tensor, reference: Tensor, classes: Tensor) -> float:
    """Between the class means of features and reference, in units of the features' spread about their class mean."""
    means, its = (torch.stack([v[of == k].mean(0) for k in range(10)]) for v, of in ((h, y), (reference, classes)))
    return float((its - means).norm(dim=1).mean() / (h - means[y]).square().sum(1).mean().sqrt())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trained = trained_run(Path(folder))
        x, y, domain, sources = images_of(trained)
    method = cast(FedADG, trained.method)
    figure, panels = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
    colours = plt.get_cmap("tab10")
    for panel, net, when in zip(
        panels, (untrained(method, trained.net), trained.net), ("before training", "after training"), strict=True
    ):
        h, reference, classes = points(method, net, x)
        places = TSNE(init="pca", perplexity=30, random_state=0).fit_transform(torch.cat([h, reference]).numpy())
        own, its = places[: len(h)], places[len(h) :]
        for number, marker in enumerate(MARKERS):
            of = (domain == number).numpy()
            panel.scatter(*own[of].T, c=y[of], cmap=colours, vmin=0, vmax=9, marker=marker, s=14, alpha=0.55, lw=0)
        panel.scatter(
            *its.T, c=classes, cmap=colours, vmin=0, vmax=9, marker="*", s=110, edgecolors="black", linewidths=0.6
        )
        panel.set_title(f"{when}: distance {distance(h, y, reference, classes):.1f}", fontsize=11)
        panel.set_xticks([])
        panel.set_yticks([])
    named = [
        plt.Line2D([], [], marker=marker, color="grey", ls="", label=name)
        for marker, name in zip(MARKERS, sources, strict=True)
    ]
    named.append(plt.Line2D([], [], marker="*", color="white", mec="black", ms=12, ls="", label="reference"))
    named += [plt.Line2D([], [], marker="o", color=colours(k), ls="", label=f"class {k}") for k in range(10)]
    figure.legend(handles=named, loc="outside lower center", ncols=7, frameon=False, fontsize=9)
    out = Path(__file__).parent.parent / "img" / "fedadg.png"
    figure.savefig(out, dpi=110)
    print(out)


if __name__ == "__main__":
    main()
