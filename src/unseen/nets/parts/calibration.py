"""CSAC's calibration: distances between two models' distributions of maps, each level against each level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = tuple(3.0**k for k in range(-3, 2))  # of the five Gaussian kernels, in mean squared distances


def mmd(one: Tensor, two: Tensor) -> Tensor:
    """MK-MMD: the squared distance of two samples' kernel means, B x D each; zero for a single pair.

    Within a sample, a row is not compared with itself (unbiased); between the samples all pairs count.
    """
    count = len(one)
    if count < 2:
        return one.new_zeros(())
    rows = torch.cat([one, two]).flatten(1).float()
    rows = rows - rows.mean(0)  # no distance changes, and what the next lines subtract is small
    lengths = rows.square().sum(1)
    # As a product of matrices: the differences of all pairs of maps take longer than the pass of the net.
    squared = (lengths[:, None] + lengths[None] - 2 * rows @ rows.T).clamp_min(0)
    width = squared.detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-squared / (2 * alpha * width)) for alpha in WIDTHS]).sum(0)
    within = sum(
        (part.sum() - part.diagonal().sum()) / (count * (count - 1))
        for part in (kernel[:count, :count], kernel[count:, count:])
    )
    return within - 2 * kernel[:count, count:].mean()


def attention(own: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """How much each level of the one model should listen to each level of the other; rows sum to 1.

    Twice a softmax over the other's levels, of the mean product of positions and of that of channels; then their mean.
    """
    with torch.no_grad():
        scores = []
        for queries in own:
            positions, channels = [], []
            for keys in other:
                size = queries.shape[2] * queries.shape[3]
                # The mean over all pairs of a product is the product of the means.
                positions.append((queries.mean((2, 3)) * keys.mean((2, 3))).sum(1).mean())
                channels.append((queries.mean(1) * keys.mean(1)).mean((1, 2)).mean() * size)
            scores.append(torch.stack([torch.stack(positions), torch.stack(channels)]).softmax(1).mean(0))
        return torch.stack(scores)


class Calibration(nn.Module):
    """The last levels of two models, projected to maps of one size, and the attention-weighted sum of their MMDs."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Conv2d(count, width, 1) for count in channels)
        self.other = nn.ModuleList(nn.Conv2d(count, width, 1) for count in channels)

    def forward(self, own: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
        size = (own[-1].shape[2], own[-1].shape[3])
        mine = [project(F.adaptive_avg_pool2d(maps, size)) for project, maps in zip(self.own, own, strict=True)]
        theirs = [project(F.adaptive_avg_pool2d(maps, size)) for project, maps in zip(self.other, other, strict=True)]
        weights = attention(mine, theirs)
        terms = [weights[i, j] * mmd(a, b) for i, a in enumerate(mine) for j, b in enumerate(theirs)]
        return torch.stack(terms).sum()
