"""The style space of StableFDG: sums, distances and clusters of styles, and which images of a batch to draw again.

Styles are small (B x C), maps are large. So every change of style is arithmetic on styles, and the maps are touched
once, by `restyle`. Draws come from a NumPy generator that the caller derives from the client's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.core.errors import UserError
from unseen.nets.parts.styles import Style

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def rows_of(style: Style, rows: Tensor) -> Style:
    return Style(style.mean[rows], style.std[rows])


def join(*styles: Style) -> Style:
    return Style(torch.cat([style.mean for style in styles]), torch.cat([style.std for style in styles]))


def summary(style: Style) -> Tensor:
    """Eq. 2 and 3 over a client's images: means of means and standard deviations, then their variances. 4 x C."""
    mean, std = style.mean.double(), style.std.double()
    rows = (mean.mean(0), std.mean(0), mean.var(0, correction=0), std.var(0, correction=0))
    return torch.stack(rows).float()


def extrapolate(style: Style, centre: Style, alpha: float) -> Style:
    """Eq. 4 and 5: `alpha` times farther from the centre. A negative std mirrors the channel."""
    mean, std = style
    return Style(mean + alpha * (mean - centre.mean), std + alpha * (std - centre.std))


def mix(style: Style, concentration: float, dice: np.random.Generator) -> Style:
    """Step 5, MixStyle: every style moves towards that of another image, by a share drawn from Beta."""
    size, device = len(style.mean), style.mean.device
    share = torch.from_numpy(dice.beta(concentration, concentration, (size, 1)).astype(np.float32)).to(device)
    other = rows_of(style, torch.from_numpy(dice.permutation(size)).to(device))
    return Style(share * style.mean + (1 - share) * other.mean, share * style.std + (1 - share) * other.std)


# --- which images ----------------------------------------------------------------------------------------------------
def centres_of(points: Floats, count: int, dice: np.random.Generator) -> Floats:
    """k-means++ with `count` clusters for one iteration: seeding, one assignment, one mean."""
    if not np.isfinite(points).all():
        raise UserError("The styles of a batch are not finite: training has diverged; give a smaller learning rate.")
    from sklearn.cluster import kmeans_plusplus  # takes a second: not before there is something to cluster

    seeds, _ = kmeans_plusplus(points, count, random_state=int(dice.integers(2**31 - 1)))
    nearest = _distances(points, seeds).argmin(1)
    members = nearest[:, None] == np.arange(count)
    sizes = members.sum(0)
    means = members.T.astype(np.float64) @ points.astype(np.float64) / np.maximum(sizes, 1)[:, None]
    # Equal points can leave a cluster without members: it stays where it was seeded.
    centres: Floats = np.where(sizes[:, None] > 0, means, seeds).astype(np.float32)
    return centres


def nearest_rows(points: Floats, centres: Floats) -> Rows:
    """The point nearest to each centre, none of them twice."""
    distances = _distances(points, centres)
    chosen = np.empty(len(centres), dtype=np.int64)
    for column in range(len(centres)):
        chosen[column] = distances[:, column].argmin()
        distances[chosen[column]] = np.inf
    return chosen


def _distances(points: Floats, centres: Floats) -> npt.NDArray[np.float64]:
    squared: npt.NDArray[np.float64] = np.square(points[:, None].astype(np.float64) - centres[None]).sum(2)
    return squared


def balanced_rows(labels: Rows, size: int, dice: np.random.Generator) -> Rows:
    """Step 3: `size` more rows of a batch, always of the classes that have fewest: as balanced as can be."""
    classes, counts = np.unique(labels, return_counts=True)
    counts = counts.copy()
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


def partners_of(labels: Rows, wanted: int) -> Rows:
    """For each of the first `wanted` rows another row of its class: the next, in a ring. Itself when it is alone."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    following = np.empty(len(labels), dtype=np.int64)
    for start, count in zip(starts, counts, strict=True):
        ring = order[start : start + count]
        following[ring] = np.roll(ring, -1)
    return following[:wanted]
