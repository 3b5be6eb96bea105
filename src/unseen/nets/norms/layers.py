"""Normalisation layers: one that follows a rule (`StatNorm2d`; the rules are in `rules`), XAN, IBN, BIN and DSON."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from unseen.nets.net import Net
from unseen.nets.norms.assembled import assembled
from unseen.nets.norms.moments import Statistics, instance_moments, multiply_add, normalise, pooled_moments
from unseen.nets.surgery import plain_batch_norm, replace_batch_norms


class StatisticsRule(Protocol):
    """What a norm asks of a rule. The rules know the layers; the layers know no more of them than this."""

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics: ...

    def normalise(self, norm: StatNorm2d, x: Tensor) -> Tensor: ...


# --- a BatchNorm that is computed from the moments -------------------------------------------------------------------
class MomentNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d, state and all, whose subclasses normalise by something else than the batch alone.

    While it has a `rule`, the rule's statistics stand in the place of the batch's (or of the running ones).
    """

    rule: StatisticsRule | None = None

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

    def batch_side(self, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        """What BatchNorm normalises by: in train mode the batch's statistics, which also move the running ones."""
        if self.rule is not None:
            return self.rule.statistics(self, mean_BC, var_BC, pixels)
        if not self.training:
            return self.running()
        mean, var = pooled_moments(mean_BC, var_BC)
        self._track(mean, var, mean_BC.shape[0] * pixels)
        return Statistics(mean, self.std(var))

    def assemble(self, x: Tensor, gamma_in: Tensor, gamma_bn: Tensor, beta: Tensor) -> Tensor:
        """gamma_in * IN(x) + gamma_bn * BN(x) + beta, one number per channel each; in train mode with tracking."""
        pixels = x.shape[2] * x.shape[3]
        if self.training and self.rule is None:
            y, mean, var = assembled(x, gamma_in, gamma_bn, beta, self.eps)
            self._track(mean, var, x.shape[0] * pixels)
            return y
        mean, var = instance_moments(x)
        batch = self.batch_side(mean, var, pixels)
        scale_in, scale_bn = gamma_in / self.std(var), gamma_bn / batch.std
        return multiply_add(x, scale_in + scale_bn, beta - mean * scale_in - batch.mean * scale_bn)

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        if not self.track_running_stats:
            return
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = var[0] * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean[0].to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


# --- layers that follow a rule ---------------------------------------------------------------------------------------
class StatNorm2d(MomentNorm2d):
    """A BatchNorm2d that follows `rule`; without one it is an ordinary BatchNorm2d, to the bit."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.rule is None else self.rule.normalise(self, x)


def make_pluggable(net: Net) -> Net:
    """Turn every plain BatchNorm2d of the net into a `StatNorm2d`. Outputs and state names stay as they are.

    Norms that follow rules already (BIN's, XAN's BatchNorm side) stay.
    """
    replace_batch_norms(
        net, nn.BatchNorm2d, lambda norm: norm if isinstance(norm, MomentNorm2d) else StatNorm2d.of(norm)
    )
    return net


# --- layers that stand beside ----------------------------------------------------------------------------------------
class ScoredBatchNorm2d(MomentNorm2d):
    """XAN's BatchNorm branch: a BatchNorm2d and its weight in the mixture, so that both stay with the client."""

    def __init__(self, num_features: int, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self.score = nn.Parameter(torch.ones(()))


class XAN(nn.Module):
    """w_in * IN(x) + w_bn * BN(x), each with its own affine map (gPerXAN's Eq. 2).

    "softmax": the two weights are the softmax of two scores (the authors' code, where both start at 1: w_in at 0.5).
    "free": the weights are the scores themselves (the paper: unconstrained). `w_in` is the first weight at the start,
    and the second is 1 - w_in; None: the scores are drawn from U(0, 1) (the paper: randomly initialised). `bn` is the
    branch that gPerXAN keeps on the client: affine map, running statistics, score. IN's affine map starts at 1 and 0
    ("one") or as that of the BatchNorm that was there ("bn"), which is the same where that was not trained.
    """

    def __init__(
        self,
        norm: nn.BatchNorm2d,
        mixing: Literal["softmax", "free"] = "softmax",
        affine: Literal["one", "bn"] = "one",
        w_in: float | None = 0.5,
    ) -> None:
        super().__init__()
        self.mixing = mixing
        self.bn = ScoredBatchNorm2d.of(norm)
        weight, bias = self.bn.weight.detach(), self.bn.bias.detach()
        self.weight = nn.Parameter(weight.clone() if affine == "bn" else torch.ones_like(weight))
        self.bias = nn.Parameter(bias.clone() if affine == "bn" else torch.zeros_like(bias))
        self.score = nn.Parameter(torch.ones((), device=weight.device))
        if w_in is None:
            for score in (self.score, self.bn.score):
                nn.init.uniform_(score)
        elif mixing == "free":
            nn.init.constant_(self.score, w_in)
            nn.init.constant_(self.bn.score, 1 - w_in)
        else:
            nn.init.constant_(self.score, 1 + math.log(w_in / (1 - w_in)))

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
        # `data`: a second pass before backward comes here again, changes nothing, and must not count as a change.
        self.gate.data.clamp_(0, 1)


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
        batch = self.batch_side(mean, var, x.shape[2] * x.shape[3])
        of_mean, of_var = self.mix.sigmoid()
        batch_var = batch.std.square()  # both variances with epsilon, which the mixture then has once
        mixed = Statistics(
            mean + of_mean * (batch.mean - mean),
            (var + self.eps + of_var * (batch_var - (var + self.eps))).sqrt(),
        )
        return normalise(x, mixed, self.weight, self.bias)
