"""Networks of adversarial alignment: a generator of reference features, its discriminator behind a random projection and
a classifier of two layers; a classifier of domains behind a reversed gradient."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Projection = Literal["fixed", "trained", "none"]
Activation = Literal["relu", "leaky"]
End = Literal["relu", "linear"]
Classifier = Literal["relu", "official"]


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


def activation(kind: Activation) -> nn.Module:
    """A ReLU, or one with a slope of 0.01 below zero, whose units cannot die."""
    return nn.ReLU() if kind == "relu" else nn.LeakyReLU()


def two_layer_classifier(features: int, classes: int, kind: Classifier) -> nn.Sequential:
    """Features to logits by a layer as wide as the features and an output layer.

    "relu" has a ReLU between them; "official" has nothing between them, and He's initial weights.
    """
    hidden, output = nn.Linear(features, features), nn.Linear(features, classes)
    if kind == "relu":
        return nn.Sequential(hidden, nn.ReLU(), output)
    for layer in (hidden, output):
        nn.init.kaiming_normal_(layer.weight)
    return nn.Sequential(hidden, output)


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
    """Noise and label to a feature: two fully connected layers, each as wide as a feature.

    The authors' ends with a ReLU, as their F does; `end` "linear" has none, and no unit that can die. The initial weights
    are the authors'.
    """

    def __init__(self, noise: int, labels: int, features: int, between: Activation, end: End) -> None:
        super().__init__()
        self.noise = noise
        first, second = nn.Linear(noise + labels, features), nn.Linear(features, features)
        for layer in (first, second):
            nn.init.xavier_uniform_(layer.weight, gain=0.5)
        self.layers = nn.Sequential(first, activation(between), second, nn.ReLU() if end == "relu" else nn.Identity())

    def forward(self, z: Tensor, label: Tensor) -> Tensor:
        features: Tensor = self.layers(torch.cat([z, label], dim=1))
        return features


class Discriminator(nn.Module):
    """Feature and label to the probability that the feature was generated, B. The initial weights are the authors'."""

    def __init__(
        self, features: int, labels: int, hidden: int, projected: int, projection: Projection, between: Activation
    ) -> None:
        super().__init__()
        self.projection: nn.Module
        if projection == "fixed":
            self.projection = RandomProjection(features, projected)
        elif projection == "trained":
            self.projection = nn.Linear(features, projected, bias=False)
        else:
            self.projection, projected = nn.Identity(), features
        self.layers = nn.Sequential(nn.Linear(projected + labels, hidden), activation(between), nn.Linear(hidden, 1))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_uniform_(module.weight)

    def forward(self, h: Tensor, label: Tensor) -> Tensor:
        # The label joins after the projection, which is a map of features.
        logits: Tensor = self.layers(torch.cat([self.projection(h), label], dim=1))
        return torch.sigmoid(logits).squeeze(1)
