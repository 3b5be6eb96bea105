"""Which round's model is kept: named rules, the peeking one included."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from unseen.core.types import Tensors
from unseen.core.words import PEEKS

Rule = Literal["last", "validation", "oracle"]

WORDS: dict[str, str] = {
    "last": "the last round",
    "validation": "best mean validation accuracy of the source clients",
    "oracle": f"best accuracy on the target itself ({PEEKS} at the unseen domain)",
}


@dataclass
class Selection:
    """The best round so far. Ties go to the earlier round."""

    rule: Rule
    round: int = 0
    score: float = -math.inf
    state: Tensors = field(default_factory=dict)

    def validated(self, round: int, state: Tensors, accuracy: float) -> bool:
        """The aggregated model of a round was measured on the sources' validation images."""
        return self.rule == "validation" and self._offer(round, state, accuracy)

    def tested(self, round: int, state: Tensors, accuracy: float) -> bool:
        """The model of a round was measured on the target."""
        return self.rule == "oracle" and self._offer(round, state, accuracy)

    def finished(self, round: int, state: Tensors) -> bool:
        """No more rounds come: what is kept when the rule is `last`, or when no round could be measured."""
        return (self.rule == "last" or not self.state) and self._offer(round, state, math.inf)

    def _offer(self, round: int, state: Tensors, score: float) -> bool:
        if not score > self.score:
            return False
        self.round, self.score, self.state = round, score, state
        return True

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "round": self.round, "score": self.score if math.isfinite(self.score) else None}
