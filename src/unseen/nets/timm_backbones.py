"""timm's backbones, told apart by class: one small anatomy per family."""

# ruff: noqa: E402 (timm can be imported only after torchvision's operators are there)

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from unseen.core.errors import UserError, unknown
from unseen.core.types import Tensors
from unseen.nets.hub import cached_only, hub_is_there
from unseen.nets.net import Anatomy
from unseen.nets.torchvision_ops import declare_missing_operators

declare_missing_operators()  # timm imports torchvision, which may lack its operators

import timm
from timm.models.densenet import DenseBlock, DenseNet
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer as VisionTransformer  # prompts needs it too
from timm.models.vision_transformer import checkpoint_filter_fn


class ResNetAnatomy(Anatomy):
    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        stem = ("conv1", "bn1", "act1", "maxpool")
        names = ((*stem, "layer1"), ("layer2",), ("layer3",), ("layer4",))
        return [[backbone.get_submodule(name) for name in stage] for stage in names]


class DenseNetAnatomy(Anatomy):
    """A stage is a dense block with the transition after it; the stem runs first, the last stage ends with a norm."""

    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        stages: list[list[nn.Module]] = [[]]
        for module in cast(DenseNet, backbone).features.children():
            if isinstance(module, DenseBlock) and any(isinstance(other, DenseBlock) for other in stages[-1]):
                stages.append([])
            stages[-1].append(module)
        return stages

    def blocks(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        """ "The first dense block and the following transition block" (gPerXAN) has 13 norms: not the stem's."""
        first, *others = self.stages(backbone)
        stem = next(place for place, module in enumerate(first) if isinstance(module, DenseBlock))
        return [first[stem:], *others]


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


def timm_backbone(
    name: str, image_size: int, weights: str, own: Collection[str]
) -> tuple[nn.Module, Anatomy, tuple[float, float, float], tuple[float, float, float]]:
    if not timm.is_model(name):
        known = [*own, *timm.list_models()]
        raise unknown("backbone", name, known, f"The names are timm's (timm.list_models()), {', '.join(own)}.")
    with torch.device("meta"):  # the family is known by the class, and a module on meta costs no memory
        family = type(timm.create_model(name, num_classes=0))
    anatomy = ANATOMIES.get(family)
    if anatomy is None:
        raise UserError(
            f"{name} is of timm's family {family.__name__}, which unseen cannot take apart: "
            f"use one of {', '.join(sorted(known.__name__ for known in ANATOMIES))}, convnet or alexnet."
        )
    module = _pretrained(name, weights == "imagenet", anatomy.arguments(image_size))
    # Their gradients need what came in: in place, autograd copies all of it first.
    for activation in module.modules():
        if isinstance(activation, nn.Hardtanh | nn.SiLU | nn.Hardswish):  # ReLU6 is a Hardtanh
            activation.inplace = False
    config = cast(Mapping[str, Any], module.pretrained_cfg)
    return module, anatomy, tuple(config["mean"]), tuple(config["std"])


def _pretrained(name: str, hub: bool, arguments: Mapping[str, object]) -> nn.Module:
    """timm's module without its classifier, with ImageNet's weights if `hub`."""
    create = cast(Callable[..., nn.Module], timm.create_model)
    there = not hub or hub_is_there()
    try:
        with contextlib.nullcontext() if there else cached_only():
            return create(name, pretrained=hub, num_classes=0, **arguments)
    except Exception as error:
        if not hub:
            raise
        # huggingface_hub, httpx, requests and urllib each have their own family of network errors
        why = type(error).__name__ if there else "no connection"
        raise UserError(
            f"The ImageNet weights of {name} could not be had from timm's hub ({why}): "
            f"check the network, or give --weights none or --weights FILE."
        ) from error
