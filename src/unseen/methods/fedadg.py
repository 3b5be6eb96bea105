"""FedADG: features of all clients are aligned, class by class, to one reference distribution that is learned with them.

Zhang, Lei, Shi, Huang, Chen: Federated Learning with Domain Generalization. arXiv:2111.10487, 2021.

The method: beside the feature extractor F and the classifier C (two layers) there is a generator G (noise and one-hot label
to a feature), shared like F and C, and a discriminator D behind a random projection, which every client has for itself
and keeps. A client first trains F and C by label-smoothed cross-entropy (E0 epochs). Then (E1 epochs), for each batch: F
and C on lambda_0 * (1 - D(F(x)|y))^2 + lambda_1 * cross-entropy; D to tell F(x) from G(z, y); G on D's opinion of
G(z, y). The server takes the plain mean of F, C and G over clients. At test time only C(F(x)) is left.

The default is not the paper's: by the paper's Eq. 4 G agrees with D, and then nothing draws the reference to the
features. docs/methods/fedadg.md has what differs; `variant=paper` is the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.errors import UserError
from unseen.core.seeding import torch_generator
from unseen.core.types import Batch, Share, Tensors, Work
from unseen.method import ALONE, BY_VARIANT, LINEAR_HEAD, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.adversarial import (
    Activation,
    Classifier,
    Discriminator,
    End,
    Generator,
    Projection,
    label_code,
    two_layer_classifier,
)

Contest = Literal["paper", "least-squares"]
Reference = Literal["generated", "normal", "uniform", "laplace"]


def discriminator_loss(source: Tensor, reference: Tensor, contest: Contest) -> Tensor:
    """What D minimises, from its opinions of source and of reference features; both forms push them to 0 and to 1."""
    if contest == "paper":  # Eq. 2
        return -((1 - source).square().mean() + reference.square().mean())
    return (1 - reference).square().mean() + source.square().mean()


def extractor_loss(source: Tensor) -> Tensor:
    """Eq. 3: F wants its features to be taken for reference features."""
    return (1 - source).square().mean()


def generator_loss(reference: Tensor, contest: Contest) -> Tensor:
    """Eq. 4 has G agree with D; only with the opposite sign does the reference move towards the source features."""
    return (1 - reference).square().mean() if contest == "paper" else reference.square().mean()


def length(features: Tensor) -> Tensor:
    """The features' root mean squared length, a constant for the gradient."""
    return features.detach().square().sum(1).mean().sqrt().clamp_min(1e-6)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Gradients pass through the module, but none are made for its parameters."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


