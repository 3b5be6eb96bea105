"""`create_net`: backbones by name. timm's are told apart by class, one small anatomy per family; three are our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import timm
import torch
from timm.models.densenet import DenseBlock, DenseNet
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from unseen.chance import derive
from unseen.errors import UserError, unknown
from unseen.nets.net import IMAGENET_MEAN, IMAGENET_STD, Anatomy, Net
from unseen.nets.weights import load_weights, pretrained
from unseen.types import Tensors


# --- timm's families -------------------------------------------------------------------------------------------------
class ResNetAnatomy(Anatomy):
    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        stem = ("conv1", "bn1", "act1", "maxpool")
        names = ((*stem, "layer1"), ("layer2",), ("layer3",), ("layer4",))
        return [[backbone.get_submodule(name) for name in stage] for stage in names]


class DenseNetAnatomy(Anatomy):
    """A stage is a dense block with the transition after it; the last one ends with the final norm."""

    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        stages: list[list[nn.Module]] = [[]]
        for module in cast(DenseNet, backbone).features.children():
            if isinstance(module, DenseBlock) and any(isinstance(other, DenseBlock) for other in stages[-1]):
                stages.append([])
            stages[-1].append(module)
        return stages


class EfficientNetAnatomy(Anatomy):
    """Blocks grouped by resolution like ResNet's layers: stages end at strides 4, 8, 16 and 32."""

    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        net = cast(EfficientNet, backbone)
        # timm notes for each stride the last group of blocks, "blocks.4"
        ends = [int(info["module"].removeprefix("blocks.")) + 1 for info in net.feature_info if info["reduction"] >= 4]
        ends[-1] = len(net.blocks)
        groups = list(net.blocks.children())
        stages: list[list[nn.Module]] = [groups[a:b] for a, b in pairwise([0, *ends])]
        stages[0] = [net.conv_stem, net.bn1, *stages[0]]
        stages[-1] += self.tail(backbone)
        return stages

    def tail(self, backbone: nn.Module) -> list[nn.Module]:
        """What runs between the last block and the pooling."""
        net = cast(EfficientNet, backbone)
        return [net.conv_head, net.bn2]


class MobileNetV3Anatomy(EfficientNetAnatomy):
    def tail(self, backbone: nn.Module) -> list[nn.Module]:
        return []  # its last convolution runs after the pooling


class VisionTransformerAnatomy(Anatomy):
    """Four groups of blocks. The maps are all tokens in one row, B x C x 1 x N, prefix (class) tokens first.

    In this form everything a method does to maps reaches what is pooled, and `features(x) == pool(maps(x))` holds as
    for any other backbone. The tokens B x N x C are the same memory, channels last.
    """

    def arguments(self, image_size: int) -> Mapping[str, object]:
        return {"img_size": image_size}

    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        net = cast(VisionTransformer, backbone)
        blocks = list(net.blocks.children())
        cuts = [len(blocks) * stage // 4 for stage in range(5)]
        stages: list[list[nn.Module]] = [blocks[a:b] for a, b in pairwise(cuts)]
        stages[-1].append(net.norm)
        return stages

    def run(self, backbone: nn.Module, stage: int, x: Tensor) -> Tensor:
        net = cast(VisionTransformer, backbone)
        if stage == 0:
            tokens = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x))))
        else:
            tokens = x.squeeze(2).transpose(1, 2)
        for module in self.stages(backbone)[stage]:
            tokens = module(tokens)
        return cast(Tensor, tokens).transpose(1, 2).unsqueeze(2)

    def pool(self, backbone: nn.Module, maps: Tensor) -> Tensor:
        return super().pool(backbone, maps.squeeze(2).transpose(1, 2))

    def translate(self, backbone: nn.Module, weights: Tensors) -> Tensors:
        # position embeddings of another image size are resampled
        resampled: Tensors = checkpoint_filter_fn(weights, cast(VisionTransformer, backbone))
        return resampled


# Exact classes, not subclasses: a subclass in timm usually changes the forward pass.
ANATOMIES: Mapping[type[nn.Module], Anatomy] = {
    ResNet: ResNetAnatomy(),
    DenseNet: DenseNetAnatomy(),
    EfficientNet: EfficientNetAnatomy(),
    MobileNetV3: MobileNetV3Anatomy(),
    VisionTransformer: VisionTransformerAnatomy(),
}


# --- our own ---------------------------------------------------------------------------------------------------------
class OwnAnatomy(Anatomy):
    """Our own networks say themselves what their stages are."""

    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        return cast("ConvNet | AlexNet", backbone).stages()


class ConvNet(nn.Module):
    """Four 3x3 convolutions for 32 px digits: the ConvNet of Digits-DG, but with BatchNorm and 4 x 4 maps at the end.

    The papers' has no BatchNorm, which half of the methods are about, and ends with 2 x 2 maps: statistics of one image
    need more than four numbers. The first block has half of the papers' 64 channels, because it costs most: with them
    one CPU thread trains on 700 images a second, so on 1200.
    """

    classifier_name = "fc"

    def __init__(self, widths: Sequence[int] = (32, 64, 64, 64)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        inputs = 3
        for index, width in enumerate(widths):
            block = nn.Sequential(
                nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
            )
            if index < len(widths) - 1:
                block.append(nn.MaxPool2d(2))
            self.blocks.append(block)
            inputs = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stages(self) -> Sequence[Sequence[nn.Module]]:
        return [[block] for block in self.blocks]

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        return maps.mean(dim=(2, 3))


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

    weights: "none" (drawn from the seed), "imagenet" (timm's hub) or a .safetensors, .pth or .pt file with timm's
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
            module, anatomy, mean, std = _timm_backbone(backbone, image_size, weights)
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


def _timm_backbone(
    name: str, image_size: int, weights: str
) -> tuple[nn.Module, Anatomy, tuple[float, float, float], tuple[float, float, float]]:
    if not timm.is_model(name):
        known = [*OWN, *timm.list_models()]
        raise unknown(
            "backbone", name, known, "The names are timm's (timm.list_models()), convnet, alexnet, alexnet_bn."
        )
    with torch.device("meta"):  # the family is known by the class, and a module on meta costs no memory
        family = type(timm.create_model(name, num_classes=0))
    anatomy = ANATOMIES.get(family)
    if anatomy is None:
        raise UserError(
            f"{name} is of timm's family {family.__name__}, which unseen cannot take apart: "
            f"use one of {', '.join(sorted(known.__name__ for known in ANATOMIES))}, convnet or alexnet."
        )
    module = pretrained(name, weights == "imagenet", anatomy.arguments(image_size))
    config = cast(Mapping[str, Any], module.pretrained_cfg)
    return module, anatomy, tuple(config["mean"]), tuple(config["std"])
