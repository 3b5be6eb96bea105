"""What calibrates a model, without an image leaving its client: a few sums and counts, in one exchange.

Each client measures the selected model on its validation images and tells (8.6 kB, whatever the number of images):

loss             sums of the cross-entropy at 31 temperatures: the server takes the temperature of the least total
gap              by temperature and bin of confidence, the sum of right - confidence: the calibration error at each
true_odds        a histogram of the log-odds of the true class: the pooled quantile of conformal prediction sets
largest_logit    its points at 1 % to 99 %: from which value on an image is like those of training in its content
look_mean        of 35 numbers of colour, brightness and texture (`unseen.core.look`), over training images
look_covariance  of the same
look_distance    of its validation images to that, points at 1 % to 99 %: from which on one is unlike in its look

The temperature is the exact minimum over the grid, as if all images lay in one place. A histogram of fixed bins was taken
for the sets, and not a quantile per client: pooled counts give the pooled quantile to a bin's width, rounded to the safe
side, at any coverage that is asked for later. A mean of the clients' quantiles is no quantile.

A client with fewer than 30 training or 10 validation images tells nothing of its look: a mean over so few would show them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.calibration import (
    AS_TRAINED,
    LEVELS,
    LOWEST,
    ODDS_BINS,
    TEMPERATURES,
    WIDTH,
    Calibration,
)
from unseen.core.look import FURTHEST, LARGEST, NUMBERS, PAIRS, Look, Numbers, look_of, moments
from unseen.core.metrics import BINS
from unseen.core.types import ClientId, ImageSet, Site, Tensors

SENT = "sums of validation losses, counts of validation scores, mean and spread of colour and texture"  # for the ledger
SHAPES = {
    "loss": (torch.float64, (len(TEMPERATURES),)),
    "gap": (torch.float64, (len(TEMPERATURES), BINS)),
    "true_odds": (torch.int64, (ODDS_BINS,)),
    "largest_logit": (torch.float64, (LEVELS,)),
}
OF_LOOKS = {  # all or none of them
    "look_mean": (torch.float32, (NUMBERS,)),
    "look_covariance": (torch.float32, (PAIRS,)),
    "look_distance": (torch.float32, (LEVELS,)),
}
MOST_LOOKED_AT = 2000  # training images, spread over all: more do not change a mean
FEWEST_TRAINING, FEWEST_VALIDATION = 30, 10
BATCH = 64


class Tally:
    """A client's sums and counts, batch by batch."""

    def __init__(self) -> None:
        self._loss = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
        self._gap = torch.zeros(len(TEMPERATURES), BINS, dtype=torch.float64)
        self._odds = torch.zeros(ODDS_BINS, dtype=torch.int64)
        self._largest: list[Tensor] = []
        self._sound = True  # no NaN or infinity so far

    def add(self, logits_BK: Tensor, labels_B: Tensor) -> None:
        logits_BK = logits_BK.double()
        self._largest.append(logits_BK.max(1).values)
        self._sound &= bool(torch.isfinite(logits_BK).all())
        if not self._sound:
            return
        right_B = (logits_BK.argmax(1) == labels_B).double()
        for place, temperature in enumerate(TEMPERATURES):
            log_p_BK = (logits_BK / temperature).log_softmax(1)
            self._loss[place] += F.nll_loss(log_p_BK, labels_B, reduction="sum")
            confidence_B = log_p_BK.max(1).values.exp()
            bin_B = (confidence_B * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
            self._gap[place].index_add_(0, bin_B, right_B - confidence_B)
        own_B1 = labels_B[:, None]
        others = logits_BK.scatter(1, own_B1, -torch.inf).logsumexp(1)
        odds_B = logits_BK.gather(1, own_B1)[:, 0] - others
        bin_B = ((odds_B - LOWEST) / WIDTH).floor().clamp(0, ODDS_BINS - 1).long()
        self._odds += torch.bincount(bin_B, minlength=ODDS_BINS)

    def numbers(self) -> Tensors:
        """What leaves the client; nothing where it has no validation images, or the model gives no numbers."""
        if not self._largest or not self._sound:
            return {}
        return {
            "loss": self._loss,
            "gap": self._gap,
            "true_odds": self._odds,
            "largest_logit": _points(torch.cat(self._largest)),
        }


def look_of_site(site: Site) -> Tensors:
    """How a client's images look. Nothing where it has too few to speak of without showing them."""
    if len(site.train) < FEWEST_TRAINING or len(site.validation) < FEWEST_VALIDATION:
        return {}
    mean, covariance = (values.astype(np.float32) for values in moments(_looks(site.train, MOST_LOOKED_AT)))
    own = Look(mean.tolist(), covariance.tolist()).distance(_looks(site.validation, MOST_LOOKED_AT))
    return {
        "look_mean": torch.from_numpy(mean),
        "look_covariance": torch.from_numpy(covariance),
        "look_distance": _points(torch.from_numpy(own)).float(),
    }


def _looks(images: ImageSet, most: int) -> Numbers:
    rows = torch.linspace(0, len(images) - 1, min(len(images), most)).round().long()
    return np.concatenate([look_of(images.batch(part).x.numpy()) for part in torch.split(rows, BATCH)])


def _points(values: Tensor) -> Tensor:
    """At 1 % to 99 %, linear between neighbours. By hand: torch.quantile refuses more than 16 million values."""
    ordered = values.sort().values
    place = torch.arange(1, LEVELS + 1, dtype=torch.float64) / (LEVELS + 1) * (len(ordered) - 1)
    below = place.floor().long()
    above = (below + 1).clamp(max=len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def faults(sent: Mapping[str, Tensor]) -> str:
    """Why a client's numbers cannot be used; empty when they can. NaN and infinity are looked for with every report."""
    if not sent:
        return ""
    wanted = SHAPES | OF_LOOKS if OF_LOOKS.keys() & sent.keys() else SHAPES
    if set(sent) != set(wanted):
        return f"its calibration has {', '.join(sorted(sent))}, not {', '.join(wanted)}"
    for name, (dtype, shape) in wanted.items():
        if sent[name].dtype != dtype or tuple(sent[name].shape) != shape:
            return f'"{name}" of its calibration is {sent[name].dtype} of shape {tuple(sent[name].shape)}'
    images = int(sent["true_odds"].sum())
    if bool((sent["true_odds"] < 0).any()) or images < 1:
        return "its calibration counts no images"
    if bool((sent["loss"] < 0).any()) or float(sent["gap"].abs().sum(1).max()) > images * (1 + 1e-9):
        return "the sums of its calibration do not fit its number of images"
    for name in ("largest_logit", "look_distance"):
        if name in sent and bool((sent[name].diff() < 0).any()):
            return f'the points "{name}" of its calibration do not rise'
    return _look_fault(sent) if "look_mean" in sent else ""


def _look_fault(sent: Mapping[str, Tensor]) -> str:
    """The numbers of a picture have bounds, so their means and covariances have them too."""
    if bool((sent["look_mean"].abs() > LARGEST).any()) or bool((sent["look_covariance"].abs() > LARGEST**2).any()):
        return "the look of its images has larger numbers than pictures can have"
    if not (float(sent["look_distance"][0]) >= 0 and float(sent["look_distance"][-1]) <= FURTHEST):
        return "its images are further from their look than pictures can be"
    return ""


def pooled(sent: Mapping[ClientId, Tensors], model: str = "") -> Calibration | None:
    """One calibration from all clients' numbers, in the clients' order; None where nobody sent any."""
    known = [each for each in sent.values() if each]
    if not known:
        return None
    loss, gap = sum(each["loss"] for each in known), sum(each["gap"] for each in known)
    odds = torch.stack([each["true_odds"] for each in known]).sum(0)
    assert isinstance(loss, Tensor) and isinstance(gap, Tensor)
    images, best = int(odds.sum()), int(loss.argmin())
    looking = [each for each in known if "look_mean" in each]
    errors = gap.abs().sum(1) / images
    return Calibration(
        temperature=TEMPERATURES[best],
        error_before=float(errors[AS_TRAINED]),
        error_after=float(errors[best]),
        images=images,
        clients=len(known),
        true_odds=odds.tolist(),
        largest_logit=_pooled_points(known, "largest_logit"),
        model=model,
        looks=[Look(each["look_mean"].tolist(), each["look_covariance"].tolist()) for each in looking],
        look_distance=_pooled_points(looking, "look_distance") if looking else [],
    )


def _pooled_points(known: list[Tensors], name: str) -> list[float]:
    """The points of all images together: each client's stand for equal shares of its images."""
    points = torch.cat([each[name] for each in known])
    weights = torch.cat([each["true_odds"].sum().double().expand(LEVELS) for each in known])
    order = points.argsort(stable=True)
    points, reached = points[order], weights[order].cumsum(0)
    levels = torch.arange(1, LEVELS + 1, dtype=torch.float64) / (LEVELS + 1) * reached[-1]
    result: list[float] = points[torch.searchsorted(reached, levels).clamp(max=len(points) - 1)].tolist()
    return result
