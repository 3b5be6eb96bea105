"""`Net`: stages, pooling, neck, head and named extras over any backbone. Methods never name a layer of a backbone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from unseen.core.types import Share, Tensors
from unseen.nets.surgery import replace_batch_norms

M = TypeVar("M", bound=nn.Module)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Anatomy(ABC):
    """Where the stages of a family of backbones are. One small subclass per family; holds no modules itself.

    Modules are looked up in the backbone at every call, because surgery may have replaced them.
    """

    @abstractmethod
    def stages(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        """The modules of each stage, in the order in which they run; the stem belongs to the first stage."""

    def blocks(self, backbone: nn.Module) -> Sequence[Sequence[nn.Module]]:
        """What papers mean by the first blocks: the stages, without a stem that is no part of the first block."""
        return self.stages(backbone)

    def run(self, backbone: nn.Module, stage: int, x: Tensor) -> Tensor:
        for module in self.stages(backbone)[stage]:
            x = module(x)
        return x

    def pool(self, backbone: nn.Module, maps: Tensor) -> Tensor:
        """Last maps to one vector per image, by the backbone's own rule."""
        vectors: Tensor = backbone.forward_head(maps, pre_logits=True)  # type: ignore[operator]  # timm's convention
        return vectors

    def arguments(self, image_size: int) -> Mapping[str, object]:
        """What the family's constructor wants to know of the images."""
        return {}

    def translate(self, backbone: nn.Module, weights: Tensors) -> Tensors:
        """A file's tensors as this backbone wants them."""
        return weights


class Bottleneck(nn.Sequential):
    """Linear, BatchNorm, ReLU between the pooled maps and the head (FedFD's and CSAC's 256-d features)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU())


class Net(nn.Module):
    """Images in [0, 1] to logits. Everything a method may touch has a name here."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        anatomy: Anatomy,
        classes: int,
        *,
        image_size: int,
        bottleneck: int | None = None,
        backbone_name: str = "",
        pixel_mean: Sequence[float] = IMAGENET_MEAN,
        pixel_std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.image_size = image_size
        self.backbone_name = backbone_name
        self._anatomy = anatomy
        self.backbone = backbone
        self.stages = len(anatomy.stages(backbone))
        self.inserted = nn.ModuleList(nn.ModuleList() for _ in range(self.stages))
        # Not persistent: constants of the input, not state that a server should average.
        self.register_buffer("pixel_mean", torch.tensor(pixel_mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(pixel_std).view(1, 3, 1, 1), persistent=False)
        self.stage_channels, pooled = self._measure()
        self.map_channels = self.stage_channels[-1]
        self.neck: nn.Module = nn.Identity() if bottleneck is None else Bottleneck(pooled, bottleneck)
        self.feature_size = pooled if bottleneck is None else bottleneck
        self.head: nn.Module = nn.Linear(self.feature_size, classes)
        self.extras = nn.ModuleDict()

    def _measure(self) -> tuple[tuple[int, ...], int]:
        """Channels after each stage and after pooling, by one image in eval mode (which changes no state)."""
        was_training = self.training
        self.eval()
        with torch.no_grad():
            x = torch.zeros(1, 3, self.image_size, self.image_size)
            channels = []
            for stage in range(self.stages):
                x = self.run_stage(stage, x)
                channels.append(x.shape[1])
            pooled = self._anatomy.pool(self.backbone, x).shape[1]
        self.train(was_training)
        return tuple(channels), pooled

    # --- running -------------------------------------------------------------------------------------------------
    def run_stage(self, stage: int, x: Tensor) -> Tensor:
        """One stage and what was inserted after it. Stage 0 takes images in [0, 1]."""
        if stage == 0:
            # Channels last: convolutions and BatchNorm keep the layout, and both are faster in it on CPUs and GPUs.
            x = ((x - self.pixel_mean) / self.pixel_std).contiguous(memory_format=torch.channels_last)
        x = self._anatomy.run(self.backbone, stage, x)
        after = self.inserted[stage]
        assert isinstance(after, nn.ModuleList)
        for module in after:
            x = module(x)
        return x

    def maps(self, x: Tensor) -> Tensor:
        """The last maps, B x C x H x W. (A vision transformer's are its tokens in one row, the class token first.)"""
        for stage in range(self.stages):
            x = self.run_stage(stage, x)
        return x

    def pool(self, maps: Tensor) -> Tensor:
        """Maps to features: the backbone's pooling, then the neck."""
        features: Tensor = self.neck(self._anatomy.pool(self.backbone, maps))
        return features

    def features(self, x: Tensor) -> Tensor:
        """What the head sees, B x feature_size."""
        return self.pool(self.maps(x))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    # --- surgery -------------------------------------------------------------------------------------------------
    def insert(self, stage: int, module: nn.Module) -> None:
        """Run `module` after that stage, on its output and after what was inserted before."""
        after = self.inserted[stage]
        assert isinstance(after, nn.ModuleList)
        after.append(module)

    def replace_norms(self, make: Callable[[nn.BatchNorm2d], nn.Module], stages: int | None = None) -> Net:
        """Put `make(norm)` in the place of every BatchNorm2d of the first `stages` stages (None or all: of the backbone).

        An activation that timm fused with a norm stays: it runs after what `make` returns.
        """
        whole = stages is None or stages >= self.stages
        blocks = self._anatomy.blocks(self.backbone)
        parts = None if whole else [part for modules in blocks[:stages] for part in modules]
        replace_batch_norms(self.backbone, nn.BatchNorm2d, make, parts)
        return self

    def stage_modules(self) -> Sequence[Sequence[nn.Module]]:
        """The backbone's modules by stage."""
        return self._anatomy.stages(self.backbone)

    # --- state ---------------------------------------------------------------------------------------------------
    def norms(self, kind: type[M]) -> list[M]:
        """Modules of a type, in the order of registration, which is that of the forward pass."""
        return [module for module in self.modules() if isinstance(module, kind)]

    def state_of(self, *kinds: type[nn.Module], part: str | None = None) -> frozenset[str]:
        """State that belongs directly to modules of these types, or to their submodule or tensor called `part`."""
        every = self.state_dict().keys()
        found: set[str] = set()
        for name, module in self.named_modules():
            if not isinstance(module, kinds):
                continue
            if part is None:
                own = [*module._parameters, *module._buffers]
                found.update(key for key in (f"{name}.{tensor}" for tensor in own) if key in every)
            else:
                path = f"{name}.{part}"
                found.update(key for key in every if key == path or key.startswith(path + "."))
        return frozenset(found)

    def running_statistics(self) -> frozenset[str]:
        """`running_mean`, `running_var` and `num_batches_tracked` of every BatchNorm, 1d and 2d."""
        kind = nn.modules.batchnorm._BatchNorm
        parameters = {name for name, _ in self.named_parameters()}
        return self.state_of(kind) - parameters

    def running_variances(self) -> frozenset[str]:
        """`running_var` of every norm that tracks one, of our own kinds too: they are BatchNorms. Never negative."""
        return self.state_of(nn.modules.batchnorm._NormBase, part="running_var")

    def share_all(self) -> Share:
        """Everything goes up and comes down."""
        keys = frozenset(self.state_dict())
        return Share(up=keys, down=keys)

    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]
