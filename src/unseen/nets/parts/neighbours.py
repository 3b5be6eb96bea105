"""Styles of other clients for maps inside a net: half of a batch takes them, half goes beyond, and all are mixed.

The module acts in train mode only, and draws from torch's default CPU generator, which the client loop seeds per order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unseen.nets.parts.style_space import near
from unseen.nets.parts.styles import Style, restyle, style_of


class NeighbourStyles(nn.Module):
    """With probability `p` per batch. `received` are the other clients' styles, N x 4 x C; None: styles are only mixed."""

    def __init__(self, p: float, alpha: float, mixing: float) -> None:
        super().__init__()
        self.p, self.alpha, self.mixing = p, alpha, mixing
        self.received: Tensor | None = None
        self.heard: list[Style] | None = None  # while a client measures its styles: what went by

    def forward(self, maps: Tensor) -> Tensor:
        if self.heard is not None:
            self.heard.append(style_of(maps.detach()))
            return maps
        if not self.training or float(torch.rand(())) >= self.p:
            return maps
        own = style_of(maps.detach())
        new = own if self.received is None else self.beyond(self.shifted(own, self.received.to(maps.device)))
        images = len(maps)
        weight = torch.distributions.Beta(self.mixing, self.mixing).sample((images, 1)).to(maps.device)
        other = torch.randperm(images).to(maps.device)
        mean, std = (weight * part + (1 - weight) * part[other] for part in new)
        return restyle(maps, mean, std, own)

    def shifted(self, own: Style, received: Tensor) -> Style:
        """Half of the images take styles near that of one other client."""
        images, channels = own.mean.shape
        style = received[int(torch.randint(len(received), ()))]
        rows = torch.randperm(images)[: images // 2].to(own.mean.device)
        drawn = torch.randn(2, len(rows), channels).to(own.mean)
        taken = near(style.expand(len(rows), -1, -1), drawn)
        return Style(own.mean.index_copy(0, rows, taken.mean), own.std.index_copy(0, rows, taken.std))

    def beyond(self, styles: Style) -> Style:
        """Half of the images, another half, go `alpha` times farther from the centre."""
        images = len(styles.mean)
        far = torch.zeros(images, 1).index_fill(0, torch.randperm(images)[: images // 2], self.alpha)
        mean, std = (part + far.to(part) * (part - part.mean(0)) for part in styles)
        return Style(mean, std)


@contextmanager
def measuring(modules: Sequence[NeighbourStyles]) -> Iterator[None]:
    """Inside, the modules change nothing and keep the styles of what passes."""
    for module in modules:
        module.heard = []
    try:
        yield
    finally:
        for module in modules:
            module.heard = None
