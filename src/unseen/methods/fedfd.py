"""FedFD and FedFD-A: features diversified with global statistics; adapters that interpolate statistics at test time.

Yang, Choi, Park, Choi, Chang, Yun: Feature Diversification and Adaptation for Federated Domain Generalization.
ECCV 2024.

The method: clients keep their BatchNorm statistics (SiloBN) and have the averaged ones, mu_G and sigma_G, from the model
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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.errors import UserError
from unseen.core.forms import Asked, Forms
from unseen.core.types import Batch, Share, Tensors, Work
from unseen.method import ALL_LOADED, BATCH_NORM, BY_VARIANT, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.norms.layers import MomentNorm2d, StatNorm2d, make_pluggable
from unseen.nets.norms.moments import Statistics, pooled_moments
from unseen.nets.norms.rules import References, Rule, reference_statistics, ruled
from unseen.nets.parts.branches import Branches
from unseen.nets.parts.styles import MixStyle
from unseen.nets.surgery import insert_after

ADAPTERS = "adapters"  # the name of the adapters among the net's extras


@dataclass(frozen=True)
class WithGlobalStatistics(Method):
    """What FedFD and the adapters have in common: norms that follow rules, and the sharing they stand on."""

    # All of the state: mu_G and sigma_G, also where clients keep statistics of their own.
    traits: ClassVar[Traits] = Traits(needs_full_state=True, needs=frozenset({BATCH_NORM}))

    base: Literal["silobn", "fedavg"] = "silobn"  # what is shared; silobn: clients keep BatchNorm statistics (Table 1)

    @property
    def about(self) -> Traits:
        kept = {ALL_LOADED} if self.base == "silobn" else set()
        return replace(self.traits, without=frozenset(kept))

    def build(self, net: Net) -> Net:
        net = make_pluggable(net)
        if not net.norms(MomentNorm2d):
            raise UserError(f'"{self.name}" needs BatchNorm2d layers and {net.backbone_name} has none: use resnet18.')
        return net

    def share(self, net: Net) -> Share:
        everything = net.share_all()
        return everything.keeping(net.running_statistics()) if self.base == "silobn" else everything


def global_statistics(work: Work) -> References:
    """mu_G and sigma_G of every norm, from the received model; computed once per order."""
    if "global statistics" not in work.scratch:
        averaged = {**side_by_side(work), **work.received}
        work.scratch["global statistics"] = reference_statistics(work.net, averaged)
    return cast(References, work.scratch["global statistics"])


def side_by_side(work: Work) -> Tensors:
    """Norms that the server does not average but hands around (DSON's): their mean. The net's own before there are any."""
    state: Tensors = {}
    for name, module in work.net.named_modules():
        if isinstance(module, Branches):
            rows, taken = work.received[f"{name}.rows"], work.received[f"{name}.taken"].bool()
            if bool(taken.any()):
                state |= module.entries(rows[taken].mean(dim=0))
            else:
                state |= {key: value for key, value in work.net.state_dict().items() if key in module.keys}
    return state


# --- diversification -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FedFD(WithGlobalStatistics):
    """FedFD: features diversified with global statistics must agree with the ordinary ones."""

    name: ClassVar[str] = "fedfd"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "normalisation"
    passes: ClassVar[float] = 2.0
    traits: ClassVar[Traits] = replace(WithGlobalStatistics.traits, remark="mean, not sum, small maps by batch")
    ranges: ClassVar[Mapping[str, Range]] = {"lambda1": Range(0.05, 0.5), "lambda2": Range(0.5, 8.0)}
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "mean": {"reduce": "mean", "smallest_map": 49},
        "paper": {"reduce": "sum", "smallest_map": 1},
    }

    variant: Literal["mean", "paper"] = "mean"  # sets reduce and smallest_map; paper: Eqs. 2 and 3 to the letter
    lambda1: float = 0.1  # weight of the classification loss on diversified features, CACL (Fig. 4)
    lambda2: float = 4.0  # weight of the distance between the features, CAFL (Fig. 5)
    reduce: Literal["mean", "sum"] = BY_VARIANT  # over the dimensions of that squared distance
    u: tuple[float, float] = (0.0, 1.0)  # range of the local statistics' weight (Table 9); equal ends fix it (Table 2)
    u_per: Literal["channel", "image", "both", "number"] = "channel"  # what has its own u; number: one for the layer
    local: Literal["instance", "batch"] = "instance"  # whose statistics are mixed with the global ones
    smallest_map: int = BY_VARIANT  # ours: maps of fewer pixels are mixed by the batch's; 49 = 7 x 7: none at 224 px
    second: Literal["statistics", "mixstyle"] = "statistics"  # what diversifies: Eq. 2, or MixStyle instead (Table 3 b)
    detach_statistics: bool = False  # no gradient through the local statistics of the diversified pass
    detach_features: bool = False  # CAFL pulls f' to f, and not f to f'

    @property
    def about(self) -> Traits:
        ours = {"mean, not sum": self.reduce == "mean", "small maps by batch": self.smallest_map > 1}
        return replace(super().about, remark=", ".join(remark for remark, holds in ours.items() if holds))

    def build(self, net: Net) -> Net:
        net = super().build(net)
        return insert_after(net, (0, 1), SecondPassMixStyle) if self.second == "mixstyle" else net

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net = work.net
        own = net.features(batch.x)
        with untracked(net), self.diversified(work):
            diversified = net.features(batch.x)
        ce = F.cross_entropy(net.head(own), batch.y)  # Eq. 1
        cacl = F.cross_entropy(net.head(diversified), batch.y)  # Eq. 4
        cafl = self.distance(own, diversified)  # Eq. 3
        for name, value in {"ce": ce, "cacl": cacl, "lambda2 * cafl": self.lambda2 * cafl}.items():
            work.note(name, value)
        total = (1 - self.lambda1) * ce + self.lambda1 * cacl + self.lambda2 * cafl  # Eq. 5
        return total + work.method.penalty(work, batch, own)

    def distance(self, own: Tensor, diversified: Tensor) -> Tensor:
        """CAFL."""
        squares = (diversified - (own.detach() if self.detach_features else own)).square()
        return squares.sum(dim=1).mean() if self.reduce == "sum" else squares.mean()

    def diversified(self, work: Work) -> AbstractContextManager[None]:
        """Inside, passes are diversified."""
        if self.second == "mixstyle":
            return styles_mixed(work.net)
        return ruled(work.net, Diversified(self, work))


class Diversified(Rule):
    """mu_Delta = u * mu_k + (1 - u) * mu_G and sigma_Delta = u * sigma_k + (1 - u) * sigma_G (Eq. 2)."""

    def __init__(self, method: FedFD, work: Work) -> None:
        self.method, self.references, self.rng = method, global_statistics(work), work.rng

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        method = self.method
        u = self.weight(*mean_BC.shape).to(mean_BC.device)
        if method.local == "batch" or pixels < method.smallest_map:
            mean_BC, var_BC = pooled_moments(mean_BC, var_BC)
        if method.detach_statistics:
            mean_BC, var_BC = mean_BC.detach(), var_BC.detach()
        mu_k, sigma_k = mean_BC, norm.std(var_BC)
        mu_G, sigma_G = self.references[norm]
        return Statistics(u * mu_k + (1 - u) * mu_G, u * sigma_k + (1 - u) * sigma_G)

    def weight(self, images: int, channels: int) -> Tensor:
        """u, drawn anew at every layer and call. On the CPU: the same on every device."""
        shapes = {"channel": (1, channels), "image": (images, 1), "both": (images, channels), "number": (1, 1)}
        low, high = self.method.u
        return low + (high - low) * torch.rand(shapes[self.method.u_per], generator=self.rng)


class SecondPassMixStyle(MixStyle):
    """MixStyle that acts inside `styles_mixed` only."""

    on = False

    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps) if self.on else maps


@contextmanager
def styles_mixed(net: Net) -> Iterator[None]:
    modules = net.norms(SecondPassMixStyle)
    try:
        for module in modules:
            module.on = True
        yield
    finally:
        for module in modules:
            module.on = False


@contextmanager
def untracked(net: nn.Module) -> Iterator[None]:
    """BatchNorms in train mode use the batch's statistics inside (the neck's do), and do not remember them."""
    tracking = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    try:
        for module in tracking:
            module.track_running_stats = False
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


# --- adaptation ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Adapter(WithGlobalStatistics):
    """The adapter alone: statistics interpolated per image at test time (Table 3, c1). `fedfd+adapter` is `fedfd-a`."""

    name: ClassVar[str] = "adapter"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "normalisation"
    passes: ClassVar[float] = 1.67  # the second without gradients of weights
    ranges: ClassVar[Mapping[str, Range]] = {"adapter_lr": Range(0.03, 1.0)}
    traits: ClassVar[Traits] = Traits(needs_full_state=True, norms="norms with adapters")

    reduction: int = 16  # hidden units of an adapter: channels / reduction, at least 4
    adapter_lr: float = 1.0  # the adapters' learning rate, as a multiple of the plan's
    alpha_start: float | None = 0.1  # ours: alpha before training; none: torch's random start, half cut to 0 or 1
    straight_through: bool = False  # let the gradient pass the clamp of alpha

    def build(self, net: Net) -> Net:
        net = super().build(net)
        net.extras[ADAPTERS] = Adapters(
            StatisticsAdapter(norm.num_features, self.reduction, self.alpha_start) for norm in net.norms(StatNorm2d)
        )
        return net

    def prepare(self, work: Work) -> None:
        adapters = adapters_of(work.net)
        adapters.received = work.received
        own = list(adapters.parameters())
        work.withdraw(own)
        work.optimizers["adapter"] = work.optimizer(own, lr_scale=self.adapter_lr)

    def step(self, work: Work, batch: Batch) -> None:
        Method.step(self, work, batch)  # the network's, on whatever the loss is
        net = work.net
        rule = Adapted(net, work.rng, self.straight_through)
        with only_trainable(net, adapters_of(net)), by_averaged_statistics(net, work.received), ruled(net, rule):
            loss = F.cross_entropy(net(batch.x), batch.y)
        work.note("adapter loss", loss)
        self.descend(work, loss, "adapter")

    def report(self, work: Work) -> Tensors:
        adapters_of(work.net).received = None
        return {}

    def forms(self, asked: Asked) -> Forms:
        return Forms()  # `report` only keeps something

    def predict(self, net: Net, x: Tensor) -> Tensor:
        with by_averaged_statistics(net, adapters_of(net).received), ruled(net, Adapted(net)):
            logits: Tensor = net(x)
        return logits

    def inspect(self, net: Net, x: Tensor) -> Tensors:
        return {"alpha": torch.stack(alphas(net, x), dim=1)}


class StatisticsAdapter(nn.Module):
    """Linear, ReLU, Linear: how far an image's statistics are from the global ones -> delta and epsilon."""

    def __init__(self, channels: int, reduction: int, alpha_start: float | None = None, smallest: int = 4) -> None:
        super().__init__()
        # `smallest`: a hidden layer of one or two ReLUs is often dead for every image. A ResNet's are never that small.
        hidden = max(channels // reduction, smallest)
        self.hears = nn.Linear(2 * channels, hidden)
        self.says = nn.Linear(hidden, 2)
        if alpha_start is not None:
            # epsilon, the second that is said, starts as the same number for every image.
            nn.init.zeros_(self.says.weight[1:])
            nn.init.constant_(self.says.bias[1:], alpha_start)

    def forward(self, differences: Tensor) -> Tensor:
        said: Tensor = self.says(self.hears(differences).relu())
        return said


class Adapters(nn.ModuleList):
    """One adapter per norm, in the norms' order."""

    # Has mu_G and sigma_G, while a client trains, whose running statistics may be its own; None: those are the net's.
    received: Mapping[str, Tensor] | None = None


def adapters_of(net: Net) -> Adapters:
    adapters = net.extras[ADAPTERS]
    assert isinstance(adapters, Adapters)
    return adapters


class Adapted(Rule):
    """mu* = alpha * mu_i + (1 - alpha) * mu_G and sigma* = alpha * sigma_i + (1 - alpha) * sigma_G (Eq. 6).

    alpha is the adapter's, one number per image and layer (Eq. 7): with a generator z ~ N(0, 1), without one z = 0.
    """

    def __init__(self, net: Net, generator: torch.Generator | None = None, straight_through: bool = False) -> None:
        self.adapters: dict[nn.Module, nn.Module] = dict(zip(net.norms(StatNorm2d), adapters_of(net), strict=True))
        self.generator = generator
        self.straight_through = straight_through
        self.seen: list[Tensor] = []  # alpha by image, of every norm that ran

    def statistics(self, norm: MomentNorm2d, mean_BC: Tensor, var_BC: Tensor, pixels: int) -> Statistics:
        mu_i, sigma_i = mean_BC, norm.std(var_BC)
        mu_G, sigma_G = norm.running()
        delta, epsilon = self.adapters[norm](torch.cat([mu_i - mu_G, sigma_i - sigma_G], dim=1)).chunk(2, dim=1)
        z = 0.0 if self.generator is None else torch.randn(delta.shape, generator=self.generator).to(delta.device)
        raw = z * delta + epsilon
        alpha = raw.clamp(0, 1)
        if self.straight_through:
            alpha = raw + (alpha - raw).detach()
        self.seen.append(alpha.detach()[:, 0])
        return Statistics(alpha * mu_i + (1 - alpha) * mu_G, alpha * sigma_i + (1 - alpha) * sigma_G)


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
def by_averaged_statistics(net: nn.Module, received: Mapping[str, Tensor] | None) -> Iterator[None]:
    """The norms have the running statistics of a received state, mu_G and sigma_G; of none, their own, which are those.

    So the neck's BatchNorm, which has no rule, normalises as in prediction: a batch's own statistics would hide what
    alpha shifts, and a client's own (SiloBN) are not those of the model that predicts.
    """
    norms = [(name, module) for name, module in net.named_modules() if isinstance(module, _BatchNorm)]
    before = [(module.training, module.running_mean, module.running_var) for _, module in norms]
    try:
        for name, module in norms:
            module.training = False  # and not train(False): an activation hangs below some norms
            if received is not None:
                module.running_mean = received[f"{name}.running_mean"].to(module.weight.device)
                module.running_var = received[f"{name}.running_var"].to(module.weight.device)
        yield
    finally:
        for (_, module), (training, mean, var) in zip(norms, before, strict=True):
            module.training, module.running_mean, module.running_var = training, mean, var


@dataclass(frozen=True)
class FedFDA(Adapter, FedFD):
    """FedFD-A: both, the network on diversified features and the adapters in turn with it."""

    name: ClassVar[str] = "fedfd-a"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "normalisation"
    passes: ClassVar[float] = 2.67  # the third without gradients of weights
    ranges: ClassVar[Mapping[str, Range]] = FedFD.ranges
    traits: ClassVar[Traits] = replace(Adapter.traits, remark="mean, not sum, small maps by batch")

    def loss(self, work: Work, batch: Batch) -> Tensor:
        return FedFD.loss(self, work, batch)

    def step(self, work: Work, batch: Batch) -> None:
        Adapter.step(self, work, batch)
