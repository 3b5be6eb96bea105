"""What a run writes down of itself, as dataclasses. The only file that spells the keys of its JSON.

results.jsonl has a `RoundLine` per round, result.json one `RunResult`, evaluations.jsonl an `EvaluationLine` per
inference rule. Files of older versions are read: what they lack has its default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from unseen.core.errors import UserError
from unseen.core.metrics import Measured
from unseen.core.words import PEEKS
from unseen.runs.settings import Settings, check_types, tree_of

VERSION = 2
CHOSEN = ", chosen"  # behind the name of a method whose fields `unseen tune` chose
PEEKING = f"oracle: {PEEKS}"  # stands beside every number that was chosen by looking at the unseen domain


def number(value: float) -> float | None:
    """JSON has no nan: what was not measured is null."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class ClientScore:
    """A model on one client's validation images."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Validation:
    """The aggregated model of one round on all clients' validation images."""

    round: int
    accuracy: float | None
    clients: dict[str, ClientScore] = field(default_factory=dict)


@dataclass(frozen=True)
class UnseenScore:
    """The aggregated model of one round on the unseen domain."""

    round: int
    accuracy: float | None
    loss: float | None = None


@dataclass(frozen=True)
class RoundLine:
    """One round. `validation` is of the round before: it came with this round's replies."""

    round: int
    loss: float | None
    clients: dict[str, dict[str, float]] = field(default_factory=dict)  # the metrics of those that trained
    bytes_up: dict[str, int] = field(default_factory=dict)
    bytes_down: dict[str, int] = field(default_factory=dict)
    validation: Validation | None = None
    unseen: UnseenScore | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None or name == "loss"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RoundLine:
        check_types(cls, value)
        known = {f.name for f in fields(cls)} - {"validation", "unseen"}
        return cls(
            **{name: value[name] for name in known if name in value},
            validation=_validation(value.get("validation")),
            unseen=tree_of(UnseenScore, value["unseen"]) if value.get("unseen") else None,
        )


@dataclass(frozen=True)
class EvaluationLine:
    """A finished run's model on its unseen domain by an inference rule."""

    rule: str  # its label: `tbn (batch=1)`
    accuracy: float | None
    loss: float | None
    examples: int
    fields: dict[str, Any] = field(default_factory=dict)
    measured: Measured | None = None
    depends: str = ""  # on which images beside its own an answer depends, in words; "" for none

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EvaluationLine:
        return replace(tree_of(cls, value), measured=_measured(value))


@dataclass(frozen=True)
class RunResult:
    """What a finished run found. Accuracies are fractions; None where nothing was measured."""

    method: str
    data: str
    target: str
    seed: int
    protocol: str
    accuracy: float | None  # on the unseen domain, of the selected model
    in_domain_accuracy: float | None  # on the sources' `in_domain_images`, of the same model
    selected_round: int
    rounds: int
    selection: str
    version: int = VERSION
    fields: dict[str, Any] = field(default_factory=dict)
    backbone: str = ""
    engine: str = "local"
    loss: float | None = None
    in_domain: dict[str, float] = field(default_factory=dict)
    training_images: dict[str, int] = field(default_factory=dict)  # by client; {} where they are on other machines
    in_domain_images: str = "validation"  # "test": images that selected nothing
    last_accuracy: float | None = None  # on the unseen domain, of the last round's model, whatever was selected
    last_in_domain_accuracy: float | None = None  # on the sources' `in_domain_images`, of the last round's model
    selection_words: str = ""
    peeks: bool = False
    bytes_up: float = 0.0  # per client and round
    bytes_down: float = 0.0
    bytes_up_statistics: float = 0.0
    bytes_down_statistics: float = 0.0
    parameters: int = 0
    clients: int = 0
    seconds: float = 0.0
    kernels: str = ""  # what the CPU really computed with
    cpu: str = ""  # which one: "GenuineIntel 6-207"; the last bits can differ between two
    kernels_remark: str = ""  # where that is not what was asked for
    commit: str = ""  # of the source tree that computed it, or the installed version; "+" behind one with changes
    beyond_weights: str = ""  # what was sent beyond the model's weights, in words; "" for nothing
    remark: str = ""  # how the method differs from the published one, in its own words
    ledger: str = ""  # the ledger's sentence
    epsilon: float | None = (
        None  # differential privacy of the whole run, for a site's images as a whole; None: no noise
    )
    delta: float | None = None
    validation_last: Validation | None = None
    measured: Measured | None = None  # beside accuracy, on the unseen domain, of the selected model

    @property
    def worst_client(self) -> float | None:
        """The lowest accuracy of the selected model on one client's `in_domain_images`."""
        return min(self.in_domain.values(), default=None)

    @property
    def as_run(self) -> str:
        """The remark as a sentence; "" where the method is the published one."""
        return f"the method as it was run: {self.remark}" if self.remark else ""

    @property
    def mark(self) -> str:
        """` (oracle: PEEKS)` where the unseen domain chose the model, to be put behind a number."""
        return f" ({PEEKING})" if self.peeks else ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunResult:
        if value.get("version", 1) > VERSION:
            raise UserError("This result is of a newer unseen; install that one to read it.")
        check_types(cls, value)
        known = {f.name for f in fields(cls)} - {"validation_last", "measured"}
        return cls(
            **{name: value[name] for name in known if name in value},
            validation_last=_validation(value.get("validation_last")),
            measured=_measured(value),
        )


def _validation(value: Mapping[str, Any] | None) -> Validation | None:
    if not value:
        return None
    clients = {client: tree_of(ClientScore, score) for client, score in value.get("clients", {}).items()}
    return Validation(value["round"], value["accuracy"], clients)


def _measured(value: Mapping[str, Any]) -> Measured | None:
    return tree_of(Measured, value["measured"]) if value.get("measured") else None


def label_of(settings: Settings, remark: str = "") -> str:
    """`fedfd (lambda2=0.02)`, `ccst (weight-free, ours)`; `fedprox, chosen` where `unseen tune` chose."""
    if settings.chosen_from is not None:
        return label_of_chosen(settings.method, remark)
    words = [*(f"{name}={_spelled(value)}" for name, value in settings.fields.items()), *filter(None, [remark])]
    return settings.method + (f" ({', '.join(words)})" if words else "")


def label_of_chosen(method: str, remark: str = "") -> str:
    return method + CHOSEN + (f" ({remark})" if remark else "")


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return "..".join(_spelled(item) for item in value)
    if isinstance(value, str):
        return value.rpartition("/")[2].removesuffix(".safetensors")  # of a file its name, and not where it lies
    return f"{value:g}" if isinstance(value, float) else str(value)


def mark_of(settings: Settings) -> str:
    """As `RunResult.mark`, of a run that has no result yet."""
    return f" ({PEEKING})" if settings.plan.server_selection == "oracle" else ""
