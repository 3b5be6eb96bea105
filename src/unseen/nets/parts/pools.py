"""Pools of scales and shifts in a frozen vision transformer: an image takes the mean of those whose keys are near it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.net import Net

WIDTH = 0.02  # of the normal distribution that pools are drawn from


class Chosen:
    """Which rows of the pools each image of the batch takes, B x k; None: scales and shifts are left out."""

    rows: Tensor | None = None


class Scaled(nn.Module):
    """A module whose output is scaled and shifted, per image: x * scale + shift."""

    def __init__(self, inner: nn.Module, size: int, pool: int, chosen: Chosen) -> None:
        super().__init__()
        self.inner, self.chosen = inner, chosen
        self.scale = nn.Parameter(1 + WIDTH * torch.randn(pool, size))
        self.shift = nn.Parameter(WIDTH * torch.randn(pool, size))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if self.chosen.rows is None:
            return x
        shape = (
            x.shape[0],
            *[1] * (x.dim() - 2),
            -1,
        )  # tokens in a row, or in a grid as the patches' embedding has them
        scale, shift = (part[self.chosen.rows].mean(1).view(shape) for part in (self.scale, self.shift))
        return x * scale + shift


class PooledHead(nn.Module):
    """A head per row of the pool; an image's answer is the mean of those it takes."""

    def __init__(self, size: int, classes: int, pool: int, chosen: Chosen) -> None:
        super().__init__()
        self.chosen = chosen
        self.weight = nn.Parameter(nn.init.kaiming_normal_(torch.empty(pool, classes, size)))
        self.bias = nn.Parameter(torch.zeros(pool, classes))

    def forward(self, features: Tensor) -> Tensor:
        rows = self.chosen.rows
        if rows is None:  # asked for no image's own: the mean of all
            rows = torch.arange(len(self.bias), device=features.device).expand(features.shape[0], -1)
        weight, bias = self.weight[rows].mean(1), self.bias[rows].mean(1)
        return (weight * features[:, None]).sum(2) + bias


class Keys(nn.Module):
    """A key per row of the pool, and the choice by them."""

    def __init__(self, size: int, pool: int, take: int, chosen: Chosen) -> None:
        super().__init__()
        self.take, self.chosen = take, chosen
        self.keys = nn.Parameter(nn.init.trunc_normal_(torch.empty(pool, size), std=WIDTH))

    def choose(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the nearest keys by cosine, B x k, and the sum of their cosines, B."""
        likeness = F.normalize(queries, dim=1) @ F.normalize(self.keys, dim=1).T
        found = likeness.topk(self.take, dim=1)
        return found.indices, found.values.sum(1)

    @contextmanager
    def taking(self, rows: Tensor) -> Iterator[None]:
        """Inside, the images of a batch take these rows."""
        self.chosen.rows = rows
        try:
            yield
        finally:
            self.chosen.rows = None


def add_pools(net: Net, pool: int, take: int) -> Net:
    """Pools after every norm and every linear map of a vision transformer, and of its heads. Another net is an error."""
    from unseen.nets.timm_backbones import VisionTransformer  # timm takes seconds, and only FedIns needs it here

    backbone = net.backbone
    if not isinstance(backbone, VisionTransformer):
        raise UserError(
            f"Pools of scales and shifts need a vision transformer, and {net.backbone_name} is none: "
            "choose one (--backbone vit_base_patch16_224), or the protocol digits-vit."
        )
    if not 1 <= take <= pool:
        raise UserError(f"fedins: take is {take} and pool is {pool}; an image takes 1 to all of the pool.")
    chosen = Chosen()

    def scaled(parent: nn.Module, name: str, size: int) -> None:
        setattr(parent, name, Scaled(getattr(parent, name), size, pool, chosen))

    size = backbone.embed_dim
    scaled(backbone.patch_embed, "norm", size)  # what runs last there; timm asks the embedding itself for its grid
    scaled(backbone, "norm", size)
    for block in backbone.blocks:
        for parent, name in ((block, "norm1"), (block, "norm2"), (block.attn, "proj"), (block.mlp, "fc2")):
            scaled(parent, name, size)
        scaled(block.attn, "qkv", 3 * size)
        scaled(block.mlp, "fc1", block.mlp.fc1.out_features)
    net.head = PooledHead(net.feature_size, net.classes, pool, chosen)
    net.extras["pool_keys"] = Keys(net.feature_size, pool, take, chosen)
    return net
