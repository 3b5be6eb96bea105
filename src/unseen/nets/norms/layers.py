"""Normalisation layers: one with pluggable statistics (`StatNorm2d` and its rules), XAN, IBN, BIN and DSON.

All of them work alike. The mean and the variance of every channel of every image are computed once
(`instance_moments`); batch statistics are pooled from those; whatever a layer or rule makes of them is folded with the
affine map into one scale and one shift per image and channel, and one multiply-add over the maps applies it. B x C
numbers are cheap; passes over B x C x H x W maps are what a step costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.nets.net import Net
from unseen.nets.norms.assembled import assembled
from unseen.nets.norms.renormalised import renormalised
from unseen.nets.surgery import plain_batch_norm, replace_batch_norms


class Statistics(NamedTuple):
    """What to subtract and what to divide by: B x C, or 1 x C for all images alike."""

    mean: Tensor
    std: Tensor


# --- the two passes over the maps ------------------------------------------------------------------------------------
class _InstanceMoments(torch.autograd.Function):
    """Mean and biased variance over H x W.

    torch.var_mean is not vectorised on CPUs: a normalisation built on it took 5 to 15 times as long, forward and
    backward. The gradient of both moments together is one multiply-add.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(dim=(2, 3))
        deviation = x - mean[:, :, None, None]
        var = deviation.mul_(deviation).mean(dim=(2, 3))
        ctx.save_for_backward(x, mean)
        return mean, var

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        grad_mean, grad_var = gradients
        x, mean = ctx.saved_tensors
        pixels = x.shape[2] * x.shape[3]
        slope = grad_var * (2 / pixels)
        offset = grad_mean / pixels - slope * mean
        return torch.addcmul(offset[:, :, None, None], x, slope[:, :, None, None])


def instance_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of each image, B x C each, in float32 at least."""
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()
    mean, var = _InstanceMoments.apply(x)  # type: ignore[no-untyped-call]
    return mean, var


def multiply_add(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x * scale + shift, with one scale and shift per image and channel (B x C) or per channel (1 x C)."""
    return torch.addcmul(shift.to(x.dtype)[:, :, None, None], x, scale.to(x.dtype)[:, :, None, None])


def normalise(x: Tensor, statistics: Statistics, weight: Tensor, bias: Tensor) -> Tensor:
    """(x - mean) / std * weight + bias in one pass."""
    scale = weight / statistics.std
    return multiply_add(x, scale, bias - statistics.mean * scale)


