"""Rules: by which statistics norms normalise, and putting one over a net for a while (`ruled`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.net import Net
from unseen.nets.norms.layers import MomentNorm2d, StatNorm2d
from unseen.nets.norms.moments import Statistics, pooled_moments
from unseen.nets.norms.renormalised import renormalised


class Rule:
    """Says by which statistics norms normalise. Subclass and override `statistics`.

    It gets the moments of each image, B x C, and returns mean and standard deviation, B x C or 1 x C; `norm.std(var)`
    is the standard deviation with the layer's epsilon, `norm.running()` the running statistics.
    """

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        return norm.running()

    def normalise(self, norm: StatNorm2d, x: Tensor) -> Tensor:
        pixels = x.shape[2] * x.shape[3]
        return renormalised(x, lambda mean, var: norm.fold(self.statistics(norm, mean, var, pixels)))


@contextmanager
def ruled(net: Net, rule: Rule | None) -> Iterator[None]:
    """Inside, every norm of the net that can follow a rule follows this one. Needs `make_pluggable`."""
    norms = net.norms(MomentNorm2d)
    if not norms:
        raise UserError(
            f"{net.backbone_name or 'This backbone'} has no BatchNorm2d to change: "
            "choose a backbone with BatchNorm, resnet18 for one."
        )
    before = [norm.rule for norm in norms]
    for norm in norms:
        norm.rule = rule
    try:
        yield
    finally:
        for norm, old in zip(norms, before, strict=True):
            norm.rule = old


References = Mapping[nn.Module, Statistics]


def reference_statistics(net: Net, received: Mapping[str, Tensor]) -> dict[nn.Module, Statistics]:
    """The running statistics that a state (the received global model's) holds for each such norm of the net."""
    references: dict[nn.Module, Statistics] = {}
    for name, module in net.named_modules():
        if isinstance(module, MomentNorm2d):
            mean = received[f"{name}.running_mean"].to(module.weight.device)
            var = received[f"{name}.running_var"].to(module.weight.device)
            references[module] = Statistics(mean[None], module.std(var[None]))
    return references


class BatchRule(Rule):
    """The statistics of the batch, in eval mode too, without tracking (TBN; at one image the instance's)."""

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        mean, var = pooled_moments(mean_BC, var_BC)
        return Statistics(mean, norm.std(var))


class InstanceRule(Rule):
    """Each image by its own statistics."""

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        return Statistics(mean_BC, norm.std(var_BC))


class Interpolated(Rule):
    """alpha * instance + (1 - alpha) * reference, for means and standard deviations.

    `alpha` returns a number, or a tensor that broadcasts with B x C: per channel 1 x C, per image B x 1. The reference
    is what `references` holds for the layer, or its running statistics.
    """

    def __init__(self, references: References | None = None) -> None:
        self.references = references

    def alpha(self, norm: MomentNorm2d, instance: Statistics, reference: Statistics) -> Tensor | float:
        return 0.0

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        instance = Statistics(mean_BC, norm.std(var_BC))
        reference = norm.running() if self.references is None else self.references[norm]
        alpha = self.alpha(norm, instance, reference)
        return Statistics(
            reference.mean + alpha * (instance.mean - reference.mean),
            reference.std + alpha * (instance.std - reference.std),
        )


class FixedAlpha(Interpolated):
    """The same alpha for every image and layer."""

    def __init__(self, value: float, references: References | None = None) -> None:
        super().__init__(references)
        self.value = value

    def alpha(self, norm: MomentNorm2d, instance: Statistics, reference: Statistics) -> Tensor | float:
        return self.value


class IABN(Rule):
    """Instance-aware BatchNorm: running statistics, corrected where an image's differ by more than k standard errors.

    Gong et al.: NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation. NeurIPS 2022. With L pixels
    the standard errors of mean and variance are sqrt(var / L) and var * sqrt(2 / (L - 1)), var with epsilon; the excess
    over k of them (soft shrinkage) is added. Maps of `smallest` pixels or fewer are left to the running statistics.
    """

    def __init__(self, k: float = 4.0, smallest: int = 1) -> None:
        self.k = k
        self.smallest = max(smallest, 1)

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        if pixels <= self.smallest:
            return norm.running()
        assert norm.running_mean is not None and norm.running_var is not None
        mean, var = norm.running_mean[None], norm.running_var[None]
        unbiased = var_BC * (pixels / (pixels - 1))
        mean_error = ((var + norm.eps) / pixels).sqrt()
        var_error = (var + norm.eps) * (2 / (pixels - 1)) ** 0.5
        return Statistics(
            mean + soft_shrink(mean_BC - mean, self.k * mean_error),
            norm.std((var + soft_shrink(unbiased - var, self.k * var_error)).clamp_min(0)),
        )


def soft_shrink(x: Tensor, threshold: Tensor) -> Tensor:
    """x moved towards zero by the threshold, and zero within it. (torch's takes one threshold for all.)"""
    return x - x.clamp(-threshold, threshold)


class MixNorm(Rule):
    """`share` of the statistics of an image's augmented views, pooled, and the rest of the running ones.

    Hu et al.: MixNorm: Test-Time Adaptation Through Online Normalization Estimation. 2021. The batch holds all images'
    first views, then all second views, and so on. The paper also moves the running statistics with the test images;
    here an answer must not depend on other images, so they stay.
    """

    def __init__(self, views: int, share: float = 0.05) -> None:
        self.views = views
        self.share = share

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        shape = (self.views, -1, mean_BC.shape[1])
        mean_VBC, var_VBC = mean_BC.view(shape), var_BC.view(shape)
        mean = mean_VBC.mean(dim=0)
        var = (var_VBC + (mean_VBC - mean).square()).mean(dim=0)
        assert norm.running_mean is not None and norm.running_var is not None
        return Statistics(
            torch.lerp(norm.running_mean.expand_as(mean), mean, self.share).repeat(self.views, 1),
            norm.std(torch.lerp(norm.running_var.expand_as(var), var, self.share)).repeat(self.views, 1),
        )
