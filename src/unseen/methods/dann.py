"""DANN: features from which a second network cannot tell the domain.

Ganin, Ustinova, Ajakan, Germain, Larochelle, Laviolette, Marchand, Lempitsky: Domain-Adversarial Training of Neural
Networks. JMLR 2016.

The method: a discriminator reads the features and learns by cross-entropy which domain an image is from; the gradient that
it sends back into the features is reversed and multiplied by lambda, which grows from 0 to `weight` during training.
That needs several domains in one place: clients with several of them, or a centralized run. A client that holds one
domain trains as in FedAvg and leaves the discriminator, shared like all weights, as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.types import Batch, Work
from unseen.method import ALONE, Method, Range, Traits
from unseen.nets.net import Net
from unseen.nets.parts.adversarial import domain_classifier, reversed_gradient


@dataclass(frozen=True)
class DANN(Method):
    name: ClassVar[str] = "dann"
    year: ClassVar[int] = 2016
    family: ClassVar[str] = "features"
    traits: ClassVar[Traits] = Traits(without=frozenset({ALONE}))
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.01, 1.0)}

    weight: float = 1.0  # lambda, of the reversed gradient
    ramp: bool = True  # lambda grows as 2 / (1 + e^(-10 p)) - 1 with the part p of training that is done
    hidden: int = 256  # width of the discriminator
    domains: int = 6  # domains that the discriminator tells apart: at least those of the dataset, target included

    def build(self, net: Net) -> Net:
        net.extras["domains"] = domain_classifier(net.feature_size, self.hidden, self.domains)
        return net

    def prepare(self, work: Work) -> None:
        held = work.site.train.domains.unique()  # type: ignore[no-untyped-call]
        if int(held.max()) >= self.domains:
            raise UserError(f"dann: this dataset has more than {self.domains} domains; set domains to their number.")
        work.scratch["several"] = len(held) > 1

    def strength(self, work: Work) -> float:
        """lambda at this step."""
        done = (work.round - 1 + work.step / max(work.steps, 1)) / work.plan.rounds
        return self.weight * (2 / (1 + math.exp(-10 * done)) - 1 if self.ramp else 1.0)

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        # With one domain there is nothing to tell apart: to name it would only mislead those that it is averaged with.
        if not work.scratch["several"]:
            return features.new_zeros(())
        logits = work.net.extras["domains"](reversed_gradient(features, self.strength(work)))
        term = F.cross_entropy(logits, batch.domain)
        work.note("loss.domains", term)
        return term
