"""How pictures look: colours, brightness and texture in 35 numbers, and how far that is from the looks of known sites.

A net that learnt to ignore styles does not tell a new one from the known ones, so no net is asked: the numbers come from
the pixels. They are the same for every method. `unseen export` puts this file beside an exported model as it is.

numbers of a picture   of brightness, red - green and blue - yellow: mean and spread; and at four scales, each half of the
                       one before, how much neighbours differ down and across. Five quantiles of the brightness. Spreads and
                       differences are logarithms, which makes them nearly normal
look of a site         mean and covariance of these over its images: a Gaussian
distance of a picture  Mahalanobis's to each site; the nearest site counts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]
SCALES = 4
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SOFT = 0.04  # added before a logarithm: differences far below it, as JPEG makes them, are noise
NUMBERS = 3 * 2 + len(QUANTILES) + 3 * SCALES * 2
LARGEST = 5.0  # no number of a picture is larger: the logarithms are from log 0.04 to log 2.04
PAIRS = NUMBERS * (NUMBERS + 1) // 2  # of a covariance, which is symmetric
# Correlations count by a fifth: those of a few hundred images are rough. No spread is below 0.05: a site that has grey
# images only should not take a trace of colour for another world. Chosen by sources alone: benchmarks/look.py.
SHRUNK, LEAST_SPREAD = 0.8, 0.05
FURTHEST = 2 * LARGEST / LEAST_SPREAD * (NUMBERS / SHRUNK) ** 0.5  # no picture is further from a mean


def look_of(images_BCHW: np.ndarray[Any, Any]) -> Numbers:
    """The numbers of pictures in [0, 1], B x 3 x H x W: B x 35."""
    x = np.asarray(images_BCHW, dtype=np.float64)
    red, green, blue = x[:, 0], x[:, 1], x[:, 2]
    bright = (red + green + blue) / 3
    found = list(np.quantile(bright.reshape(len(x), -1), QUANTILES, axis=1))
    for plane in (bright, red - green, blue - (red + green) / 2):
        found += [plane.mean(axis=(1, 2)), np.log(SOFT + plane.std(axis=(1, 2)))]
        for _ in range(SCALES):
            for axis in (1, 2):
                found.append(np.log(SOFT + np.abs(np.diff(plane, axis=axis)).mean(axis=(1, 2))))
            plane = _half(plane)
    return np.stack(found, axis=1)


def _half(plane: Numbers) -> Numbers:
    """Means of two by two pixels; a picture of less than four stays as it is."""
    height, width = plane.shape[1] // 2 * 2, plane.shape[2] // 2 * 2
    if min(height, width) < 4:
        return plane
    even = plane[:, :height, :width]
    rows = even[:, ::2] + even[:, 1::2]
    result: Numbers = (rows[:, :, ::2] + rows[:, :, 1::2]) / 4
    return result


@dataclass(frozen=True)
class Look:
    """How the images of one site look."""

    mean: list[float]
    covariance: list[float]  # its upper triangle, row by row

    def distance(self, looks_BD: Numbers) -> Numbers:
        """Mahalanobis's."""
        away_BD = (looks_BD - np.array(self.mean)) @ self.whitening
        result: Numbers = np.sqrt((away_BD**2).sum(axis=1))
        return result

    @cached_property
    def whitening(self) -> Numbers:
        upper = np.zeros((NUMBERS, NUMBERS))
        upper[np.triu_indices(NUMBERS)] = self.covariance
        return whitening(upper + np.triu(upper, 1).T)


def whitening(covariance_DD: Numbers, shrunk: float = SHRUNK, least: float = LEAST_SPREAD) -> Numbers:
    """What makes numbers of this covariance uncorrelated and of spread 1, from the right."""
    spread = np.sqrt(np.maximum(np.diag(covariance_DD), least**2))
    correlation = (1 - shrunk) * covariance_DD / np.outer(spread, spread)
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    # None is below `shrunk` where the numbers are a covariance; where a client made them up, they do no harm.
    result: Numbers = vectors / np.sqrt(np.maximum(values, shrunk)) / spread[:, None]
    return result


def moments(looks_ND: Numbers) -> tuple[Numbers, Numbers]:
    """Mean, and the upper triangle of the covariance."""
    away_ND = looks_ND - (mean := looks_ND.mean(axis=0))
    return mean, (away_ND.T @ away_ND / len(looks_ND))[np.triu_indices(NUMBERS)]


def nearest(sites: Sequence[Look], looks_BD: Numbers) -> Numbers:
    """The distance of each picture to the site that it is most like."""
    result: Numbers = np.min([site.distance(looks_BD) for site in sites], axis=0)
    return result