@dataclass(frozen=True)
class FedADG(Method):
    name: ClassVar[str] = "fedadg"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "features"
    traits: ClassVar[Traits] = Traits(
        sends="the weights of a generator of features, by class",
        counts_images=False,  # Algorithm 1, step s3: 1 / K
        ignores=frozenset({"loss"}),
        # The published D carries its optimizer with it from round to round, while those of F, C and G are new.
        keeps_optimizers=frozenset({"discriminator"}),
        head="two layers",
        without=frozenset({LINEAR_HEAD, ALONE}),
        remark="alignment ours",
    )
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "follow": {
            "contest": "least-squares", "first": "extractor", "second_pass": False,
            "adversarial_weight": 0.15, "class_weight": 0.85, "smoothing": 0.1,
            "one_hot": 1.0, "equal_lengths": True, "projection": "none", "discriminator_hidden": 0,
            "activation": "leaky", "generator_end": "linear", "classifier": "relu",
            "side_optimizer": "adam", "generator_lr": 0.003, "discriminator_lr": 0.003,
        },
        "paper": {
            "contest": "paper", "first": "extractor", "second_pass": True,
            "adversarial_weight": 0.85, "class_weight": 0.15, "smoothing": 0.1,
            "one_hot": 1.0, "equal_lengths": False, "projection": "fixed", "discriminator_hidden": 0,
            "activation": "relu", "generator_end": "relu", "classifier": "relu",
            "side_optimizer": "plan", "generator_lr": 0.0007, "discriminator_lr": 0.0007,
        },
        "official": {
            "contest": "least-squares", "first": "discriminator", "second_pass": True,
            "adversarial_weight": 0.15, "class_weight": 0.85, "smoothing": 0.01,
            "one_hot": 0.7, "equal_lengths": False, "projection": "trained", "discriminator_hidden": 1024,
            "activation": "leaky", "generator_end": "relu", "classifier": "official",
            "side_optimizer": "plan", "generator_lr": 0.007, "discriminator_lr": 0.007,
        },
    }  # fmt: skip

    variant: Literal["follow", "paper", "official"] = "follow"  # sets all from contest on: docs/methods/fedadg.md
    warmup: float = 0.3  # E0, before the adversarial steps: below 1 a share of the round's steps, else whole epochs
    adversarial: bool = True  # off: without G and D (Fig. 5)
    reference: Reference = "generated"  # or a fixed one: N(0, I), U[-1, 1], Laplace(1/sqrt 2) (Table 8)
    projection_size: int = 0  # d_2; 0: a quarter of the feature size, as 4096 -> 1024 in the authors' code
    noise_size: int = 0  # length of z; 0: half the feature size, as 2048 for 4096 in the authors' code
    contest: Contest = BY_VARIANT  # the losses of D and G
    first: Literal["extractor", "discriminator"] = BY_VARIANT  # who moves first in a step
    second_pass: bool = BY_VARIANT  # D learns from a pass of its own through F; off: from that of F and C
    adversarial_weight: float = BY_VARIANT  # lambda_0
    class_weight: float = BY_VARIANT  # lambda_1
    smoothing: float = BY_VARIANT  # of the labels in cross-entropy
    one_hot: float = BY_VARIANT  # the one of the one-hot label; 0: without one-hot (Fig. 5)
    equal_lengths: bool = BY_VARIANT  # scales what enters G and D: a label is as long as the noise and the feature
    projection: Projection = BY_VARIANT  # in front of D; none: without RP (Fig. 5)
    discriminator_hidden: int = BY_VARIANT  # hidden units of D; 0: as many as there are features
    activation: Activation = BY_VARIANT  # in G and D; leaky: a slope of 0.01 below zero
    generator_end: End = BY_VARIANT  # what G's features come out of: a ReLU or the linear layer itself
    classifier: Classifier = BY_VARIANT  # C's two layers: a ReLU between them, or official: none and He's start
    side_optimizer: Literal["plan", "adam"] = BY_VARIANT  # of G and D: the plan's, or Adam with betas 0.5 and 0.999
    generator_lr: float = BY_VARIANT  # learning rate of G at the start, which the plan's schedule lowers (Table 3)
    discriminator_lr: float = BY_VARIANT  # learning rate of D, likewise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup < 0 or (self.warmup >= 1 and self.warmup != int(self.warmup)):
            raise UserError(
                f"fedadg: warmup is {self.warmup:g}; give a share of the round's steps below 1, or whole epochs."
            )

    @property
    def about(self) -> Traits:
        if not self.adversarial:
            return replace(self.traits, sends="", remark="")
        ours = self.equal_lengths or self.side_optimizer == "adam"
        remark = self.traits.remark if ours else "as the authors' code" if self.contest == "least-squares" else ""
        return replace(self.traits, sends=self.traits.sends if self.reference == "generated" else "", remark=remark)

    # --- the model -----------------------------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        size = net.feature_size
        net.head = two_layer_classifier(size, net.classes, self.classifier)
        if not self.adversarial:
            return net
        labels = net.classes if self.one_hot else 0
        if self.reference == "generated":
            noise = self.noise_size or max(size // 2, 1)
            net.extras["generator"] = Generator(noise, labels, size, self.activation, self.generator_end)
        hidden, projected = self.discriminator_hidden or size, self.projection_size or max(size // 4, 1)
        net.extras["discriminator"] = Discriminator(size, labels, hidden, projected, self.projection, self.activation)
        return net

    def share(self, net: Net) -> Share:
        if not self.adversarial:
            return net.share_all()
        own = frozenset(f"extras.discriminator.{key}" for key in net.extras["discriminator"].state_dict())
        return net.share_all().private(own)

    # --- on the client -------------------------------------------------------------------------------------------
    def prepare(self, work: Work) -> None:
        if not self.adversarial:
            return
        plan = work.plan
        if self.warmup >= 1 and (plan.local_steps is not None or self.warmup >= (plan.local_epochs or 1)):
            raise UserError(
                f"fedadg: {self.warmup:g} epochs of warm-up leave none for the adversarial steps; "
                f"give --local-epochs {self.warmup + 7:g}, or a warmup below 1, which is a share of the round's steps."
            )
        sides = {"discriminator": self.discriminator_lr}
        if self.reference == "generated":
            sides["generator"] = self.generator_lr
        for side, lr in sides.items():
            parameters = list(work.net.extras[side].parameters())
            scale = lr / plan.optimizer.lr  # these rates are absolute; of the plan they take the schedule
            if self.side_optimizer == "adam":
                work.optimizers[side] = torch.optim.Adam(parameters, lr=scale * work.lr, betas=(0.5, 0.999))
            else:
                work.optimizers[side] = work.optimizer(parameters, scale)
            work.withdraw(parameters)

    def step(self, work: Work, batch: Batch) -> None:
        features = work.net.features(batch.x)
        error = F.cross_entropy(work.net.head(features), batch.y, label_smoothing=self.smoothing)
        penalty = work.method.penalty(work, batch, features)
        work.note("loss", error)
        if not self.adversarial or self._warms_up(work):
            self.descend(work, error + penalty)
            return
        discriminator = work.net.extras["discriminator"]
        label = label_code(batch.y, work.net.classes, self.one_hot)
        reference = self.draw_reference(work.net, label, work.rng)
        unit = length(features) if self.equal_lengths else 1.0

        def opinion(h: Tensor) -> Tensor:
            said: Tensor = discriminator(h / unit, label)
            return said

        def move_discriminator() -> None:
            seen = self._second_pass(work.net, batch) if self.second_pass else features.detach()
            loss = discriminator_loss(opinion(seen), opinion(reference.detach()), self.contest)
            work.note("loss.discriminator", loss)
            self.descend(work, loss, "discriminator")

        def move_extractor() -> None:
            with frozen(discriminator):
                adversarial = extractor_loss(opinion(features))
                work.note("loss.extractor", adversarial)
                loss = self.adversarial_weight * adversarial + self.class_weight * error + penalty
                self.descend(work, loss)

        moves = [move_extractor, move_discriminator]
        for move in moves if self.first == "extractor" else reversed(moves):
            move()
        if self.reference == "generated":
            with frozen(discriminator):
                loss = generator_loss(opinion(reference), self.contest)
                work.note("loss.generator", loss)
                self.descend(work, loss, "generator")

    def _warms_up(self, work: Work) -> bool:
        """In the first phase of the round. At least one step of a round is adversarial, however small the round."""
        if self.warmup >= 1:
            return work.epoch < self.warmup
        return work.step < min(round(self.warmup * work.steps), work.steps - 1)

    def _second_pass(self, net: Net, batch: Batch) -> Tensor:
        """Features by F as it is now, in eval mode as in the authors' code: no dropout, and BatchNorm stays as it is."""
        net.eval()
        with torch.no_grad():
            features = net.features(batch.x)
        net.train()
        return features

    def draw_reference(self, net: Net, label: Tensor, rng: torch.Generator) -> Tensor:
        """Reference features for some labels, generated or of a fixed distribution."""
        if self.reference == "generated":
            generator = cast(Generator, net.extras["generator"])
            z = torch.rand(len(label), generator.noise, generator=rng).to(label.device)
            if self.equal_lengths:  # noise of variance 1 about 0 has the mean squared length generator.noise
                z, label = math.sqrt(12) * (z - 0.5), math.sqrt(generator.noise) * label
            generated: Tensor = generator(z, label)
            return generated
        shape = len(label), net.feature_size
        if self.reference == "normal":
            drawn = torch.randn(shape, generator=rng)
        elif self.reference == "uniform":
            drawn = 2 * torch.rand(shape, generator=rng) - 1
        else:
            # The inverse of the distribution function; u is in [-1/2, 1/2), and its lower end would give -infinity.
            u = (torch.rand(shape, generator=rng) - 0.5).clamp(min=-0.5 + 1e-7)
            drawn = -u.sign() * torch.log1p(-2 * u.abs()) / math.sqrt(2)
        return drawn.to(label.device)

    # --- for pictures --------------------------------------------------------------------------------------------
    def inspect(self, net: Net, x: Tensor) -> Tensors:
        """As many points of the reference as there are images, the classes in turn (the asterisks of Figs. 3 and 4).

        Also the class of each point, where the reference knows classes. The images themselves are not looked at.
        """
        if not self.adversarial:
            return {}
        classes = torch.arange(len(x), device=x.device) % net.classes
        label = label_code(classes, net.classes, self.one_hot)
        points = self.draw_reference(net, label, torch_generator(0, purpose="fedadg reference"))
        knows_classes = self.reference == "generated" and self.one_hot != 0
        return {"reference": points} | ({"reference.class": classes} if knows_classes else {})
