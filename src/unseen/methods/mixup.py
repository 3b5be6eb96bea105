"""mixup: a model trained on mixtures of two images answers with the mixture of their labels.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR 2018.

The method: each batch draws lambda from Beta(alpha, alpha) and a partner for each image, another of the batch. The net sees
lambda * x + (1 - lambda) * x', and its loss is lambda * CE(y) + (1 - lambda) * CE(y'). In a federation each client mixes
within its own batches; the rest is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.types import Batch, Work
from unseen.method import Method, Range


@dataclass(frozen=True)
class Mixup(Method):
    name: ClassVar[str] = "mixup"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "augmentation"
    ranges: ClassVar[Mapping[str, Range]] = {"alpha": Range(0.05, 2.0)}

    alpha: float = 0.2  # of Beta(alpha, alpha): small values keep most of one of the two images; the paper: 0.1 to 0.4

    def loss(self, work: Work, batch: Batch) -> Tensor:
        dice = np.random.default_rng(int(torch.randint(2**62, (), generator=work.rng)))
        share = float(dice.beta(self.alpha, self.alpha))
        partner = torch.randperm(len(batch), generator=work.rng).to(batch.x.device)
        mixed = replace(batch, x=share * batch.x + (1 - share) * batch.x[partner])
        features = work.net.features(mixed.x)
        logits = work.net.head(features)
        loss = share * F.cross_entropy(logits, batch.y) + (1 - share) * F.cross_entropy(logits, batch.y[partner])
        return loss + work.method.penalty(work, mixed, features)
