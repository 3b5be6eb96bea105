"""Deep CORAL and MMD: the features of all domains should have the same distribution.

Sun, Saenko: Deep CORAL: Correlation Alignment for Deep Domain Adaptation. ECCV workshops 2016. Li, Pan, Wang, Kot: Domain
Generalization with Adversarial Feature Learning (MMD-AAE). CVPR 2018.

The method: for each pair of domains in a batch a distance of their features is added to the loss; the mean over pairs counts.
CORAL: ||C - C'||_F^2 / (4 d^2), with the covariances C of d features. MMD: the squared distance of the means under
Gaussian kernels of several widths. That needs several domains in one place: clients with several of them, or a
centralized run. A client that holds one domain trains as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from unseen.core.types import Batch, Work
from unseen.method import Method, Range, Traits

WIDTHS = tuple(3.0**k for k in range(-3, 2))  # of the Gaussian kernels, in mean squared distances


def correlation_distance(one: Tensor, two: Tensor) -> Tensor:
    """CORAL: how much the covariances differ."""

    def covariance(rows: Tensor) -> Tensor:
        centred = rows - rows.mean(0)
        return centred.T @ centred / (len(rows) - 1)

    return (covariance(one) - covariance(two)).square().sum() / (4 * one.shape[1] ** 2)


def kernel_distance(one: Tensor, two: Tensor) -> Tensor:
    """MMD: the squared distance of the two means in the kernels' space; all pairs count, each row with itself too."""
    rows = torch.cat([one, two])
    squared = (rows[:, None] - rows[None]).square().sum(2)
    width = squared.detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-squared / (2 * alpha * width)) for alpha in WIDTHS]).mean(0)
    first = len(one)
    return kernel[:first, :first].mean() + kernel[first:, first:].mean() - 2 * kernel[:first, first:].mean()


@dataclass(frozen=True)
class Alignment(Method):
    """What the two share: a distance over all pairs of domains of a batch."""

    weight: float = 1.0  # of the distance between domains

    def distance(self, one: Tensor, two: Tensor) -> Tensor:
        """Between the features of two domains."""
        raise NotImplementedError

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        domains = [features[batch.domain == domain].float() for domain in batch.domain.unique()]  # type: ignore[no-untyped-call]
        pairs = list(combinations([rows for rows in domains if len(rows) > 1], 2))
        if not pairs:
            return features.new_zeros(())
        term = torch.stack([self.distance(one, two) for one, two in pairs]).mean()
        work.note("loss.alignment", term)
        return self.weight * term


@dataclass(frozen=True)
class CORAL(Alignment):
    """CORAL: the features of all domains should have the same covariances."""

    name: ClassVar[str] = "coral"
    year: ClassVar[int] = 2016
    family: ClassVar[str] = "features"
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.1, 1000.0)}

    def distance(self, one: Tensor, two: Tensor) -> Tensor:
        return correlation_distance(one, two)


@dataclass(frozen=True)
class MMD(Alignment):
    """MMD: the features of all domains should have the same distribution, as Gaussian kernels see it."""

    name: ClassVar[str] = "mmd"
    year: ClassVar[int] = 2018
    family: ClassVar[str] = "features"
    traits: ClassVar[Traits] = Traits(remark="MMD term alone, no autoencoder")
    ranges: ClassVar[Mapping[str, Range]] = {"weight": Range(0.1, 10.0)}

    def distance(self, one: Tensor, two: Tensor) -> Tensor:
        return kernel_distance(one, two)
