"""FedFD and FedFD-A: features diversified with global statistics; adapters that interpolate statistics at test time.

Yang, Choi, Park, Choi, Chang, Yun: Feature Diversification and Adaptation for Federated Domain Generalization.
ECCV 2024.

The box: clients keep their BatchNorm statistics (SiloBN) and have the averaged ones, mu_G and sigma_G, from the model
they received. Every batch runs twice: normally, giving f, and with u * instance + (1 - u) * global statistics at every
BatchNorm2d, u drawn anew per layer and channel, giving f'. Minimised is
(1 - lambda1) CE(f) + lambda1 CE(f') + lambda2 |f - f'|^2.
FedFD-A adds one small adapter per norm. It sees how far an image's statistics are from the global ones and says delta
and epsilon; alpha = clamp(z * delta + epsilon, 0, 1) is the weight of the image's own statistics. After each step of
the network the adapters take one of their own, on cross-entropy, with z ~ N(0, 1) and the network fixed. At test time
z = 0: one pass, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.errors import UserError
from unseen.core.types import Batch, Share, Tensors, Work
from unseen.method import BY_VARIANT, Method, Traits
from unseen.nets.net import Net
from unseen.nets.norms.layers import StatNorm2d, make_pluggable
from unseen.nets.norms.moments import Statistics, pooled_moments
from unseen.nets.norms.rules import Interpolated, RandomAlpha, References, reference_statistics, ruled, twin

ADAPTERS = "adapters"  # the name of the adapters among the net's extras


@dataclass(frozen=True)
class WithGlobalStatistics(Method):
    """What FedFD and the adapters have in common: norms that follow rules, and the sharing they stand on."""

    # All of the state: mu_G and sigma_G, also where clients keep statistics of their own.
    traits: ClassVar[Traits] = Traits(needs_full_state=True, norms="norms that follow rules")

    base: Literal["silobn", "fedavg"] = "silobn"  # what is shared; silobn: clients keep BatchNorm statistics (Table 1)

    def build(self, net: Net) -> Net:
        net = make_pluggable(net)
        if not net.norms(StatNorm2d):
            raise UserError(f'"{self.name}" needs BatchNorm2d layers and {net.backbone_name} has none: use resnet18.')
        return net

    def share(self, net: Net) -> Share:
        everything = net.share_all()
        return everything.keeping(net.running_statistics()) if self.base == "silobn" else everything


def global_statistics(work: Work) -> References:
    """mu_G and sigma_G of every norm, from the received model; computed once per order."""
    if "global statistics" not in work.scratch:
        work.scratch["global statistics"] = reference_statistics(work.net, work.received)
    return cast(References, work.scratch["global statistics"])


# --- diversification -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FedFD(WithGlobalStatistics):
    name: ClassVar[str] = "fedfd"
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "small": {"lambda2": 4.0, "reduce": "mean"},
        "paper": {"lambda2": 4.0, "reduce": "sum"},
    }

    variant: Literal["small", "paper"] = "small"  # sets lambda2 and reduce; small: for small images
    lambda1: float = 0.1  # weight of the classification loss on diversified features, CACL (Fig. 4)
    lambda2: float = BY_VARIANT  # weight of the distance between the features, CAFL (Fig. 5)
    reduce: Literal["sum", "mean"] = BY_VARIANT  # over the dimensions of that squared distance
    u: tuple[float, float] = (0.0, 1.0)  # range of the local statistics' weight (Table 9); equal ends fix it (Table 2)
    u_per: Literal["channel", "image", "both", "number"] = "channel"  # what has its own u; number: one for the layer
    local: Literal["instance", "batch"] = "instance"  # whose statistics are mixed with the global ones
    detach_statistics: bool = False  # no gradient through the local statistics of the diversified pass
    detach_features: bool = False  # CAFL pulls f' to f, and not f to f'

    def distance(self, own: Tensor, diversified: Tensor) -> Tensor:
        """lambda2 * CAFL (Eq. 3)."""
        squares = (diversified - (own.detach() if self.detach_features else own)).square()
        return self.lambda2 * (squares.sum(dim=1).mean() if self.reduce == "sum" else squares.mean())

    def loss(self, work: Work, batch: Batch) -> Tensor:
        with twin(work.net, Diversified(self, work)):
            own, diversified = work.net.features(batch.x).chunk(2)
        ce = F.cross_entropy(work.net.head(own), batch.y)
        cacl = F.cross_entropy(work.net.head(diversified), batch.y)
        cafl = self.distance(own, diversified)
        for name, value in {"ce": ce, "cacl": cacl, "lambda2 * cafl": cafl}.items():
            work.note(name, value)
        total = (1 - self.lambda1) * ce + self.lambda1 * cacl + cafl  # Eq. 5
        return total + work.method.penalty(work, batch, own)


class Diversified(RandomAlpha):
    """u * local + (1 - u) * global statistics (Eq. 2)."""

    def __init__(self, method: FedFD, work: Work) -> None:
        super().__init__(work.rng, method.u_per, *method.u, references=global_statistics(work))
        self.by_batch = method.local == "batch"
        self.detached = method.detach_statistics

    def statistics(self, norm: StatNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        if self.by_batch:
            mean, var = pooled_moments(mean_BC, var_BC)
            mean_BC, var_BC = mean.expand_as(mean_BC), var.expand_as(var_BC)
        if self.detached:
            mean_BC, var_BC = mean_BC.detach(), var_BC.detach()
        return super().statistics(norm, mean_BC, var_BC, pixels)


# --- adaptation ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Adapter(WithGlobalStatistics):
    """The instance feature adapter alone, on SiloBN (Table 3, c1). `fedfd+adapter` is `fedfd-a`."""

    name: ClassVar[str] = "adapter"

    reduction: int = 16  # hidden units of an adapter: channels / reduction, at least 4
    adapter_lr: float = 1.0  # the adapters' learning rate, as a multiple of the plan's
    epsilon_start: float | None = None  # bias of epsilon at the start; None: torch's default, near 0
    straight_through: bool = False  # let the gradient pass the clamp of alpha

    def build(self, net: Net) -> Net:
        net = WithGlobalStatistics.build(self, net)
        adapters = [StatisticsAdapter(norm.num_features, self.reduction) for norm in net.norms(StatNorm2d)]
        if self.epsilon_start is not None:
            for adapter in adapters:
                nn.init.constant_(adapter.says.bias[1:], self.epsilon_start)
        net.extras[ADAPTERS] = nn.ModuleList(adapters)
        return net

    def prepare(self, work: Work) -> None:
        own = list(work.net.extras[ADAPTERS].parameters())
        work.withdraw(own)
        work.optimizers["adapter"] = work.optimizer(own, lr_scale=self.adapter_lr)

    def step(self, work: Work, batch: Batch) -> None:
        Method.step(self, work, batch)  # the network's, on whatever the loss is
        net = work.net
        rule = Adapted(net, global_statistics(work), work.rng, self.straight_through)
        with only_trainable(net, net.extras[ADAPTERS]), untracked(net), ruled(net, rule):
            loss = F.cross_entropy(net(batch.x), batch.y)
        work.note("adapter loss", loss)
        self.descend(work, loss, "adapter")

    def predict(self, net: Net, x: Tensor) -> Tensor:
        with ruled(net, Adapted(net)):
            logits: Tensor = net(x)
        return logits

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        return {"alpha": torch.stack(alphas(net, x), dim=1)}


class StatisticsAdapter(nn.Module):
    """Linear, ReLU, Linear: how far an image's statistics are from the global ones -> delta and epsilon."""

    def __init__(self, channels: int, reduction: int, smallest: int = 4) -> None:
        super().__init__()
        # `smallest`: a hidden layer of one or two ReLUs is often dead for every image. A ResNet's are never that small.
        hidden = max(channels // reduction, smallest)
        self.hears = nn.Linear(2 * channels, hidden)
        self.says = nn.Linear(hidden, 2)

    def forward(self, differences: Tensor) -> Tensor:
        said: Tensor = self.says(self.hears(differences).relu())
        return said


class Adapted(Interpolated):
    """The adapters' alpha (Eqs. 6 and 7): with a generator z ~ N(0, 1) by image and layer, without one z = 0."""

    def __init__(
        self,
        net: Net,
        references: References | None = None,
        generator: torch.Generator | None = None,
        straight_through: bool = False,
    ) -> None:
        super().__init__(references)
        self.adapters = dict(zip(net.norms(StatNorm2d), net.extras[ADAPTERS].children(), strict=True))
        self.generator = generator
        self.straight_through = straight_through
        self.seen: list[Tensor] = []  # alpha by image, of every norm that ran

    def alpha(self, norm: StatNorm2d, instance: Statistics, reference: Statistics) -> Tensor:
        differences = torch.cat([instance.mean - reference.mean, instance.std - reference.std], dim=1)
        delta, epsilon = self.adapters[norm](differences).chunk(2, dim=1)
        raw = epsilon
        if self.generator is not None:
            raw = torch.randn(epsilon.shape, generator=self.generator).to(epsilon.device) * delta + epsilon
        alpha = raw.clamp(0, 1)
        if self.straight_through:
            alpha = raw + (alpha - raw).detach()
        self.seen.append(alpha.detach()[:, 0])
        return cast(Tensor, alpha)


@torch.no_grad()
def alphas(net: Net, x: Tensor) -> list[Tensor]:
    """The weight of each image's own statistics at every norm, as in prediction (Fig. 6): one B-vector per norm."""
    was_training = net.training
    net.eval()
    rule = Adapted(net)
    with ruled(net, rule):
        net.maps(x)
    net.train(was_training)
    return rule.seen


@contextmanager
def only_trainable(net: nn.Module, part: nn.Module) -> Iterator[None]:
    """Passes inside ask for gradients of `part` only: nothing is kept or computed for other weights."""
    chosen = {id(parameter) for parameter in part.parameters()}
    others = [p for p in net.parameters() if p.requires_grad and id(p) not in chosen]
    try:
        for parameter in others:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


@contextmanager
def untracked(net: nn.Module) -> Iterator[None]:
    """BatchNorms (the neck's) in train mode use the batch's statistics inside, and do not remember them."""
    tracking = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    try:
        for module in tracking:
            module.track_running_stats = False
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


@dataclass(frozen=True)
class FedFDA(Adapter, FedFD):
    """Both: the network on diversified features, the adapters in turn with it."""

    name: ClassVar[str] = "fedfd-a"

    def loss(self, work: Work, batch: Batch) -> Tensor:
        return FedFD.loss(self, work, batch)

    def step(self, work: Work, batch: Batch) -> None:
        Adapter.step(self, work, batch)
