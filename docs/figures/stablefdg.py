"""The figure of docs/methods/stablefdg.md: StableFDG's steps on the built-in digits. Writes docs/img/stablefdg.png.

    python docs/figures/stablefdg.py

Left: the steps on the pixels themselves (the three colour channels are the maps), where one can see what a style is.
Right: where training does it, in the maps after the first stage of a new network, BatchNorm by the batch.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from unseen.data.digits import DOMAINS, draw_digits, index_digits
from unseen.methods.stablefdg import StableFDG
from unseen.nets.backbones import create_net
from unseen.nets.parts.style_space import as_in_training, explore, kept_rows, mix, near, shift, summary
from unseen.nets.parts.styles import style_of

OUT = Path(__file__).parents[1] / "img" / "stablefdg.png"
VISIBLE = 0.1  # standard deviation of a picture's strongest colour
OWN, OTHER, BATCH, COLUMNS, ALPHA = "ink", "colour", 32, 4, StableFDG().alpha


def images(domain: str, count: int, seed: int = 0) -> Tensor:
    """Digits of one domain at random, in [0, 1]."""
    rows = np.flatnonzero(index_digits().domain == DOMAINS.index(domain))
    chosen = np.random.default_rng(seed).choice(rows, count, replace=False)
    return torch.from_numpy(draw_digits(chosen.tolist())).permute(0, 3, 1, 2).float() / 255


def shifted(maps: Tensor, phi: Tensor, dice: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """Step 2, and the rows that were shifted."""
    own, count = style_of(maps), len(maps) // 2
    kept = kept_rows(torch.cat(own, dim=1).numpy(), len(maps) - count, dice)
    moved = np.setdiff1d(np.arange(len(maps)), kept)
    drawn = torch.from_numpy(dice.standard_normal((2, count, maps.shape[1])).astype(np.float32))
    return shift(maps, own, torch.from_numpy(moved), near(phi.expand(count, 4, -1), drawn)), moved


def steps_on_pixels(axes: np.ndarray, dice: np.random.Generator) -> None:
    batch, theirs = images(OWN, BATCH), images(OTHER, 128, seed=1)
    after_shift, moved = shifted(batch, summary(*style_of(theirs)), dice)
    explored = explore(after_shift, torch.arange(BATCH), ALPHA)
    mixed = mix(explored, StableFDG().mixing, dice)
    # Some explored looks lie so far beyond black and white that a screen shows one colour: take others.
    seen = torch.stack([made[BATCH:].clamp(0, 1).std((2, 3)).amax(1) for made in (explored, mixed)]).amin(0)
    shown = [row for row in moved if seen[row] > VISIBLE][:COLUMNS]
    rows = {
        f"a client's batch\n({OWN})": batch[shown],
        f"another client\n({OTHER}): only its\nstyle travels": theirs[:COLUMNS],
        "2  shifted": after_shift[shown],
        "3, 4  drawn again,\nexplored": explored[BATCH:][shown],
        "5  mixed": mixed[BATCH:][shown],
    }
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for place, picture in zip(line, pictures, strict=True):
            place.imshow(picture.clamp(0, 1).permute(1, 2, 0).numpy())
            place.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)


def style_space(place: plt.Axes, dice: np.random.Generator) -> None:
    net = create_net("convnet", 10, image_size=32, seed=0)
    with torch.no_grad(), as_in_training(net):
        maps = {domain: net.run_stage(0, images(domain, 64, seed=2)) for domain in DOMAINS}
    batch = maps[OWN][:BATCH]
    after_shift, moved = shifted(batch, summary(*style_of(maps[OTHER])), dice)
    explored = explore(after_shift, torch.from_numpy(dice.integers(BATCH, size=BATCH)), ALPHA)[BATCH:]
    clouds = {domain: torch.cat(style_of(of), dim=1) for domain, of in maps.items()}
    every = torch.cat(list(clouds.values()))
    centre = every.mean(0)
    axes = torch.linalg.svd(every - centre, full_matrices=False)[2][:2].T  # where styles differ most

    def draw(styles: Tensor, **looks: object) -> None:
        x, y = ((styles - centre) @ axes).T.numpy()
        place.scatter(x, y, **looks)

    for colour, (domain, cloud) in zip(("C0", "C1", "C2", "C3"), clouds.items(), strict=True):
        draw(
            cloud, s=14, c=colour, alpha=0.35, linewidths=0, label=f"{domain}{', unseen' if domain == 'street' else ''}"
        )
    draw(
        torch.cat(style_of(after_shift[moved]), dim=1),
        s=26, facecolors="none", edgecolors="black", label=f"{OWN}, shifted to {OTHER} (step 2)",
    )  # fmt: skip
    draw(torch.cat(style_of(explored), dim=1), s=26, marker="x", c="0.2", linewidths=0.8, label="explored (step 4)")
    place.set_title("styles after the first stage: a point per image", fontsize=9)
    place.set(xticks=[], yticks=[])
    place.set_xlabel("direction in which styles differ most", fontsize=8)
    place.set_ylabel("second direction", fontsize=8)
    place.legend(fontsize=7, loc="best", framealpha=0.9)


def main() -> None:
    torch.set_num_threads(1)
    dice = np.random.default_rng(0)
    figure = plt.figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1))
    steps_on_pixels(left.subplots(5, COLUMNS), dice)
    style_space(right.subplots(), dice)
    figure.savefig(OUT, dpi=150)


if __name__ == "__main__":
    main()
