"""FedCCRL: images in colours of other clients' images, and views of an image that must agree in features and answers.

Wang, Tang: FedCCRL: Federated Domain Generalization with Cross-Client Representation Learning. 2024.

The method: before a round every client tells the channel means and standard deviations of the pixels of a part of its
images. Each image of a batch gets two views: its colours are mixed with those of a drawn image of another client (as in
MixStyle, by Beta(0.1, 0.1)), then AugMix. The loss is the sum of the cross-entropies of image and views
    + alignment * mean over views of the supervised contrast between image and view
    + agreement * the Jensen-Shannon divergence of the three answers,
by default divided by three, so that a step is as long as by one cross-entropy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.forms import Asked, Form, Forms, UpTo
from unseen.core.types import Batch, ClientId, Server, Tensors, Work
from unseen.method import Method, Range, Traits
from unseen.nets.parts.contrast import supervised_contrast
from unseen.nets.parts.images import aug_mix
from unseen.nets.parts.styles import Style, restyle, style_of


def divergence(answers: Sequence[Tensor]) -> Tensor:
    """Jensen-Shannon: the mean over answers (logits) of KL(answer || mean answer), mean over images."""
    chances = [logits.float().softmax(1) for logits in answers]
    middle = torch.stack(chances).mean(0).clamp_min(1e-7).log()
    return torch.stack([F.kl_div(middle, chance, reduction="batchmean") for chance in chances]).mean()


@dataclass(frozen=True)
class FedCCRL(Method):
    name: ClassVar[str] = "fedccrl"
    year: ClassVar[int] = 2024
    family: ClassVar[str] = "styles"
    passes: ClassVar[float] = 3.0
    traits: ClassVar[Traits] = Traits(
        remark="mean over views, not sum",
        sends="channel means and standard deviations of the pixels of some images, handed on to the other clients",
    )
    ranges: ClassVar[Mapping[str, Range]] = {"alignment": Range(0.01, 1.0), "agreement": Range(0.01, 10.0)}

    fraction: float = 0.1  # r, of a client's images whose colours it tells
    alpha: float = 0.1  # of Beta(alpha, alpha): how much of the own colours stays
    alignment: float = 0.1  # lambda1, weight of the contrast between features
    agreement: float = 0.1  # lambda2, weight of the divergence between answers
    temperature: float = 0.1  # of the contrast
    views: Literal["mean", "sum"] = "mean"  # sum: the published loss; mean: a third of it, for SGD's learning rate

    @property
    def about(self) -> Traits:
        return self.traits if self.views == "mean" else replace(self.traits, remark="")

    def surveys(self, round: int) -> bool:
        return True

    def survey(self, work: Work) -> Tensors:
        images = work.site.train
        rows = torch.randperm(len(images), generator=work.rng)[: max(1, int(len(images) * self.fraction))]
        styles = [style_of(images.batch(part).x) for part in torch.split(rows, 64)]
        return {"colours": torch.cat([torch.stack(style, dim=1) for style in styles])}  # N x 2 x 3

    def forms(self, asked: Asked) -> Forms:
        told = max(1, int(asked.images * self.fraction))
        least = torch.tensor([[-torch.inf], [0.0]])  # standard deviations are not negative
        return Forms(survey={"colours": Form((UpTo(told), 2, 3), least=least)})

    def brief(
        self, server: Server, surveys: Mapping[ClientId, Tensors], chosen: Sequence[ClientId]
    ) -> Mapping[ClientId, Tensors]:
        notes = {}
        for client in chosen:
            others = [surveys[other]["colours"] for other in sorted(surveys) if other != client]
            if others:
                notes[client] = {"colours": torch.cat(others)}
        return notes

    def view(self, work: Work, x: Tensor, own: Style) -> Tensor:
        """Each image with its own colours mixed with a drawn pair of the pool, then AugMix."""
        if "colours" in work.brief:
            pool, dice = work.brief["colours"], np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng)))
            share = torch.tensor(dice.beta(self.alpha, self.alpha, (len(x), 1)), dtype=x.dtype, device=x.device)
            drawn = pool[torch.randint(len(pool), (len(x),), generator=work.rng)].to(x)
            mixed = Style(
                *(share * mine + (1 - share) * other for mine, other in zip(own, drawn.unbind(1), strict=True))
            )
            x = restyle(x, *mixed, own).clamp(0, 1)
        return aug_mix(x, work.rng)

    def loss(self, work: Work, batch: Batch) -> Tensor:
        net, labels = work.net, batch.y
        features, colours = [net.features(batch.x)], style_of(batch.x)
        features += [net.features(self.view(work, batch.x, colours)) for _ in range(2)]
        answers = [net.head(rows) for rows in features]
        task = torch.stack([F.cross_entropy(logits, labels) for logits in answers]).sum()
        twice = torch.cat([labels, labels])
        contrasts = [
            supervised_contrast(torch.cat([view, features[0]]), twice, self.temperature, itself=True)
            for view in features[1:]
        ]
        alignment, agreement = torch.stack(contrasts).mean(), divergence(answers)
        work.note("loss.alignment", alignment)
        work.note("loss.agreement", agreement)
        total = task + self.alignment * alignment + self.agreement * agreement
        if self.views == "mean":
            total = total / len(features)  # all of it: the weights of its terms stay
        return total + work.method.penalty(work, batch, features[0])
