"""FedADG: features of all clients are aligned, class by class, to one reference distribution that is learned with them.

Zhang, Lei, Shi, Huang, Chen: Federated Learning with Domain Generalization. arXiv preprint, 2021.

The box: beside the feature extractor F and the classifier C there is a generator G (noise and one-hot label to a
feature), shared like F and C, and a discriminator D behind a random projection, which every client has for itself and
keeps. A client first trains F and C by label-smoothed cross-entropy (E0 epochs). Then (E1 epochs), for each batch: F
and C on lambda_0 * (1 - D(F(x)|y))^2 + lambda_1 * cross-entropy; D to tell F(x) from G(z, y); G on D's opinion of
G(z, y). The server takes the plain mean of F, C and G over clients. At test time only C(F(x)) is left.
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

from unseen.core.types import Batch, Share, Work
from unseen.method import BY_VARIANT, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.adversarial import Discriminator, Generator, Projection, label_code

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
    traits: ClassVar[Traits] = Traits(
        sends="the weights of a generator of features, by class",
        counts_images=False,  # Algorithm 1, step s3: 1 / K
        ignores=frozenset({"loss"}),
        # The published D carries its optimizer with it from round to round, while those of F, C and G are new.
        keeps_optimizers=frozenset({"discriminator"}),
    )
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "follow": {
            "contest": "least-squares", "first": "extractor", "adversarial_weight": 0.15, "class_weight": 0.85,
            "smoothing": 0.1, "one_hot": 1.0, "projection": "fixed", "discriminator_hidden": 0,
        },
        "paper": {
            "contest": "paper", "first": "extractor", "adversarial_weight": 0.85, "class_weight": 0.15,
            "smoothing": 0.1, "one_hot": 1.0, "projection": "fixed", "discriminator_hidden": 0,
        },
        "official": {
            "contest": "least-squares", "first": "discriminator", "adversarial_weight": 0.15, "class_weight": 0.85,
            "smoothing": 0.01, "one_hot": 0.7, "projection": "trained", "discriminator_hidden": 1024,
        },
    }  # fmt: skip

    variant: Literal["follow", "paper", "official"] = "follow"  # sets the eight from contest on: docs/methods/fedadg.md
    warmup: float = 0.3  # share of a round's steps before the adversarial ones: E0 / (E0 + E1) = 3 / 10
    adversarial: bool = True  # off: without G and D (Fig. 5)
    reference: Reference = "generated"  # or a fixed one: N(0, I), U[-1, 1], Laplace(1/sqrt 2) (Table 8)
    contest: Contest = BY_VARIANT  # the losses of D and G
    first: Literal["extractor", "discriminator"] = BY_VARIANT  # who moves first in a step
    adversarial_weight: float = BY_VARIANT  # lambda_0
    class_weight: float = BY_VARIANT  # lambda_1
    smoothing: float = BY_VARIANT  # of the labels in cross-entropy
    one_hot: float = BY_VARIANT  # the one of the one-hot label; 0: without one-hot (Fig. 5)
    projection: Projection = BY_VARIANT  # in front of D; none: without RP (Fig. 5)
    discriminator_hidden: int = BY_VARIANT  # hidden units of D; 0: as many as there are features
    projection_size: int = 0  # d_2; 0: a quarter of the feature size, as 4096 -> 1024 in the authors' code
    noise_size: int = 0  # length of z; 0: half the feature size, as 2048 for 4096 in the authors' code
    generator_lr: float = 0.7  # learning rate of G as a multiple of F's: .007 to .01 in Table 3
    discriminator_lr: float = 0.7  # learning rate of D as a multiple of F's

    @property
    def about(self) -> Traits:
        generates = self.adversarial and self.reference == "generated"
        return self.traits if generates else replace(self.traits, sends="")

    # --- the model -----------------------------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        if not self.adversarial:
            return net
        size = net.feature_size
        labels = net.classes if self.one_hot else 0
        if self.reference == "generated":
            net.extras["generator"] = Generator(self.noise_size or max(size // 2, 1), labels, size, size)
        hidden, projected = self.discriminator_hidden or size, self.projection_size or max(size // 4, 1)
        net.extras["discriminator"] = Discriminator(size, labels, hidden, projected, self.projection)
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
        sides = {"discriminator": self.discriminator_lr}
        if self.reference == "generated":
            sides["generator"] = self.generator_lr
        for side, lr_scale in sides.items():
            parameters = list(work.net.extras[side].parameters())
            work.optimizers[side] = work.optimizer(parameters, lr_scale)
            work.withdraw(parameters)

    def step(self, work: Work, batch: Batch) -> None:
        features = work.net.features(batch.x)
        error = F.cross_entropy(work.net.head(features), batch.y, label_smoothing=self.smoothing)
        penalty = work.method.penalty(work, batch, features)
        work.note("loss", error)
        if not self.adversarial or work.step < self._warmup_steps(work.steps):
            self.descend(work, error + penalty)
            return
        discriminator = work.net.extras["discriminator"]
        label = label_code(batch.y, work.net.classes, self.one_hot)
        reference = self._reference(work, label, features)

        def move_discriminator() -> None:
            # On the features that F and C are trained with: a second pass through F would only cost time.
            opinions = discriminator(features.detach(), label), discriminator(reference.detach(), label)
            loss = discriminator_loss(*opinions, self.contest)
            work.note("loss.discriminator", loss)
            self.descend(work, loss, "discriminator")

        def move_extractor() -> None:
            with frozen(discriminator):
                adversarial = extractor_loss(discriminator(features, label))
                work.note("loss.extractor", adversarial)
                loss = self.adversarial_weight * adversarial + self.class_weight * error + penalty
                self.descend(work, loss)

        moves = [move_extractor, move_discriminator]
        for move in moves if self.first == "extractor" else reversed(moves):
            move()
        if self.reference == "generated":
            with frozen(discriminator):
                loss = generator_loss(discriminator(reference, label), self.contest)
                work.note("loss.generator", loss)
                self.descend(work, loss, "generator")

    def _warmup_steps(self, steps: int) -> int:
        """At least one step of a round is adversarial, however small the round."""
        return min(round(self.warmup * steps), steps - 1)

    def _reference(self, work: Work, label: Tensor, features: Tensor) -> Tensor:
        """Reference features for the batch's labels, generated or of a fixed distribution."""
        if self.reference == "generated":
            generator = cast(Generator, work.net.extras["generator"])
            z = torch.rand(len(features), generator.noise, generator=work.rng).to(features.device)
            generated: Tensor = generator(z, label)
            return generated
        shape = tuple(features.shape)
        if self.reference == "normal":
            drawn = torch.randn(shape, generator=work.rng)
        elif self.reference == "uniform":
            drawn = 2 * torch.rand(shape, generator=work.rng) - 1
        else:
            # The inverse of the distribution function; u is in [-1/2, 1/2), and its lower end would give -infinity.
            u = (torch.rand(shape, generator=work.rng) - 0.5).clamp(min=-0.5 + 1e-7)
            drawn = -u.sign() * torch.log1p(-2 * u.abs()) / math.sqrt(2)
        return drawn.to(features.device)
