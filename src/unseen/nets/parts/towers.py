"""Frozen towers: a pretrained backbone that nobody trains and that does not travel, with small parts on it that do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.errors import UserError
from unseen.core.types import Share
from unseen.nets.net import Net
from unseen.nets.weights import read_file


def freeze(net: Net, method: str) -> Net:
    """The backbone is not trained. One with BatchNorm is an error: its statistics would move all the same."""
    if any(isinstance(module, _BatchNorm) for module in net.backbone.modules()):
        raise UserError(
            f"{method} keeps its tower frozen, and the BatchNorm of {net.backbone_name} would not stay as it is: "
            "choose a vision transformer (--backbone vit_base_patch16_224), or the protocol digits-vit."
        )
    net.backbone.requires_grad_(False)
    return net


def share_trained(net: Net) -> Share:
    """All state but the tensors that nobody trains: every site has them from the same file, or from the same seed."""
    still = frozenset(name for name, parameter in net.named_parameters() if not parameter.requires_grad)
    return net.share_all().private(still)


class Attention(nn.Module):
    """FedCLIP's adapter: each feature times its share in a softmax of two layers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, size), nn.Softmax(dim=1))

    def forward(self, features: Tensor) -> Tensor:
        shares: Tensor = self.layers(features)
        return features * shares


class OnSphere(nn.Module):
    """Features of length `scale`: a linear head on them gives scaled cosines, if its rows have length 1."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=1)


def text_head(path: str, net: Net) -> tuple[nn.Linear, nn.Linear]:
    """From a file: the frozen projection of image features, and the frozen head of the classes' text features."""
    found = read_file(path)
    for name, size in (("projection", net.feature_size), ("classes", None)):
        if name not in found or found[name].dim() != 2 or (size is not None and found[name].shape[1] != size):
            raise UserError(
                f'"{path}" needs a tensor "{name}" with two dimensions'
                + (f", the second of {size}: {net.backbone_name}'s features." if size is not None else ".")
            )
    projection, classes = found["projection"].float(), found["classes"].float()
    if classes.shape != (net.classes, projection.shape[0]):
        raise UserError(
            f'"classes" of "{path}" has the shape {tuple(classes.shape)}: '
            f"{net.classes} classes and a projection to {projection.shape[0]} need ({net.classes}, {projection.shape[0]})."
        )
    layers = (
        nn.Linear(net.feature_size, len(projection), bias=False),
        nn.Linear(len(projection), net.classes, bias=False),
    )
    with torch.no_grad():
        layers[0].weight.copy_(projection)
        layers[1].weight.copy_(F.normalize(classes, dim=1))
    return layers[0].requires_grad_(False), layers[1].requires_grad_(False)
