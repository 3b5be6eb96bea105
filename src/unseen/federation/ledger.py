"""The ledger: every tensor that leaves or reaches a client is counted where it crosses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import Tensor

from unseen.core.types import ClientId, Metrics, Order, Reply
from unseen.core.words import megabytes
from unseen.federation.calibrate import SENT

Direction = Literal["up", "down"]
Sort = Literal["model", "statistics", "metrics", "evaluation", "calibration", "masked", "refused"]
METRIC_BYTES = 8  # a number travels as a float64
NAMED = 5  # tensors that are named one by one in a sentence


@dataclass
class Crossing:
    """One tensor name in one direction."""

    direction: Direction
    kind: Sort
    name: str
    shape: list[int]
    dtype: str
    bytes: int  # of the largest crossing
    crossings: int = 0
    total: int = 0


@dataclass
class Ledger:
    """Bytes by direction and kind, and each tensor by name. `trips` counts pairs of client and round."""

    entries: dict[str, Crossing] = field(default_factory=dict)
    trips: int = 0
    declared: str = ""  # what the method says that it sends beyond the model's weights

    def sent(self, client: ClientId, order: Order) -> int:
        """An order on its way to a client. Returns its bytes."""
        self.trips += order.kind == "train"
        # A model sent only to be measured (to clients that do not train, and after the last round) is no part of training.
        sort: Sort = "evaluation" if order.kind == "evaluate" else "model"
        return (
            self._count("down", sort, order.state)
            + self._count("down", "statistics", order.brief)
            + self._count_sealing("down", order)
        )

    def received(self, reply: Reply) -> int:
        """A reply on its way to the server. Returns its bytes."""
        # What a reply to "evaluate" tells is the same for every method: it calibrates the finished model.
        sort: Sort = "calibration" if reply.kind == "evaluate" else "statistics"
        return (
            self._count("up", "model", reply.state)
            + self._count("up", sort, reply.report)
            + self._count_metrics(reply.metrics)
            + self._count_sealing("up", reply)
        )

    def refused(self, reply: Reply) -> int:
        """A reply that was not taken: its bytes, under one name. What it calls its tensors is not written down."""
        size = sum(value.nbytes for part in (reply.state, reply.report, reply.sealing) for value in part.values())
        return self._add("up", "refused", "refused replies", size + METRIC_BYTES * len(reply.metrics))

    def _count(self, direction: Direction, sort: Sort, tensors: Mapping[str, Tensor]) -> int:
        return sum(self._add(direction, sort, name, value.nbytes, value) for name, value in tensors.items())

    def _count_sealing(self, direction: Direction, message: Order | Reply) -> int:
        """What secure aggregation sends, by its step: their names are those of the clients."""
        size = sum(value.nbytes for value in message.sealing.values())
        return self._add(direction, "masked", message.kind, size) if size else 0

    def _count_metrics(self, metrics: Metrics) -> int:
        return sum(self._add("up", "metrics", name, METRIC_BYTES, dtype="float64") for name in metrics)

    def _add(
        self, direction: Direction, sort: Sort, name: str, size: int, value: Tensor | None = None, dtype: str = ""
    ) -> int:
        key = f"{direction}/{sort}/{name}"
        entry = self.entries.get(key)
        # Shape and dtype are spelled only if they are news: a model may go to 100,000 clients to be measured.
        if entry is None or size > entry.bytes:
            shape = [] if value is None else list(value.shape)
            if entry is None:
                dtype = dtype if value is None else str(value.dtype).removeprefix("torch.")
                entry = self.entries[key] = Crossing(direction, sort, name, shape, dtype, size)
            entry.shape, entry.bytes = shape, size
        entry.crossings += 1
        entry.total += size
        return size

    def per_trip(self, direction: Direction, sort: Sort | None = None) -> float:
        """Mean bytes per training client and round in one direction, of one kind or of all that training needs."""
        sorts: tuple[Sort, ...] = (sort,) if sort else ("model", "statistics", "metrics", "masked")
        return sum(self.total(direction, each) for each in sorts) / self.trips if self.trips else 0.0

    def total(self, direction: Direction, sort: Sort) -> int:
        """All bytes of one kind in one direction."""
        return sum(entry.total for key, entry in self.entries.items() if key.startswith(f"{direction}/{sort}/"))

    def beyond_weights(self) -> str:
        """What was sent beyond the model's weights: the method's words, or the tensors that it sent without a word."""
        prefix = "up/statistics/"
        names = sorted(f'"{key.removeprefix(prefix)}"' for key in self.entries if key.startswith(prefix))
        if self.declared or not names:
            return self.declared
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"{', '.join(names[:NAMED])}{more} (not declared by the method)"

    def sentence(self) -> str:
        """The line a run ends with."""
        parts = []
        words: dict[Sort, str] = {
            "model": "weights",
            "masked": "masked weights and keys",
            "statistics": "statistics",
            "metrics": "metrics",
        }
        for sort, word in words.items():
            up, down = self.per_trip("up", sort), self.per_trip("down", sort)
            if up or down:
                parts.append(f"{word} {megabytes(up)} up, {megabytes(down)} down")
        measuring, beyond = self.total("down", "evaluation"), self.beyond_weights()
        calibrating = sum(e.bytes for key, e in self.entries.items() if key.startswith("up/calibration/"))
        return (
            f"each client sent {megabytes(self.per_trip('up'))} and received {megabytes(self.per_trip('down'))} "
            f"per round: {'; '.join(parts)}"
            + (f" (and {megabytes(measuring)} in all to measure the model)" if measuring else "")
            + (f"; after training each sent {megabytes(calibrating)} to calibrate it: {SENT}" if calibrating else "")
            + (f"; MORE THAN WEIGHTS was sent: {beyond}" if beyond else "")
        )

    def crossings(self) -> list[Crossing]:
        """What crossed, by direction, kind and name."""
        return [crossing for _, crossing in sorted(self.entries.items())]

    def to_json(self) -> dict[str, Any]:
        return {
            "trips": self.trips,
            "declared": self.declared,
            "beyond_weights": self.beyond_weights(),
            "tensors": [asdict(crossing) for crossing in self.crossings()],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Ledger:
        rows = [Crossing(**row) for row in value["tensors"]]
        entries = {f"{row.direction}/{row.kind}/{row.name}": row for row in rows}
        # Ledgers of earlier versions have the method's words under the other name.
        return cls(entries, value["trips"], value.get("declared", value.get("beyond_weights", "")))
