"""What an audit writes down, as dataclasses. The only file that spells the keys of audit.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unseen.core.errors import UserError
from unseen.core.files import read_json
from unseen.runs.settings import tree_of

VERSION = 1
AUDIT_FILE = "audit.json"
Plays = Literal["coordinator", "site"]
Picture = NDArray[np.uint8]  # H x W x 3


@dataclass(frozen=True)
class Score:
    """A number with its 95 % interval, and what it would be if nothing had leaked."""

    value: float
    low: float
    high: float
    chance: float | None = None

    @property
    def leaks(self) -> bool:
        """Is chance outside of the interval, on the attacker's side?"""
        return self.chance is not None and self.low > self.chance


@dataclass(frozen=True)
class Finding:
    """What one attack found out."""

    attack: str
    plays: Plays
    saw: str  # the tensors it looked at, in words
    real: bool  # on the replies of the run as it was; off: an upper bound, under conditions that `words` names
    scores: dict[str, Score] = field(default_factory=dict)
    identified_of_100: Score | None = None  # how often its guess is the right one of 100 candidates
    words: str = ""  # what was done, and what it means
    failed: str = ""  # why there is no score
    seconds: float = 0.0
    files: tuple[str, ...] = ()  # pictures beside audit.json: originals above, reconstructions below
    pictures: Mapping[str, Picture] = field(default_factory=dict, repr=False, compare=False)  # not in the JSON

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name != "pictures"}
        plain["scores"] = {name: asdict(score) for name, score in self.scores.items()}
        plain["identified_of_100"] = asdict(self.identified_of_100) if self.identified_of_100 else None
        return plain

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        plain = dict(value)
        plain["scores"] = {name: tree_of(Score, score) for name, score in value.get("scores", {}).items()}
        found = value.get("identified_of_100")
        plain["identified_of_100"] = tree_of(Score, found) if found else None
        plain["files"] = tuple(value.get("files", ()))
        return cls(**plain)


@dataclass(frozen=True)
class AuditResult:
    """All findings on one run."""

    run: str  # the name of its directory
    method: str
    label: str  # the method with its changed fields
    data: str
    target: str
    seed: int
    protocol: str
    accuracy: float | None  # of the audited run on the unseen domain: what the method, or a defence, is worth
    beyond_weights: str  # what was sent beyond the model's weights, in words
    rounds: tuple[int, ...]  # whose replies were looked at
    same_bits: bool | None  # replayed rounds ended in the very states that the run had saved; None: not compared
    budget: str = ""  # of the audited run, in words
    epsilon: float | None = None  # of the whole run, where a part of the method adds noise
    delta: float | None = None
    effort: float = 1.0
    commit: str = ""
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding.to_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AuditResult:
        if value.get("version", 1) > VERSION:
            raise UserError("This audit is of a newer unseen; install that one to read it.")
        plain = dict(value)
        plain["findings"] = tuple(Finding.from_json(finding) for finding in value.get("findings", ()))
        plain["rounds"] = tuple(value.get("rounds", ()))
        return cls(**plain)

    def worst(self) -> Finding | None:
        """The finding that identifies most images."""
        named = [finding for finding in self.findings if finding.identified_of_100 is not None]
        return max(named, key=lambda f: f.identified_of_100.value if f.identified_of_100 else 0.0, default=None)


def read_audit(folder: Path) -> AuditResult:
    """The audit that was written to a folder."""
    try:
        return AuditResult.from_json(read_json(folder / AUDIT_FILE))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / AUDIT_FILE} is not an audit of unseen ({error}).") from None


def find_audits(folder: Path) -> list[AuditResult]:
    """All audits below a folder: methods that send weights only come first."""
    found = [read_audit(path.parent) for path in sorted(folder.rglob(AUDIT_FILE))]
    return sorted(found, key=lambda audit: (bool(audit.beyond_weights), audit.label))
