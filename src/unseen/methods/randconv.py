"""RandConv: images go through random convolutions, which change textures and keep shapes; views must agree.

Xu, Liu, Yang, Raffel, Niethammer: Robust and Generalizable Visual Representation Learning via Random Convolutions.
ICLR 2021.

The method: a view of a batch is the batch convolved with a random 3 x 3 x k x k kernel, k drawn from {1, 3, 5, 7},
entries from N(0, 1 / (3 k^2)), mixed with the batch itself at a share alpha ~ U(0, 1) (or, without `mixing`, left alone
with probability `original`). A client minimises the cross-entropy of the first view plus `weight` times the mean KL
divergence of the three views' predictions from their mean. The rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Work
from unseen.method import Method, Range
from unseen.nets.parts.images import random_kernel


def disagreement(logits: Sequence[Tensor]) -> Tensor:
    """The mean over views of KL(p_view || mean of all p), mean over images."""
    chances = [view.softmax(dim=1) for view in logits]
    mean = torch.stack(chances).mean(dim=0).clamp_min(1e-7).log()
    return torch.stack([F.kl_div(mean, chance, reduction="batchmean") for chance in chances]).mean()


@dataclass(frozen=True)
class RandConv(Method):
    name: ClassVar[str] = "randconv"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "augmentation"
    passes: ClassVar[float] = 3.0
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.1, 20.0)}

    kernels: tuple[int, ...] = (1, 3, 5, 7)  # sizes k that a kernel is drawn from
    mixing: bool = True  # mix with the images, at a share alpha ~ U(0, 1) (RC_mix) instead of replacing them (RC_img)
    original: float = 0.5  # without mixing: p, the chance that a view is the images themselves
    weight: float = 10.0  # lambda of the consistency of views; 0 trains on one view
    views: int = 3  # predictions that must agree

    def view(self, work: Work, x: Tensor) -> Tensor:
        """One view, all images by the same kernel. The convolution acts on normalised images, as in the paper."""
        keeps = float(torch.rand((), generator=work.rng)) < self.original
        alpha = float(torch.rand((), generator=work.rng))
        kernel = random_kernel(self.kernels, work.rng).to(x.device)
        if keeps and not self.mixing:
            return x
        mean, std = work.net.pixel_mean, work.net.pixel_std
        convolved = F.conv2d((x - mean) / std, kernel, padding="same") * std + mean
        return alpha * x + (1 - alpha) * convolved if self.mixing else convolved

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net = work.net
        first = replace(batch, x=self.view(work, batch.x))
        features = net.features(first.x)
        logits = [net.head(features)]
        loss: Tensor = F.cross_entropy(logits[0], batch.y)
        if self.weight:
            logits += [net(self.view(work, batch.x)) for _ in range(self.views - 1)]
            term = disagreement(logits)
            work.note("loss.consistency", term)
            loss = loss + self.weight * term
        return loss + work.method.penalty(work, first, features)
