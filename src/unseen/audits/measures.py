"""How well an attack did: curves, intervals, and which of some candidates a guess is nearest to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor

from unseen.audits.findings import Picture, Score

Z = 1.959963984540054  # of a two-sided interval of 95 %


def proportion(successes: int, trials: int, chance: float | None = None, scale: float = 1.0) -> Score:
    """A share with Clopper and Pearson's exact interval (1934), times `scale` (100 for "of 100").

    Exact, because trials are few: by Wilson's interval a single hit in 16 would already be above a chance of 1 %.
    """
    if trials == 0:
        return Score(math.nan, 0.0, scale, chance)
    low = float(stats.beta.ppf(0.025, successes, trials - successes + 1)) if successes else 0.0
    high = float(stats.beta.ppf(0.975, successes + 1, trials - successes)) if successes < trials else 1.0
    return Score(scale * successes / trials, scale * low, scale * high, chance)


def of_100(successes: int, trials: int, candidates: float = 100) -> Score:
    """Guesses that were right, of 100; chance is one of the candidates."""
    return proportion(successes, trials, 100.0 / candidates, 100.0)


def candidates_of_a_class(labels: Tensor, victims: Sequence[Tensor]) -> float:
    """Among how many candidates one guesses who knows the victims' labels and nothing else.

    In a batch (of labels `victims[n]`) any of its images of the class is right, so that larger batches leave fewer.
    """
    shares = [
        min(1.0, float((batch == label).sum()) / float((labels == label).sum())) for batch in victims for label in batch
    ]
    return len(shares) / sum(shares)


def mean(values: ArrayLike, chance: float | None = None, least: float = -math.inf, most: float = math.inf) -> Score:
    """A mean with Student's interval, which ends at what is possible."""
    numbers = np.asarray(values, dtype=float)
    middle = float(numbers.mean())
    if len(numbers) < 2:
        return Score(middle, middle, middle, chance)
    reach = float(stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / math.sqrt(len(numbers)))
    return Score(middle, max(least, middle - reach), min(most, middle + reach), chance)


def auc(members: ArrayLike, others: ArrayLike) -> Score:
    """How often a member has a higher score than another image, ties counted half; Hanley and McNeil's interval."""
    one, two = np.asarray(members, dtype=float), np.asarray(others, dtype=float)
    ranks = stats.rankdata(np.concatenate([one, two]))
    area = float((ranks[: len(one)].sum() - len(one) * (len(one) + 1) / 2) / (len(one) * len(two)))
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (len(one) - 1) * (q1 - area**2) + (len(two) - 1) * (q2 - area**2)
    reach = Z * math.sqrt(max(spread, 0.0) / (len(one) * len(two)))
    return Score(area, max(0.0, area - reach), min(1.0, area + reach), 0.5)


def found_at(members: ArrayLike, others: ArrayLike, rate: float = 0.01) -> Score:
    """Members above the threshold that at most `rate` of the other images pass: true positives at so many false ones."""
    one, two = np.asarray(members, dtype=float), np.sort(np.asarray(others, dtype=float))[::-1]
    threshold = two[min(int(rate * len(two)), len(two) - 1)]
    return proportion(int((one > threshold).sum()), len(one), rate)


def psnr(one: Tensor, two: Tensor) -> float:
    """Peak signal to noise ratio in dB of images in [0, 1]; at most 100."""
    error = float((one.double() - two.double()).square().mean())
    return min(100.0, -10 * math.log10(max(error, 1e-10)))


def likeness(guesses: Tensor, candidates: Tensor) -> Tensor:
    """Correlation of each guess with each candidate, over all their numbers."""
    flat = [rows.flatten(1).double() - rows.flatten(1).double().mean(1, keepdim=True) for rows in (guesses, candidates)]
    one, two = (rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12) for rows in flat)
    correlations: Tensor = one @ two.T
    return correlations


def nearest(guesses: Tensor, candidates: Tensor) -> Tensor:
    """The candidate that each row is nearest to, after each column was scaled by its spread over the candidates."""
    spread = candidates.double().std(0).clamp_min(1e-9)
    distances: Tensor = torch.cdist(guesses.double() / spread, candidates.double() / spread)
    return distances.argmin(1)


def side_by_side(originals: Tensor, reconstructions: Tensor) -> Picture:
    """One picture: originals above, reconstructions below, a white line between them."""
    rows = [torch.cat(list(images.detach().clamp(0, 1)), dim=2) for images in (originals, reconstructions)]
    line = torch.ones(3, 2, rows[0].shape[2])
    whole = torch.cat([rows[0].float(), line, rows[1].float()], dim=1)
    pixels: NDArray[np.uint8] = (255 * whole).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return pixels
