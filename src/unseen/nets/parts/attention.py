"""StableFDG's feature highlighter: where in its last maps an image resembles another one of its class.

The attention of a key image i to a query image j scores each position of i by its mean similarity to all of j's.
The mean over query positions is taken before the product: the same numbers as Eq. 6 without the HW x HW matrix.
Maps are read as positions, B x HW x C, which is the same memory in the channels-last layout. Products of single vectors
are elementwise, not by torch.bmm, whose gradient depends on one more choice of kernels that MKL makes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.net import Net

Attention = Literal["both", "cross", "self", "convolution"]
Similarity = Literal["cosine", "dot"]


class Highlighter(nn.Module):
    """Queries and keys by 1 x 1 convolutions; scores by softmax over positions; the maps' weighted mean."""

    def __init__(
        self, channels: int, size: int = 30, attention: Attention = "both", similarity: Similarity = "cosine"
    ) -> None:
        super().__init__()
        self.attention, self.similarity = attention, similarity
        self.query = nn.Linear(channels, size)  # on positions: a 1 x 1 convolution
        self.key = nn.Linear(channels, size)

    def scores(self, maps_BCHW: Tensor, partners: Tensor | None = None) -> Tensor:
        """B x H x W, each map summing to one: by Eq. 8 or 6 with each row's partner, without partners by its own."""
        return self._scores(positions(maps_BCHW), partners).view(-1, *maps_BCHW.shape[2:])

    def forward(self, maps_BCHW: Tensor, partners: Tensor | None = None) -> Tensor:
        """Eq. 7: B x C."""
        places = positions(maps_BCHW)
        return (self._scores(places, partners)[:, :, None].to(places.dtype) * places).sum(1)

    def _scores(self, places_BNC: Tensor, partners: Tensor | None) -> Tensor:
        weight, bias = torch.cat([self.query.weight, self.key.weight]), torch.cat([self.query.bias, self.key.bias])
        queries, keys = F.linear(places_BNC, weight, bias).chunk(2, dim=2)  # one product for both
        if self.attention == "convolution":
            # Table 16: the same tensors and no attention; a map by convolutions alone.
            energy = (F.relu(queries) + F.relu(keys)).mean(2)
        else:
            if self.similarity == "cosine":
                queries, keys = F.normalize(queries, dim=2), F.normalize(keys, dim=2)
            query = queries.mean(1)
            if partners is not None and self.attention == "cross":
                query = query[partners]
            elif partners is not None and self.attention == "both":
                query = (query[partners] + query) / 2
            energy = (keys * query[:, None]).sum(2)
        return F.softmax(energy, dim=1)


def positions(maps_BCHW: Tensor) -> Tensor:
    """B x HW x C."""
    return maps_BCHW.permute(0, 2, 3, 1).flatten(1, 2)


def highlighter_of(net: Net) -> Highlighter:
    """The net's highlighter; an error for people when it has none."""
    found = dict(net.extras.items()).get("highlighter")
    if not isinstance(found, Highlighter):
        raise UserError("This network has no attention highlighter; train it with stablefdg and without style_only.")
    return found


@torch.no_grad()
def attention_maps(net: Net, images: Tensor) -> Tensor:
    """Figs. 5 and 6: the self-attention of each image, enlarged to the image's size and scaled to 0..1. B x H x W."""
    highlighter, was_training = highlighter_of(net), net.training
    net.eval()
    scores = highlighter.scores(net.maps(images)).float()
    net.train(was_training)
    if scores.shape[1] == 1 and scores.shape[2] > 1:
        raise UserError(
            f"The maps of {net.backbone_name} are tokens in a row; attention maps need a convolutional backbone."
        )
    enlarged = F.interpolate(scores[:, None], size=images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    lowest, highest = enlarged.amin((1, 2), keepdim=True), enlarged.amax((1, 2), keepdim=True)
    return (enlarged - lowest) / (highest - lowest).clamp_min(torch.finfo(enlarged.dtype).tiny)
