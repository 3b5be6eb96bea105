"""`create_net`: backbones by name. Four are our own; the others are timm's (`timm_backbones`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.core.errors import UserError
from unseen.core.seeding import derive
from unseen.nets.net import IMAGENET_MEAN, IMAGENET_STD, Anatomy, Net
from unseen.nets.weights import load_weights


# --- our own ---------------------------------------------------------------------------------------------------------
class OwnAnatomy(Anatomy):
    """Our own networks say themselves what their stages are."""

    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        return cast("ConvNet | DigitsDGNet | AlexNet", backbone).stages()


class ConvNet(nn.Module):
    """Four 3x3 convolutions for 32 px digits: the ConvNet of Digits-DG (`DigitsDGNet`) with two changes.

    It has BatchNorm, which half of the methods are about. And its first block, which costs most, has half of the
    published 64 channels: one CPU thread then trains on 1200 images a second instead of 700.

    The fourth pooling belongs to the readout, as it does to the last block there: the features are 2 x 2 maps, flattened
    (256 numbers), and the last maps are 4 x 4 at 32 px, because statistics of one image need more than four numbers.
    Images of other sizes are pooled to 2 x 2 as well.
    """

    classifier_name = "fc"

    def __init__(self, widths: Sequence[int] = (32, 64, 64, 64)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        inputs = 3
        for index, width in enumerate(widths):
            block = nn.Sequential(nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
            if index < len(widths) - 1:
                block.append(nn.MaxPool2d(2))
            # ReLU grows with its input, so after the pooling it gives the same bits, from a quarter of the numbers.
            block.append(nn.ReLU(inplace=True))
            self.blocks.append(block)
            inputs = width
        draw_convolutions(self)

    def stages(self) -> Sequence[Sequence[nn.Module]]:
        return [[block] for block in self.blocks]

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        return F.adaptive_max_pool2d(maps, 2).flatten(1)


class DigitsDGNet(nn.Module):
    """The ConvNet of Digits-DG as published: no BatchNorm (Zhou et al., Learning to Generate Novel Domains for Domain
    Generalization, ECCV 2020; StableFDG).

    Four blocks of 3x3 convolution with 64 channels, ReLU and 2x2 max pooling. The features are the last maps, flattened:
    256 numbers at 32 px.
    """

    classifier_name = "fc"

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(inputs, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True))
            for inputs in (3, 64, 64, 64)
        )
        draw_convolutions(self)

    def stages(self) -> Sequence[Sequence[nn.Module]]:
        return [[block] for block in self.blocks]

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        return maps.flatten(1)


def draw_convolutions(module: nn.Module) -> None:
    """He's start for every convolution; biases, where there are some, from 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class AlexNet(nn.Module):
    """AlexNet under torchvision's names, whose weights file therefore fits. Features: the second fc layer's output.

    With `batch_norm` after every convolution and fc layer, and then without dropout, it is the network of FedBN on
    DomainNet.
    """

    classifier_name = "classifier.6"

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()

        def convolution(inputs: int, outputs: int, size: int, padding: int, stride: int = 1) -> list[nn.Module]:
            norm: list[nn.Module] = [nn.BatchNorm2d(outputs)] if batch_norm else []
            return [nn.Conv2d(inputs, outputs, size, stride, padding), *norm, nn.ReLU(inplace=True)]

        def fully_connected(inputs: int, outputs: int) -> list[nn.Module]:
            before: list[nn.Module] = [] if batch_norm else [nn.Dropout()]
            norm: list[nn.Module] = [nn.BatchNorm1d(outputs)] if batch_norm else []
            return [*before, nn.Linear(inputs, outputs), *norm, nn.ReLU(inplace=True)]

        stages = [
            [*convolution(3, 64, 11, 2, stride=4), nn.MaxPool2d(3, 2)],
            [*convolution(64, 192, 5, 2), nn.MaxPool2d(3, 2)],
            [*convolution(192, 384, 3, 1), *convolution(384, 256, 3, 1)],
            [*convolution(256, 256, 3, 1), nn.MaxPool2d(3, 2)],
        ]
        self._lengths = [len(stage) for stage in stages]
        self.features = nn.Sequential(*(module for stage in stages for module in stage))
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(*fully_connected(256 * 6 * 6, 4096), *fully_connected(4096, 4096))

    def stages(self) -> Sequence[Sequence[nn.Module]]:
        modules = iter(self.features)
        return [[next(modules) for _ in range(length)] for length in self._lengths]

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        features: Tensor = self.classifier(self.avgpool(maps).flatten(1))
        return features


@dataclass(frozen=True)
class Own:
    """One of our own networks: how to make it, the smallest image it takes, and the usual one."""

    make: Callable[[], nn.Module]
    smallest: int
    usual: int
    pixel_mean: tuple[float, float, float]
    pixel_std: tuple[float, float, float]


HALVES = (0.5, 0.5, 0.5)
OWN: Mapping[str, Own] = {
    "convnet": Own(ConvNet, 16, 32, HALVES, HALVES),
    "convnet_dg": Own(DigitsDGNet, 16, 32, HALVES, HALVES),
    "alexnet": Own(AlexNet, 64, 224, IMAGENET_MEAN, IMAGENET_STD),
    "alexnet_bn": Own(lambda: AlexNet(batch_norm=True), 64, 224, IMAGENET_MEAN, IMAGENET_STD),
}


def usual_image_size(backbone: str) -> int:
    """The side of the images a backbone was made for, in px: timm's are ImageNet's."""
    return OWN[backbone].usual if backbone in OWN else 224


# --- the door --------------------------------------------------------------------------------------------------------
def create_net(
    backbone: str,
    classes: int,
    *,
    image_size: int,
    bottleneck: int | None = None,
    weights: str = "none",
    seed: int = 0,
) -> Net:
    """A new network. The same arguments give the same bits.

    weights: "none" (drawn from the seed), "imagenet" (timm's hub) or a .safetensors file with timm's
    names.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, purpose="net"))
        if backbone in OWN:
            own = OWN[backbone]
            if image_size < own.smallest:
                raise UserError(f"{backbone} needs images of {own.smallest} px or more, not {image_size}.")
            if weights == "imagenet":
                raise UserError(f"There are no ImageNet weights of {backbone} on timm's hub: give a file to --weights.")
            module, mean, std = own.make(), own.pixel_mean, own.pixel_std
            anatomy: Anatomy = OwnAnatomy()
        else:
            # Only here: importing timm takes seconds, and a run with a network of ours does without.
            from unseen.nets.timm_backbones import timm_backbone

            module, anatomy, mean, std = timm_backbone(backbone, image_size, weights, own=OWN)
        if weights not in ("none", "imagenet"):
            load_weights(module, weights, anatomy)
        return Net(
            module,
            anatomy,
            classes,
            image_size=image_size,
            bottleneck=bottleneck,
            backbone_name=backbone,
            pixel_mean=mean,
            pixel_std=std,
        )
