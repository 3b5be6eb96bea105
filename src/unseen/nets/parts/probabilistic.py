"""Features that are distributions: a head that reads means and deviations, and a Gaussian per class beside them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.core.seeding import torch_generator

SMALLEST = 1e-6  # added to deviations: softplus of a very negative number is 0, and its logarithm -infinity


def gaussian(features: Tensor) -> tuple[Tensor, Tensor]:
    """B x 2D features as means and deviations, each B x D."""
    mean, raw = features.chunk(2, dim=1)
    return mean, F.softplus(raw) + SMALLEST


def draw(mean: Tensor, deviation: Tensor) -> Tensor:
    """One reparameterised sample per row, from torch's default generator on the CPU."""
    return mean + deviation * torch.randn(mean.shape).to(mean.device)


def kl_divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """KL(N(mean, deviation^2) || N(other)) of diagonal Gaussians, one number per row."""
    ratio = (deviation.square() + (mean - other_mean).square()) / (2 * other_deviation.square())
    return (other_deviation.log() - deviation.log() + ratio - 0.5).sum(dim=1)


def joined(count: Tensor, mean: Tensor, covariance: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and (biased) covariance of the images so far and of new ones, N x D, together."""
    new = len(rows)
    total = count + new
    step = rows.mean(dim=0) - mean
    centred = rows - rows.mean(dim=0)
    spread = (count * covariance + centred.T @ centred) / total + count * new / total**2 * torch.outer(step, step)
    return total, mean + step * new / total, spread


class GaussianHead(nn.Module):
    """Logits of a feature that is a Gaussian: of one sample in training; at test time of the mean over the same samples
    for every image, so that a prediction depends on its image alone."""

    noise: Tensor

    def __init__(self, size: int, classes: int, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.classify = nn.Linear(size, classes)
        fixed = torch.randn(samples, 1, size, generator=torch_generator(0, purpose="samples of a Gaussian head"))
        self.register_buffer("noise", fixed, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        mean, deviation = gaussian(features)
        if self.training:
            return self.logits(draw(mean, deviation))
        if self.samples == 0:
            return self.logits(mean)
        chances = self.logits(mean + deviation * self.noise).log_softmax(dim=-1)
        return chances.logsumexp(dim=0) - math.log(self.samples)

    def logits(self, z: Tensor) -> Tensor:
        logits: Tensor = self.classify(z)
        return logits


class ClassGaussians(nn.Module):
    """A trainable Gaussian per class, and a trainable scale on what is compared with it."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, size))
        self.raw_deviation = nn.Parameter(torch.ones(classes, size))
        self.scale = nn.Parameter(torch.ones(()))

    def divergence(self, mean: Tensor, deviation: Tensor, labels: Tensor) -> Tensor:
        """KL of the scaled features from their class's Gaussian, one number per row."""
        scale = self.scale.abs() + SMALLEST
        other = F.softplus(self.raw_deviation)[labels] + SMALLEST
        return kl_divergence(self.scale * mean, scale * deviation, self.mean[labels], other)
