"""Local differential privacy that a site sets for itself, in its node config: the part `dp`, added at this site alone.

    epsilon    of the whole run, for the site's images as a whole
    delta      for which it holds (default: 0.00001)
    clip       the largest norm of an update (default: 1)

The noise follows from these and from the number of rounds, by the account that every run uses (`core/accountant.py`).
Nothing but weights leaves such a site. The numbers in its replies (images, loss, accuracy) are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unseen.core.accountant import multiplier_of
from unseen.core.errors import UserError
from unseen.method import Method, compose, parts_of
from unseen.methods.dp import DP


@dataclass(frozen=True)
class LocalPrivacy:
    """(epsilon, delta) of the whole run, and the largest norm of an update."""

    epsilon: float
    delta: float
    clip: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LocalPrivacy | None:
        if "epsilon" not in config:
            return None
        self = cls(float(config["epsilon"]), float(config.get("delta", 1e-5)), float(config.get("clip", 1.0)))
        if not (self.epsilon > 0 and 0 < self.delta < 1 and self.clip > 0):
            raise UserError("Local privacy needs epsilon > 0, 0 < delta < 1 and clip > 0 in the node config.")
        return self

    def added_to(self, method: Method, rounds: int) -> Method:
        """The run's method as it is carried out at this site."""
        if method.about.noise > 0:
            raise UserError(
                "This run adds noise by itself, and this site too: leave out its epsilon in site.toml, if the run's "
                "noise is enough for it."
            )
        return compose(*parts_of(method), DP(self.clip, multiplier_of(self.epsilon, self.delta, rounds), self.delta))
