"""How sure a trained model may be: one temperature, prediction sets, and whether an image is like those of training.

All of it is a function of the logits alone, so that it works for every method and for exported models. The numbers come
from the clients' validation images (`unseen.federation.calibrate`). They hold for images like these: at an unseen site
the sets cover less than they say, and the probabilities are too high. `unseen check` measures by how much.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from unseen.core.errors import UserError

if TYPE_CHECKING:  # numpy is loaded by who has logits
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.float64]]
    Booleans = np.ndarray[Any, np.dtype[np.bool_]]

VERSION = 1
TEMPERATURES = tuple(0.25 * 2 ** (k / 6) for k in range(31))  # 0.25 to 8, each 12 % above the one before
AS_TRAINED = TEMPERATURES.index(1.0)
LOWEST, WIDTH, ODDS_BINS = -12.0, 0.25, 96  # the histogram of log-odds: -12 to 12, what is outside counts at the ends
LEVELS = 99  # points of the largest logit: 1 % to 99 %
FAMILIAR = 0.95  # of the validation images count as like those of training


@dataclass(frozen=True)
class Calibration:
    """What the clients' validation images say of a model."""

    temperature: float  # logits are divided by it before the softmax
    error_before: float  # expected calibration error of the validation images at temperature 1
    error_after: float  # and at the one above
    images: int
    clients: int
    true_odds: list[int]  # histogram of log p/(1 - p) of the true class, p at temperature 1
    largest_logit: list[float]  # its points at 1 %, 2 %, ..., 99 % of the images
    model: str = ""  # the digest of the weights that were measured
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Calibration:
        if value.get("version", 1) > VERSION:
            raise UserError("This calibration is of a newer unseen; install that one to read it.")
        return cls(**value)

    def probabilities(self, logits_NK: Numbers) -> Numbers:
        """Of each class, at the common temperature."""
        return softmax(logits_NK / self.temperature)

    def threshold(self, coverage: float) -> float:
        """The log-odds from which on a class is in the set; minus infinity where the images are too few to say."""
        if not 0 < coverage < 1:
            raise UserError(f"A coverage is between 0 and 1, as 0.9, not {coverage:g}.")
        # Lu et al. 2023 (federated conformal prediction): the ceil(coverage * (N + K))-th of N scores of K clients.
        needed, within = math.ceil(coverage * (self.images + self.clients) - 1e-9), 0
        for place in range(ODDS_BINS - 1, 0, -1):
            within += self.true_odds[place]
            if within >= needed:
                return LOWEST + WIDTH * place  # the bin's lower end: rounding never lowers the coverage
        return -math.inf

    def sets(self, logits_NK: Numbers, coverage: float) -> Booleans:
        """Which classes are in each image's set. The most probable class always is."""
        import numpy as np

        inside_NK: Booleans = log_odds(logits_NK) >= self.threshold(coverage)
        inside_NK[np.arange(len(inside_NK)), logits_NK.argmax(axis=1)] = True
        return inside_NK

    @property
    def least_familiar(self) -> float:
        """An image whose largest logit is below this is unlike those of training; so are 5 % of the validation images."""
        return self.largest_logit[round(100 * (1 - FAMILIAR)) - 1]

    def familiar(self, logits_NK: Numbers) -> Booleans:
        """Is each image like those of training?"""
        result: Booleans = familiarity(logits_NK) >= self.least_familiar
        return result


def familiarity(logits_NK: Numbers) -> Numbers:
    """The largest logit (Hendrycks et al. 2022). Not the energy: a vote over branches has none, it is 0 for all images."""
    largest: Numbers = logits_NK.max(axis=1)
    return largest


def softmax(logits_NK: Numbers) -> Numbers:
    import numpy as np

    raised = np.exp(logits_NK - logits_NK.max(axis=1, keepdims=True))
    result: Numbers = raised / raised.sum(axis=1, keepdims=True)
    return result


def log_odds(logits_NK: Numbers) -> Numbers:
    """log p/(1 - p) of each class, also where p is 1 to all digits: its logit less the log-sum-exp of the others'."""
    import numpy as np

    odds = np.empty(logits_NK.shape)
    for k in range(logits_NK.shape[1]):
        others = np.delete(logits_NK, k, axis=1)
        top = others.max(axis=1, initial=-np.inf, keepdims=True)
        odds[:, k] = logits_NK[:, k] - (top[:, 0] + np.log(np.exp(others - top).sum(axis=1)))
    return odds
