"""How sure a trained model may be: one temperature, prediction sets, and whether an image is like those of training.

All of it is a function of the logits and of how the pictures look (`unseen.core.look`), so that it works for every method
and for exported models. The numbers come from the clients' images (`unseen.federation.calibrate`). They hold for images
like these: at an unseen site the sets cover less than they say, and the probabilities are too high. `unseen check` measures
by how much.

An image is unlike those of training in its *look*, if its colours and textures are unlike those of every site, or in its
*content*, if no class gets a large logit. Each is said of 2.5 % of the sites' own images, so 5 % in all.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from unseen.core.errors import UserError

if TYPE_CHECKING:  # numpy is loaded by who has logits
    import numpy as np

    from unseen.core.look import Look

    Numbers = np.ndarray[Any, np.dtype[np.float64]]
    Booleans = np.ndarray[Any, np.dtype[np.bool_]]

VERSION = 3  # 1 had no looks, 2 a limit for each: these are passed over, and `unseen calibrate` makes them anew
TEMPERATURES = tuple(0.25 * 2 ** (k / 6) for k in range(31))  # 0.25 to 8, each 12 % above the one before
AS_TRAINED = TEMPERATURES.index(1.0)
LOWEST, WIDTH, ODDS_BINS = -12.0, 0.25, 96  # the histogram of log-odds: -12 to 12, what is outside counts at the ends
LEVELS = 99  # points of the largest logit: 1 % to 99 %
UNLIKE = 5.0  # percent of the validation images count as unlike those of training
LOOK, CONTENT = "look", "content"  # in what an image is unlike those of training: half of them in each


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
    looks: list[Look] = field(default_factory=list)  # of the sites; none in runs of earlier versions
    look_distance: list[float] = field(default_factory=list)  # points at 1 % to 99 % of images to their own site's look
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Calibration:
        if value.get("version", 1) > VERSION:
            raise UserError("This calibration is of a newer unseen; install that one to read it.")
        from unseen.core.look import Look

        looks = [Look(**one) for one in value["looks"]] if value.get("version", 1) == VERSION else []
        return cls(**{**value, "looks": looks})

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
        """An image whose largest logit is below this is unlike those of training in its content."""
        return _between(self.largest_logit, UNLIKE / 2 if self.looks else UNLIKE)

    @property
    def furthest_look(self) -> float:
        """An image that is further from the looks of all sites is unlike those of training in its look."""
        return _between(self.look_distance, 100 - UNLIKE / 2)

    def typical_look(self, strangeness_N: Numbers | list[float]) -> float:
        """The part of the sites' own images that look less strange than the typical one of these.

        A whole site tells more than an image: each may be within the limit, and all at its edge.
        """
        import numpy as np

        return float(np.searchsorted(self.look_distance, np.median(strangeness_N) * self.furthest_look)) / (LEVELS + 1)

    def strangeness(self, logits_NK: Numbers, looks_ND: Numbers) -> dict[str, Numbers]:
        """How unlike those of training each image is, in its content and its look. From 1 on it counts as unlike."""
        usual = self.largest_logit[LEVELS // 2]
        found = {CONTENT: (usual - logits_NK.max(axis=1)) / max(usual - self.least_familiar, 1e-9)}
        if self.looks:
            from unseen.core.look import nearest

            found[LOOK] = nearest(self.looks, looks_ND) / max(self.furthest_look, 1e-9)
        return found

    def unlike(self, strangeness: dict[str, Numbers]) -> list[tuple[str, ...]]:
        """In what each image is unlike those of training: look, content, both or, most often, nothing."""
        found = {name: strangeness[name] > 1 for name in (LOOK, CONTENT) if name in strangeness}
        return [tuple(name for name, there in found.items() if there[n]) for n in range(len(found[CONTENT]))]


def _between(points: list[float], percent: float) -> float:
    """Linear between points at 1 % to 99 %."""
    low, high = points[int(percent) - 1 : int(percent) + 1]
    return low + (percent - int(percent)) * (high - low)


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
