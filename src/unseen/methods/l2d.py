"""L2D: a second network makes images in styles that the data has not, and is trained to make them ever more different.

Wang, Luo, Qiu, Huang, Baktashmotlagh: Learning to Diversify for Single Domain Generalization. ICCV 2021.

The method: features are Gaussians; z is a sample. The style-complement network makes of each image a second one (mixed
with the first, .6 to .4). The task network minimises cross-entropy of both + supervised contrast of their z + the
negative log-likelihood of the second's z under the first's Gaussian. Then the style network minimises MMD of the two z
within classes + `beta` * CLUB, an upper bound of their mutual information: the same meaning, another look. It stays on
the client. A prediction is by the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Share, Work
from unseen.method import ALONE, Method, Traits
from unseen.nets.net import Net
from unseen.nets.parts.complement import (
    GaussianNeck,
    MeanHead,
    StyleComplement,
    class_discrepancy,
    club,
    log_likelihood,
    supervised_contrast,
)


@dataclass(frozen=True)
class L2D(Method):
    name: ClassVar[str] = "l2d"
    year: ClassVar[int] = 2021
    family: ClassVar[str] = "augmentation"
    passes: ClassVar[float] = 3.33  # over a batch and its copies, once without gradients of weights
    traits: ClassVar[Traits] = Traits(head="one on means", without=frozenset({ALONE}))

    contrast: float = 1.0  # weight of the supervised contrast (alpha 1 of the code)
    likelihood: float = 1.0  # weight of the negative log-likelihood (alpha 2)
    beta: float = 0.1  # weight of CLUB beside MMD
    style_lr: float = 0.005  # learning rate of the style network, plain SGD; the authors' script
    mix: float = 0.6  # share of the new image in what the network sees
    temperature: float = 0.07  # of the supervised contrast
    size: int = 512  # of z
    spread: float = 0.2  # factor on the deviation of a sample of z

    def build(self, net: Net) -> Net:
        net.neck = GaussianNeck(net.neck, net.feature_size, self.size)
        net.feature_size = 2 * self.size
        net.head = MeanHead(self.size, net.classes)
        net.extras["complement"] = StyleComplement(net.image_size)
        return net

    def share(self, net: Net) -> Share:
        own = net.extras["complement"].state_dict()
        return net.share_all().private(frozenset(f"extras.complement.{key}" for key in own))

    def prepare(self, work: Work) -> None:
        styles = list(work.net.extras["complement"].parameters())
        work.withdraw(styles)
        work.optimizers["complement"] = torch.optim.SGD(styles, lr=self.style_lr)

    def loss(self, work: Work, batch: Batch) -> Tensor:
        complement = cast(StyleComplement, work.net.extras["complement"])
        with torch.no_grad():
            new = complement.diversify(self._normalised(work, batch.x), work.rng)
        features, z, both = self._look(work, batch, new)
        (_, own), (mean, _), (log_variance, _) = (self._halves(t) for t in (z, *features.chunk(2, dim=1)))
        loss: Tensor = F.cross_entropy(work.net.head(z), both.y)
        loss = loss + self.contrast * supervised_contrast(z, both.y, self.temperature)
        loss = loss - self.likelihood * log_likelihood(mean, log_variance, own)
        return loss + work.method.penalty(work, both, features)

    def step(self, work: Work, batch: Batch) -> None:
        super().step(work, batch)
        loss = self.style_loss(work, batch)
        work.note("loss.complement", loss)
        optimizer = work.optimizers["complement"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=list(work.net.extras["complement"].parameters()))  # type: ignore[no-untyped-call]
        optimizer.step()

    def style_loss(self, work: Work, batch: Batch) -> Tensor:
        """What the style network lowers: what the two z have in common, but not at the price of the class."""
        complement = cast(StyleComplement, work.net.extras["complement"])
        new = complement.estimate(self._normalised(work, batch.x), work.rng)
        features, z, _ = self._look(work, batch, new)
        (source, other), (mean, _), (log_variance, _) = (self._halves(t) for t in (z, *features.chunk(2, dim=1)))
        shuffled = torch.randperm(len(batch), generator=work.rng).to(z.device)
        return class_discrepancy(source, other, batch.y) + self.beta * club(mean, log_variance, other, shuffled)

    def _normalised(self, work: Work, x: Tensor) -> Tensor:
        return (x - work.net.pixel_mean) / work.net.pixel_std

    def _look(self, work: Work, batch: Batch, new: Tensor) -> tuple[Tensor, Tensor, Batch]:
        """Gaussian features and samples of the images and, below them, of the new ones; and the doubled batch."""
        x = torch.cat([batch.x, self.mix * new + (1 - self.mix) * batch.x])
        both = Batch(x, batch.y.repeat(2), batch.domain.repeat(2))
        features = work.net.features(x)
        mean, log_variance = features.chunk(2, dim=1)
        drawn = torch.randn(mean.shape, generator=work.rng).to(mean.device)
        return features, mean + self.spread * (log_variance / 2).exp() * drawn, both

    @staticmethod
    def _halves(rows: Tensor) -> tuple[Tensor, Tensor]:
        first, second = rows.chunk(2)
        return first, second
