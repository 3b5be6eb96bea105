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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.types import Batch, Share, Work
from unseen.method import Method
from unseen.nets.net import Net
from unseen.nets.parts.adversarial import Discriminator, Generator, Projection, label_code

Contest = Literal["paper", "least-squares"]
Reference = Literal["generated", "normal", "uniform", "laplace"]


@dataclass(frozen=True)
class Recipe:
    """What the variants differ in."""

    contest: Contest  # the losses of D and G
    first: Literal["extractor", "discriminator"]  # who moves first in a step
    adversarial_weight: float
    class_weight: float
    smoothing: float
    one_hot: float
    projection: Projection
    discriminator_hidden: int | None  # None: as large as the features


RECIPES: dict[str, Recipe] = {
    "paper": Recipe("paper", "extractor", 0.85, 0.15, 0.1, 1.0, "fixed", None),
    "official": Recipe("least-squares", "discriminator", 0.15, 0.85, 0.01, 0.7, "trained", 1024),
    "follow": Recipe("least-squares", "extractor", 0.15, 0.85, 0.1, 1.0, "fixed", None),
}


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
    sends: ClassVar[str] = "the weights of a generator of features, by class"
    counts_images: ClassVar[bool] = False  # Algorithm 1, step s3: 1 / K
    ignores: ClassVar[frozenset[str]] = frozenset({"loss"})
    # The published D carries its optimizer with it from round to round, while those of F, C and G are new.
    keeps_optimizers: ClassVar[frozenset[str]] = frozenset({"discriminator"})

    variant: Literal["follow", "paper", "official"] = "follow"  # losses, order, weights: docs/methods/fedadg.md
    warmup: float = 0.3  # share of a round's steps before the adversarial ones: E0 / (E0 + E1) = 3 / 10
    adversarial: bool = True  # off: without G and D (Fig. 5)
    reference: Reference = "generated"  # or a fixed one: N(0, I), U[-1, 1], Laplace(1/sqrt 2) (Table 8)
    adversarial_weight: float | None = None  # lambda_0; None: the variant's
    class_weight: float | None = None  # lambda_1; None: the variant's
    smoothing: float | None = None  # of the labels in cross-entropy; None: the variant's
    one_hot: float | None = None  # the one of the one-hot label; 0: without one-hot (Fig. 5); None: the variant's
    projection: Literal["variant", "fixed", "trained", "none"] = "variant"  # in front of D; none: without RP (Fig. 5)
    projection_size: int = 0  # d_2; 0: a quarter of the feature size, as 4096 -> 1024 in the authors' code
    noise_size: int = 0  # length of z; 0: half the feature size, as 2048 for 4096 in the authors' code
    generator_lr: float = 0.7  # learning rate of G as a multiple of F's: .007 to .01 in Table 3
    discriminator_lr: float = 0.7  # learning rate of D as a multiple of F's

    @property
    def sending(self) -> str:
        return self.sends if self.adversarial and self.reference == "generated" else ""

    @property
    def recipe(self) -> Recipe:
        """The variant with what the fields say otherwise."""
        base = RECIPES[self.variant]

        def either(own: float | None, usual: float) -> float:
            return usual if own is None else own

        return Recipe(
            contest=base.contest,
            first=base.first,
            adversarial_weight=either(self.adversarial_weight, base.adversarial_weight),
            class_weight=either(self.class_weight, base.class_weight),
            smoothing=either(self.smoothing, base.smoothing),
            one_hot=either(self.one_hot, base.one_hot),
            projection=base.projection if self.projection == "variant" else self.projection,
            discriminator_hidden=base.discriminator_hidden,
        )

    # --- the model -----------------------------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        if not self.adversarial:
            return net
        recipe, size = self.recipe, net.feature_size
        labels = net.classes if recipe.one_hot else 0
        if self.reference == "generated":
            net.extras["generator"] = Generator(self.noise_size or max(size // 2, 1), labels, size, size)
        hidden, projected = recipe.discriminator_hidden or size, self.projection_size or max(size // 4, 1)
        net.extras["discriminator"] = Discriminator(size, labels, hidden, projected, recipe.projection)
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
        recipe = self.recipe
        features = work.net.features(batch.x)
        error = F.cross_entropy(work.net.head(features), batch.y, label_smoothing=recipe.smoothing)
        penalty = work.method.penalty(work, batch, features)
        work.note("loss", error)
        if not self.adversarial or work.step < self._warmup_steps(work.steps):
            self.descend(work, error + penalty)
            return
        discriminator = work.net.extras["discriminator"]
        label = label_code(batch.y, work.net.classes, recipe.one_hot)
        reference = self._reference(work, label, features)

        def move_discriminator() -> None:
            # On the features that F and C are trained with: a second pass through F would only cost time.
            opinions = discriminator(features.detach(), label), discriminator(reference.detach(), label)
            loss = discriminator_loss(*opinions, recipe.contest)
            work.note("loss.discriminator", loss)
            self.descend(work, loss, "discriminator")

        def move_extractor() -> None:
            with frozen(discriminator):
                adversarial = extractor_loss(discriminator(features, label))
                work.note("loss.extractor", adversarial)
                loss = recipe.adversarial_weight * adversarial + recipe.class_weight * error + penalty
                self.descend(work, loss)

        moves = [move_extractor, move_discriminator]
        for move in moves if recipe.first == "extractor" else reversed(moves):
            move()
        if self.reference == "generated":
            with frozen(discriminator):
                loss = generator_loss(discriminator(reference, label), recipe.contest)
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