def pooled_moments(mean_BC: Tensor, var_BC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the batch, 1 x C, from those of the images."""
    mean = mean_BC.mean(dim=0, keepdim=True)
    return mean, (var_BC + (mean_BC - mean).square()).mean(dim=0, keepdim=True)


# --- a BatchNorm that is computed from the moments -------------------------------------------------------------------
class MomentNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d, state and all, whose subclasses normalise by something else than the batch alone."""

    @classmethod
    def of(cls, norm: nn.modules.batchnorm._BatchNorm) -> Self:
        """Take over the parameters and running statistics of a BatchNorm."""
        if not (norm.affine and norm.track_running_stats):
            raise ValueError("only a BatchNorm with an affine map and running statistics can be replaced")
        return plain_batch_norm(norm, cls).to(norm.weight.device)  # what a subclass adds, too

    def std(self, var: Tensor) -> Tensor:
        return (var + self.eps).sqrt()

    def running(self) -> Statistics:
        """The running statistics, 1 x C."""
        assert self.running_mean is not None and self.running_var is not None
        return Statistics(self.running_mean[None], self.std(self.running_var[None]))

    def fold(self, statistics: Statistics) -> tuple[Tensor, Tensor]:
        """Normalisation by these statistics and the affine map after it, as one scale and one shift."""
        scale = self.weight / statistics.std
        return scale, self.bias - statistics.mean * scale

    def ordinary(self, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        """What BatchNorm normalises by: in train mode the batch's statistics, which also move the running ones."""
        if not self.training:
            return self.running()
        mean, var = pooled_moments(mean_BC, var_BC)
        self._track(mean, var, mean_BC.shape[0] * pixels)
        return Statistics(mean, self.std(var))

    def assemble(self, x: Tensor, gamma_in: Tensor, gamma_bn: Tensor, beta: Tensor) -> Tensor:
        """gamma_in * IN(x) + gamma_bn * BN(x) + beta, one number per channel each; in train mode with tracking."""
        if self.training:
            y, mean, var = assembled(x, gamma_in, gamma_bn, beta, self.eps)
            self._track(mean, var, x.shape[0] * x.shape[2] * x.shape[3])
            return y
        mean, var = instance_moments(x)
        running = self.running()
        scale_in, scale_bn = gamma_in / self.std(var), gamma_bn / running.std
        return multiply_add(x, scale_in + scale_bn, beta - mean * scale_in - running.mean * scale_bn)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = var[0] * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean[0].to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


# --- pluggable statistics --------------------------------------------------------------------------------------------
class Rule:
    """Says by which statistics a `StatNorm2d` normalises. Subclass and override `statistics`.

    It gets the moments of each image, B x C, and returns mean and standard deviation, B x C or 1 x C; `norm.std(var)`
    is the standard deviation with the layer's epsilon, `norm.running()` the running statistics.
    """

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        return norm.running()

    def normalise(self, norm: StatNorm2d, x: Tensor) -> Tensor:
        pixels = x.shape[2] * x.shape[3]
        return renormalised(x, lambda mean, var: norm.fold(self.statistics(norm, mean, var, pixels)))


class StatNorm2d(MomentNorm2d):
    """A BatchNorm2d that follows `rule`; without one it is an ordinary BatchNorm2d, to the bit."""

    rule: Rule | None = None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.rule is None else self.rule.normalise(self, x)


class StatNorm1d(nn.BatchNorm1d):
    """A BatchNorm1d (in the neck) that treats the two halves of a twin batch apart; see `twin`."""

    rule: Twin | None = None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.rule is None else self.rule.normalise_vectors(self, x)


def make_pluggable(net: Net) -> Net:
    """Turn every BatchNorm of the net into a `StatNorm`. Outputs and state names stay as they are."""
    replace_batch_norms(net, nn.BatchNorm2d, StatNorm2d.of)
    replace_batch_norms(net, nn.BatchNorm1d, lambda norm: plain_batch_norm(norm, StatNorm1d))
    return net


@contextmanager
def ruled(net: Net, rule: Rule | None) -> Iterator[None]:
    """Inside, every `StatNorm2d` of the net follows `rule`."""
    norms = net.norms(StatNorm2d)
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
    """The running statistics that a state (the received global model's) holds for each `StatNorm2d` of the net."""
    references: dict[nn.Module, Statistics] = {}
    for name, module in net.named_modules():
        if isinstance(module, StatNorm2d):
            mean = received[f"{name}.running_mean"].to(module.weight.device)
            var = received[f"{name}.running_var"].to(module.weight.device)
            references[module] = Statistics(mean[None], module.std(var[None]))
    return references


class BatchRule(Rule):
    """The statistics of the batch, in eval mode too, without tracking (TBN; at one image the instance's)."""

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        mean, var = pooled_moments(mean_BC, var_BC)
        return Statistics(mean, norm.std(var))


class InstanceRule(Rule):
    """Each image by its own statistics."""

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        return Statistics(mean_BC, norm.std(var_BC))


class Interpolated(Rule):
    """alpha * instance + (1 - alpha) * reference, for means and standard deviations (FedFD's Eq. 6).

    `alpha` returns a number, or a tensor that broadcasts with B x C: per channel 1 x C, per image B x 1. The reference
    is what `references` holds for the layer, or its running statistics.
    """

    def __init__(self, references: References | None = None) -> None:
        self.references = references

    def alpha(self, norm: StatNorm2d, instance: Statistics, reference: Statistics) -> Tensor | float:
        return 0.0

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
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

    def alpha(self, norm: StatNorm2d, instance: Statistics, reference: Statistics) -> Tensor | float:
        return self.value


class RandomAlpha(Interpolated):
    """alpha ~ U(low, high), drawn at every layer and call: per "channel" (FedFD's u), "image", "both" or "number"."""

    def __init__(
        self,
        generator: torch.Generator,
        per: Literal["channel", "image", "both", "number"] = "channel",
        low: float = 0.0,
        high: float = 1.0,
        references: References | None = None,
    ) -> None:
        super().__init__(references)
        self.generator = generator
        self.per = per
        self.low = low
        self.high = high

    def alpha(self, norm: StatNorm2d, instance: Statistics, reference: Statistics) -> Tensor | float:
        images, channels = instance.mean.shape
        shapes = {"channel": (1, channels), "image": (images, 1), "both": (images, channels), "number": (1, 1)}
        draw = torch.rand(shapes[self.per], generator=self.generator)  # on the CPU: the same on every device
        return (self.low + (self.high - self.low) * draw).to(instance.mean.device)


class IABN(Rule):
    """Instance-aware BatchNorm: running statistics, corrected where an image's differ by more than k standard errors.

    Gong et al.: NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation. NeurIPS 2022. With L pixels
    the standard errors of mean and variance are sqrt(var / L) and var * sqrt(2 / (L - 1)); the excess over k of them
    (soft shrinkage) is added. Maps of `smallest` pixels or fewer are left to the running statistics.
    """

    def __init__(self, k: float = 4.0, smallest: int = 1) -> None:
        self.k = k
        self.smallest = max(smallest, 1)

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        if pixels <= self.smallest:
            return norm.running()
        assert norm.running_mean is not None and norm.running_var is not None
        mean, var = norm.running_mean[None], norm.running_var[None]
        unbiased = var_BC * (pixels / (pixels - 1))
        mean_error = (var / pixels).sqrt()
        var_error = var * (2 / (pixels - 1)) ** 0.5
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

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        shape = (self.views, -1, mean_BC.shape[1])
        mean_VBC, var_VBC = mean_BC.view(shape), var_BC.view(shape)
        mean = mean_VBC.mean(dim=0)
        var = (var_VBC + (mean_VBC - mean).square()).mean(dim=0)
        assert norm.running_mean is not None and norm.running_var is not None
        return Statistics(
            torch.lerp(norm.running_mean.expand_as(mean), mean, self.share).repeat(self.views, 1),
            norm.std(torch.lerp(norm.running_var.expand_as(var), var, self.share)).repeat(self.views, 1),
        )


# --- two passes in one -----------------------------------------------------------------------------------------------
class Twin(Rule):
    """The rule inside `twin`."""

    def __init__(self, rule: Rule, vectors: Literal["batch", "running"]) -> None:
        self.rule = rule
        self.vectors = vectors
        self.split = False  # whether this forward pass has met its first norm

    def normalise(self, norm: StatNorm2d, x: Tensor) -> Tensor:
        if not self.split:
            # Up to here both passes are the same, and ran once.
            self.split = True
            x = torch.cat([x, x])
        return super().normalise(norm, x)

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        (mean_1, mean_2), (var_1, var_2) = mean_BC.chunk(2), var_BC.chunk(2)
        first = norm.ordinary(mean_1, var_1, pixels)
        second = self.rule.statistics(norm, mean_2, var_2, pixels)
        return Statistics(
            torch.cat([first.mean.expand_as(mean_1), second.mean.expand_as(mean_2)]),
            torch.cat([first.std.expand_as(mean_1), second.std.expand_as(mean_2)]),
        )

    def normalise_vectors(self, norm: StatNorm1d, x: Tensor) -> Tensor:
        first, second = x.chunk(2)
        by_batch = norm.training and self.vectors == "batch"
        running = (None, None) if by_batch else (norm.running_mean, norm.running_var)
        second = F.batch_norm(second, *running, norm.weight, norm.bias, by_batch, 0.0, norm.eps)
        return torch.cat([nn.BatchNorm1d.forward(norm, first), second])


@contextmanager
def twin(net: Net, rule: Rule, vectors: Literal["batch", "running"] = "batch") -> Iterator[None]:
    """Inside, one `net.features(x)` is two passes: 2B rows, first those of an ordinary pass, then those under `rule`.

    The net's first BatchNorm2d doubles the batch, so what lies before it runs once and all the rest as one batch. The
    first half is normalised as ever (in train mode by its batch, moving the running statistics), the second by `rule`,
    without moving anything. A BatchNorm1d has no instance statistics: it normalises the second half by that half's own
    batch statistics, or by its running ones (`vectors`). One forward pass per `with`. Needs `make_pluggable`.
    """
    both = Twin(rule, vectors)
    vector_norms = net.norms(StatNorm1d)
    with ruled(net, both):
        for norm in vector_norms:
            norm.rule = both
        try:
            yield
        finally:
            for norm in vector_norms:
                norm.rule = None


# --- layers that stand beside ----------------------------------------------------------------------------------------
class ScoredBatchNorm2d(MomentNorm2d):
    """XAN's BatchNorm branch: a BatchNorm2d and its weight in the mixture, so that both stay with the client."""

    def __init__(self, num_features: int, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self.score = nn.Parameter(torch.ones(()))


class XAN(nn.Module):
    """w_in * IN(x) + w_bn * BN(x), each with its own affine map (gPerXAN's Eq. 2).

    "softmax": the two weights are the softmax of two scores (the authors' code, where both start at 1: w_in at 0.5).
    "free": the weights themselves, drawn from U(0, 1) (the paper: randomly initialised, unconstrained). `bn` is the
    branch that gPerXAN keeps on the client: affine map, running statistics, score. IN's affine map starts at 1 and 0
    ("one") or as that of the BatchNorm that was there ("bn"), which is the same where that was not trained.
    """

    def __init__(
        self,
        norm: nn.BatchNorm2d,
        mixing: Literal["softmax", "free"] = "softmax",
        affine: Literal["one", "bn"] = "one",
        w_in: float = 0.5,
    ) -> None:
        super().__init__()
        self.mixing = mixing
        self.bn = ScoredBatchNorm2d.of(norm)
        weight, bias = self.bn.weight.detach(), self.bn.bias.detach()
        self.weight = nn.Parameter(weight.clone() if affine == "bn" else torch.ones_like(weight))
        self.bias = nn.Parameter(bias.clone() if affine == "bn" else torch.zeros_like(bias))
        self.score = nn.Parameter(torch.full((), 1 + math.log(w_in / (1 - w_in)), device=weight.device))
        if mixing == "free":
            for score in (self.score, self.bn.score):
                nn.init.uniform_(score)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """w_in and w_bn."""
        if self.mixing == "free":
            return self.score, self.bn.score
        weights = torch.stack([self.score, self.bn.score]).softmax(dim=0)
        return weights[0], weights[1]

    def forward(self, x: Tensor) -> Tensor:
        w_in, w_bn = self.mixture()
        beta = w_in * self.bias + w_bn * self.bn.bias
        return self.bn.assemble(x, w_in * self.weight, w_bn * self.bn.weight, beta)


class IBN(MomentNorm2d):
    """The first half of the channels by instance, the others by batch statistics (IBN-Net's IBN-a, Pan et al. 2018).

    The state is a BatchNorm2d's; the running statistics of the first half are tracked but not used.
    """

    def forward(self, x: Tensor) -> Tensor:
        by_instance = torch.arange(self.num_features, device=x.device) < self.num_features // 2
        return self.assemble(x, self.weight * by_instance, self.weight * ~by_instance, self.bias)


class BIN(MomentNorm2d):
    """weight * (gate * BN + (1 - gate) * IN) + bias: a trained gate per channel, kept in [0, 1] (Nam and Kim 2018)."""

    def __init__(self, num_features: int, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self.gate = nn.Parameter(torch.ones(num_features))  # starts as BatchNorm

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.bound_gate()
        return self.assemble(x, self.weight * (1 - self.gate), self.weight * self.gate, self.bias)

    @torch.no_grad()
    def bound_gate(self) -> None:
        """Back into [0, 1] after a step; not clamped in the graph: a gate that overshot must still get a gradient."""
        self.gate.clamp_(0, 1)


class DSON(MomentNorm2d):
    """Mean and variance are each a trained mixture of the batch's and the image's (Seo et al. 2020).

    One domain's branch: a client keeps its own, and a prediction is the mean over all clients' branches. The mixture
    weights are sigmoids of two scalars that start at 0, hence at one half.
    """

    def __init__(self, num_features: int, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self.mix = nn.Parameter(torch.zeros(2))  # for the mean, for the variance

    def forward(self, x: Tensor) -> Tensor:
        mean, var = instance_moments(x)
        batch = self.ordinary(mean, var, x.shape[2] * x.shape[3])
        of_mean, of_var = self.mix.sigmoid()
        batch_var = batch.std.square()  # both variances with epsilon, which the mixture then has once
        mixed = Statistics(
            mean + of_mean * (batch.mean - mean),
            (var + self.eps + of_var * (batch_var - (var + self.eps))).sqrt(),
        )
        return normalise(x, mixed, self.weight, self.bias)
