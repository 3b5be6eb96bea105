"""Draws docs/img/gperxan.png: what XAN's two branches make of maps in two styles.

    python docs/figures/gperxan.py

The first convolution of an untrained net on the built-in digits. Nothing is trained: the figure shows the layer alone.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from unseen.data.digits import index_digits
from unseen.data.store import open_store
from unseen.nets.backbones import create_net
from unseen.nets.norms.layers import XAN

STYLES = {"ink": "#2563a8", "street": "#c2410c"}
IMAGES = 150  # of each style
DIGIT, CHANNEL = 3, 0


@torch.no_grad()
def maps_of(x: Tensor) -> Tensor:
    """What the first norm sees, B x C x H x W."""
    net, found = create_net("convnet", 10, image_size=32, seed=0).eval(), []
    net.norms(nn.BatchNorm2d)[0].register_forward_hook(lambda module, inputs, output: found.append(inputs[0]))
    net.run_stage(0, x)
    return found[0]


@torch.no_grad()
def branches(maps: Tensor) -> dict[str, Tensor]:
    """The branches and two mixtures, by the statistics of all images together."""
    made = {}
    for title, w_in in (
        ("BN branch", 0.0),
        ("XAN, $w_{in} = 0.1$", 0.1),
        ("XAN, $w_{in} = 0.5$", 0.5),
        ("IN branch", 1.0),
    ):
        layer = XAN(nn.BatchNorm2d(maps.shape[1]), "free", w_in=w_in).train()
        made[title] = layer(maps)
    return made


def main() -> None:
    store = open_store(index_digits(), 32)
    picked, first = [], []
    for name in STYLES:
        images = store.domain(name)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:IMAGES]
        first.append(next(place for place, row in enumerate(order) if int(images.labels[row]) == DIGIT))
        picked.append(images.batch(order).x)
    made = branches(maps_of(torch.cat(picked)))

    figure, axes = plt.subplots(3, 1 + len(made), figsize=(11, 6.4), layout="constrained")
    for line, (name, colour) in enumerate(STYLES.items()):
        axes[line][0].imshow(picked[line][first[line]].permute(1, 2, 0))
        axes[line][0].set_ylabel(f"a digit in {name}", color=colour)
        for column, maps in enumerate(made.values(), start=1):
            axes[line][column].imshow(maps[line * IMAGES + first[line], CHANNEL], cmap="gray", vmin=-3, vmax=3)
    for axis, title in zip(axes[0], ["image", *made], strict=True):
        axis.set_title(title, fontsize=10)
    for axis in axes[:2].flat:
        axis.set(xticks=[], yticks=[])

    clouds = axes[2][1:]
    for axis, maps in zip(clouds, made.values(), strict=True):
        mean, std = maps[:, CHANNEL].mean((1, 2)), maps[:, CHANNEL].std((1, 2), correction=0)
        for line, (name, colour) in enumerate(STYLES.items()):
            part = slice(line * IMAGES, (line + 1) * IMAGES)
            axis.scatter(mean[part], std[part], s=7, alpha=0.6, color=colour, label=name, linewidths=0)
        axis.sharex(clouds[0]), axis.sharey(clouds[0])
        axis.set_xlabel("mean of the map", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    clouds[0].set_ylabel("its standard deviation", fontsize=9)
    axes[2][0].axis("off")
    axes[2][0].legend(
        *clouds[0].get_legend_handles_labels(), title=f"{IMAGES} images each,\na point per image",
        loc="center", frameon=False, markerscale=2,
    )  # fmt: skip
    figure.savefig(Path(__file__).parent.parent / "img" / "gperxan.png", dpi=110)


if __name__ == "__main__":
    main()
