"""Networks of adversarial alignment: a generator of reference features and its discriminator behind a random projection;
a classifier of domains behind a reversed gradient."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Projection = Literal["fixed", "trained", "none"]


def reversed_gradient(features: Tensor, weight: float) -> Tensor:
    """The features; their gradient times -weight."""
    return features.detach() + weight * (features.detach() - features)


def domain_classifier(features: int, hidden: int, domains: int) -> nn.Sequential:
    """Features to logits of domains, by three layers."""
    first, second, last = nn.Linear(features, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, domains)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def label_code(labels: Tensor, classes: int, value: float) -> Tensor:
    """One-hot labels with `value` in the place of the one, B x K; no columns at all for `value` 0."""
    if value == 0:
        return labels.new_zeros((len(labels), 0), dtype=torch.float32)
    return F.one_hot(labels, classes).float() * value


def unit_projection(inputs: int, outputs: int) -> Tensor:
    """A random D1 x D2 matrix R for h R: standard normal entries, each column scaled to length one.

    Hence a projected coordinate has the size of the feature's component along one random direction.
    """
    return F.normalize(torch.randn(inputs, outputs), dim=0)


class RandomProjection(nn.Module):
    """h -> h R with a matrix that is drawn once and never trained: a buffer, no parameter."""

    matrix: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("matrix", unit_projection(inputs, outputs))

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.matrix


class Generator(nn.Module):
    """Noise and label to a feature: two fully connected layers. Features that come out of a ReLU are not negative."""

    def __init__(self, noise: int, labels: int, hidden: int, features: int) -> None:
        super().__init__()
        self.noise = noise
        self.layers = nn.Sequential(
            nn.Linear(noise + labels, hidden), nn.ReLU(), nn.Linear(hidden, features), nn.ReLU()
        )

    def forward(self, z: Tensor, label: Tensor) -> Tensor:
        features: Tensor = self.layers(torch.cat([z, label], dim=1))
        return features


class Discriminator(nn.Module):
    """Feature and label to the probability that the feature was generated, B."""

    def __init__(self, features: int, labels: int, hidden: int, projected: int, projection: Projection) -> None:
        super().__init__()
        self.projection: nn.Module
        if projection == "fixed":
            self.projection = RandomProjection(features, projected)
        elif projection == "trained":
            self.projection = nn.Linear(features, projected, bias=False)
            nn.init.kaiming_uniform_(self.projection.weight)
        else:
            self.projection, projected = nn.Identity(), features
        self.layers = nn.Sequential(nn.Linear(projected + labels, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, h: Tensor, label: Tensor) -> Tensor:
        # The label joins after the projection, which is a map of features.
        logits: Tensor = self.layers(torch.cat([self.projection(h), label], dim=1))
        return torch.sigmoid(logits).squeeze(1)
