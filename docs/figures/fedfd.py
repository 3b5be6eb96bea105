"""Draws docs/img/fedfd.png: what mixed statistics do to maps, and how much of its own statistics an image gets.

    python docs/figures/fedfd.py [RUN]

RUN is the directory of a finished `fedfd-a` run on digits; without it a short one is trained (some minutes).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import unseen
from unseen.methods.fedfd import FedFD, alphas
from unseen.nets.net import Net
from unseen.nets.norms.layers import MomentNorm2d, StatNorm2d
from unseen.nets.norms.moments import Statistics
from unseen.nets.norms.rules import Rule, ruled
from unseen.runs.images import store_of
from unseen.runs.model import Trained, load_trained

UNSEEN = "street"
IMAGES = 200  # of each domain, for the alphas
COLOURS = {"ink": "#2563a8", "colour": "#c2410c", "outline": "#2e7d4f", "street": "#1f2933"}


class Mixed(Rule):
    """Eq. 2 with a given u, by channel or the same for all."""

    def __init__(self, u: Tensor) -> None:
        self.u = u

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        mu_G, sigma_G = norm.running()
        u = self.u[: mean_BC.shape[1]]
        return Statistics(u * mean_BC + (1 - u) * mu_G, u * norm.std(var_BC) + (1 - u) * sigma_G)


def trained_run(folder: Path) -> Trained:
    if len(sys.argv) > 1:
        return load_trained(Path(sys.argv[1]))
    unseen.run(data="digits", target=UNSEEN, method="fedfd-a", rounds=6, workers=1, out=folder)
    return load_trained(next(path.parent for path in folder.rglob("config.json")))


@torch.no_grad()
def first_maps(net: Net, x: Tensor, u: Tensor) -> Tensor:
    """The first norm's output after its ReLU, B x C x H x W."""
    found: list[Tensor] = []
    hook = net.norms(StatNorm2d)[0].register_forward_hook(lambda module, inputs, output: found.append(output.relu()))
    with ruled(net, Mixed(u)):
        net.run_stage(0, x)
    hook.remove()
    return found[0]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trained = trained_run(Path(folder))
    net, store = trained.net.eval(), store_of(trained.settings)
    images = {name: store.domain(name) for name in COLOURS}
    sources = [name for name in COLOURS if name != UNSEEN]
    rng = torch.Generator().manual_seed(0)

    figure = plt.figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.35, 1])

    channels = net.norms(StatNorm2d)[0].num_features
    low, high = FedFD().u
    weights = {"u = 0\nglobal": torch.zeros(channels), "u = 1\nits own": torch.ones(channels)}
    drawn = [low + (high - low) * torch.rand(channels, generator=rng) for _ in range(3)]
    weights |= {f"u drawn\n{number}": u for number, u in enumerate(drawn, 1)}
    x = torch.cat([images[name].batch(torch.tensor([30])).x for name in sources])
    maps = [first_maps(net, x, u) for u in weights.values()]
    spread = torch.stack(maps).std(dim=0).mean(dim=(0, 2, 3)) * maps[0].std(dim=(2, 3)).mean(dim=0)
    shown = int(spread.argmax())  # a channel in which one sees something
    edge = max(float(one[:, shown].abs().max()) for one in maps)
    left.suptitle("One channel after the first norm and ReLU, under mixed statistics", fontsize=10)
    axes = left.subplots(len(sources), 1 + len(weights))
    for row, name in enumerate(sources):
        axes[row, 0].imshow(x[row].permute(1, 2, 0))
        axes[row, 0].set_ylabel(name, fontsize=9)
        for column, values in enumerate(maps, 1):
            axes[row, column].imshow(values[row, shown], cmap="Reds", vmin=0, vmax=edge)
    for column, title in enumerate(["image", *weights]):
        axes[0, column].set_title(title, fontsize=8)
    for one in axes.flat:
        one.set_xticks([])
        one.set_yticks([])

    axis = right.subplots()
    right.suptitle(r"$\alpha$ of the trained adapters, by norm", fontsize=10)
    for place, (name, colour) in enumerate(COLOURS.items()):
        every = len(images[name]) // IMAGES
        x = images[name].batch(torch.arange(0, every * IMAGES, every)).x
        found = alphas(net, x)
        boxes = axis.boxplot(
            [alpha.numpy() for alpha in found],
            positions=[norm + 0.19 * (place - 1.5) for norm in range(1, len(found) + 1)],
            widths=0.15, showfliers=False, patch_artist=True, medianprops={"color": "white"},
        )  # fmt: skip
        for box in boxes["boxes"]:
            box.set(facecolor=colour, edgecolor=colour)
        for line in (*boxes["whiskers"], *boxes["caps"]):
            line.set_color(colour)
        axis.plot([], [], color=colour, linewidth=6, label=f"{name} (unseen)" if name == UNSEEN else name)
    sides = [int(norm_side) for norm_side in map_sides(net)]
    axis.set_xticks(range(1, len(sides) + 1), [f"{n}\n{side} x {side}" for n, side in enumerate(sides, 1)])
    axis.set_xlabel("norm, and the size of its maps")
    axis.set_ylabel(r"weight of the image's own statistics, $\alpha$")
    axis.set_ylim(-0.03, 1.03)
    axis.legend(fontsize=8, frameon=False)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)

    out = Path(__file__).parent.parent / "img" / "fedfd.png"
    figure.savefig(out, dpi=110)
    print(out)


@torch.no_grad()
def map_sides(net: Net) -> list[int]:
    """The height of the maps at every norm."""
    sides: list[int] = []
    hooks = [
        norm.register_forward_hook(lambda module, inputs, output: sides.append(output.shape[2]))
        for norm in net.norms(StatNorm2d)
    ]
    net.maps(torch.zeros(1, 3, net.image_size, net.image_size))
    for hook in hooks:
        hook.remove()
    return sides


if __name__ == "__main__":
    main()
