"""The ledger: every tensor that leaves or reaches a client is counted where it crosses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from unseen.core.types import ClientId, Metrics, Order, Reply

Direction = Literal["up", "down"]
Sort = Literal["model", "statistics", "metrics", "evaluation"]
METRIC_BYTES = 8  # a number travels as a float64


@dataclass
class Entry:
    """One tensor name in one direction."""

    shape: list[int]
    dtype: str
    bytes: int  # of the largest crossing
    crossings: int = 0
    total: int = 0


@dataclass
class Ledger:
    """Bytes by direction and kind, and each tensor by name. `trips` counts pairs of client and round."""

    entries: dict[str, Entry] = field(default_factory=dict)
    trips: int = 0
    beyond: str = ""  # what the method sends beyond the model's weights, in its own words

    def sent(self, client: ClientId, order: Order) -> int:
        """An order on its way to a client. Returns its bytes."""
        self.trips += order.kind == "train"
        # A model sent only to be measured (to clients that do not train, and after the last round) is no part of training.
        sort: Sort = "evaluation" if order.kind == "evaluate" else "model"
        return self._count("down", sort, order.state) + self._count("down", "statistics", order.brief)

    def received(self, reply: Reply) -> int:
        """A reply on its way to the server. Returns its bytes."""
        return (
            self._count("up", "model", reply.state)
            + self._count("up", "statistics", reply.report)
            + self._count_metrics(reply.metrics)
        )

    def _count(self, direction: Direction, sort: Sort, tensors: Mapping[str, Tensor]) -> int:
        return sum(
            self._add(direction, sort, name, list(value.shape), str(value.dtype).removeprefix("torch."), value.nbytes)
            for name, value in tensors.items()
        )

    def _count_metrics(self, metrics: Metrics) -> int:
        return sum(self._add("up", "metrics", name, [], "float64", METRIC_BYTES) for name in metrics)

    def _add(self, direction: Direction, sort: Sort, name: str, shape: list[int], dtype: str, size: int) -> int:
        entry = self.entries.setdefault(f"{direction}/{sort}/{name}", Entry(shape, dtype, size))
        if size > entry.bytes:
            entry.shape, entry.bytes = shape, size
        entry.crossings += 1
        entry.total += size
        return size

    def per_trip(self, direction: Direction, sort: Sort | None = None) -> float:
        """Mean bytes per training client and round in one direction, of one kind or of all but evaluation."""
        sorts: tuple[Sort, ...] = (sort,) if sort else ("model", "statistics", "metrics")
        return sum(self.total(direction, each) for each in sorts) / self.trips if self.trips else 0.0

    def total(self, direction: Direction, sort: Sort) -> int:
        """All bytes of one kind in one direction."""
        return sum(entry.total for key, entry in self.entries.items() if key.startswith(f"{direction}/{sort}/"))

    def sentence(self) -> str:
        """The line a run ends with."""
        parts = []
        words: dict[Sort, str] = {"model": "weights", "statistics": "statistics", "metrics": "metrics"}
        for sort, word in words.items():
            up, down = self.per_trip("up", sort), self.per_trip("down", sort)
            if up or down:
                parts.append(f"{word} {megabytes(up)} up, {megabytes(down)} down")
        measuring = self.total("down", "evaluation")
        return (
            f"each client sent {megabytes(self.per_trip('up'))} and received {megabytes(self.per_trip('down'))} "
            f"per round: {'; '.join(parts)}"
            + (f" (and {megabytes(measuring)} in all to measure the model)" if measuring else "")
            + (f"; MORE THAN WEIGHTS was sent: {self.beyond}" if self.beyond else "")
        )

    def to_json(self) -> dict[str, Any]:
        rows = []
        for key, entry in sorted(self.entries.items()):
            direction, sort, name = key.split("/", 2)
            rows.append({"direction": direction, "kind": sort, "name": name, **vars(entry)})
        return {"trips": self.trips, "beyond_weights": self.beyond, "tensors": rows}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Ledger:
        entries = {}
        for row in value["tensors"]:
            key = f"{row['direction']}/{row['kind']}/{row['name']}"
            entries[key] = Entry(row["shape"], row["dtype"], row["bytes"], row["crossings"], row["total"])
        return cls(entries, value["trips"], value.get("beyond_weights", ""))


def megabytes(size: float) -> str:
    """2.31 MB, or kB where that says more."""
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.2f} kB"
