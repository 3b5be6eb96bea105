"""StableFDG's steps on styles: measure, shift, explore and mix them; and which images of a batch each step takes.

Every step measures the maps that the step before has made. No gradient flows through the statistics (as in MixStyle).
Draws come from a NumPy generator that the caller derives from the client's. Sums over styles are elementwise and in
float64, without BLAS: the rows that k-means++ picks are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.nets.net import Net
from unseen.nets.parts.styles import Style, restyle, style_of

Rows = npt.NDArray[np.int64]
Points = npt.NDArray[np.float64]


# --- step 1: the styles of a client ----------------------------------------------------------------------------------
@contextmanager
def as_in_training(net: Net) -> Iterator[None]:
    """Train mode (BatchNorm by the batch) without a trace: mode and buffers are put back."""
    was_training, buffers = net.training, {name: buffer.clone() for name, buffer in net.named_buffers()}
    net.train()
    try:
        yield
    finally:
        net.train(was_training)
        with torch.no_grad():
            for name, buffer in net.named_buffers():
                buffer.copy_(buffers[name])


def summary(means_BC: Tensor, stds_BC: Tensor) -> Tensor:
    """Eq. 2 and 3 over a client's images: means of means and standard deviations, then their variances. 4 x C."""
    mean, std = means_BC.double(), stds_BC.double()
    rows = (mean.mean(0), std.mean(0), mean.var(0, correction=0), std.var(0, correction=0))
    return torch.stack(rows).float()


# --- steps 2, 4 and 5: new styles for maps ---------------------------------------------------------------------------
def near(styles: Tensor, drawn: Tensor, own: Tensor | None = None) -> Style:
    """Styles near received ones (N x 4 x C), for standard normal draws (2 x N x C).

    The spread is that of the received style; with `own` (4 x C) it is the paper's: the draw scaled by the own standard
    deviation and by the received variance. A negative standard deviation is no style: it becomes zero.
    """
    spread = styles[:, 2:].sqrt() if own is None else own[2:].sqrt() * styles[:, 2:]
    moved = styles[:, :2] + drawn.transpose(0, 1) * spread
    return Style(moved[:, 0], moved[:, 1].clamp_min(0))


def shift(maps: Tensor, own: Style, rows: Tensor, new: Style) -> Tensor:
    """Step 2, AdaIN: these rows take the new styles. The others are multiplied by 1 and stay as they are."""
    mean, std = own.mean.index_copy(0, rows, new.mean), own.std.index_copy(0, rows, new.std)
    return restyle(maps, mean, std, own)


def explore(maps: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """Step 4, Eq. 4 and 5: the maps, then copies of these rows `alpha` times farther from the centre of all styles.

    A standard deviation may become negative, which mirrors the channel: the paper's AdaIN has no bound.
    """
    mean, std = style_of(maps.detach())
    own = Style(mean[rows], std[rows])
    far_mean = own.mean + alpha * (own.mean - mean.mean(0))
    far_std = own.std + alpha * (own.std - std.mean(0))
    return torch.cat([maps, restyle(maps[rows], far_mean, far_std, own)])


def mix(maps: Tensor, concentration: float, dice: np.random.Generator) -> Tensor:
    """Step 5, MixStyle: every style moves towards that of another image, by a share drawn from Beta."""
    size, own = len(maps), style_of(maps.detach())
    share = torch.from_numpy(dice.beta(concentration, concentration, (size, 1)).astype(np.float32)).to(maps.device)
    other = torch.from_numpy(dice.permutation(size)).to(maps.device)
    mean, std = (share * part + (1 - share) * part[other] for part in own)
    return restyle(maps, mean, std, own)


# --- step 2: who keeps its style -------------------------------------------------------------------------------------
def kept_rows(points: npt.NDArray[np.floating], count: int, dice: np.random.Generator) -> Rows:
    """Step 2: k-means++ with `count` clusters for one iteration; the image nearest to each centre, none twice."""
    if not np.isfinite(points).all():
        raise UserError("The styles of a batch are not finite: training has diverged; give a smaller learning rate.")
    places = points.astype(np.float64)
    distances = _distances(places, _centres(places, count, dice))
    chosen = np.empty(count, dtype=np.int64)
    for column in range(count):
        chosen[column] = distances[:, column].argmin()
        distances[chosen[column]] = np.inf
    return chosen


def _centres(points: Points, count: int, dice: np.random.Generator) -> Points:
    """The seeds of k-means++, each drawn by its squared distance to those before; one assignment; one mean."""
    seeds = [int(dice.integers(len(points)))]
    nearest = _distances(points, points[seeds])[:, 0]
    while len(seeds) < count:
        reach = np.cumsum(nearest)
        drawn = int(np.searchsorted(reach, dice.random() * reach[-1], side="right"))
        seeds.append(min(drawn, len(points) - 1))  # the last one, when all are equal to a seed
        nearest = np.minimum(nearest, _distances(points, points[seeds[-1:]])[:, 0])
    centres = points[seeds]
    cluster = _distances(points, centres).argmin(1)
    for number in np.unique(cluster):  # equal points can leave a cluster without members: it stays where it was seeded
        centres[number] = points[cluster == number].mean(0)
    return centres


def _distances(points: Points, centres: Points) -> Points:
    squared: Points = np.square(points[:, None] - centres[None]).sum(2)
    return squared


# --- step 3 and the attention: which images --------------------------------------------------------------------------
def balanced_rows(labels: Rows, size: int, dice: np.random.Generator) -> Rows:
    """Step 3: `size` more rows of a batch, always of the classes that have fewest: as balanced as can be."""
    classes, counts = np.unique(labels, return_counts=True)
    picked: list[Rows] = []
    left = size
    while left > 0:
        # One row for each of the smallest classes; a random few of them when not all can have one.
        smallest = np.flatnonzero(counts == counts.min())
        if len(smallest) > left:
            smallest = dice.choice(smallest, left, replace=False)
        counts[smallest] += 1
        left -= len(smallest)
        picked.append(np.array([dice.choice(np.flatnonzero(labels == classes[c])) for c in smallest], dtype=np.int64))
    return np.concatenate(picked) if picked else np.empty(0, dtype=np.int64)


def partners_of(labels: Rows, images: Rows, dice: np.random.Generator) -> Rows:
    """For each row one of its class that shows another image, at random; itself where there is none.

    `images` says which image a row shows: a feature that was drawn again shows the same one.
    """
    other = (labels[:, None] == labels) & (images[:, None] != images)
    drawn = np.where(other, dice.random(other.shape), -1.0).argmax(1)
    return np.where(other.any(1), drawn, np.arange(len(labels)))
