"""The recorder: writes down what really crossed in the rounds that were asked for, and changes no bit of the run.

FOLDER/000001/CLIENT-survey.safetensors     the order and the reply of one exchange, tensors and numbers
FOLDER/000001/CLIENT-train.safetensors
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from unseen.core.files import read_tensors, write_tensors
from unseen.core.tensors import prefixed, unprefixed
from unseen.core.types import ClientId, Engine, Metrics, Order, Reply, Tensors
from unseen.runs.directory import RunDirectory
from unseen.runs.run import Assembly, OpenEngine

MOST_BYTES = 2_000_000_000  # on the disk, for one run; clients beyond are left out


@dataclass(frozen=True)
class Exchanged:
    """One client's part in one round: all that the coordinator saw of it, and all that the client was sent."""

    client: ClientId
    round: int
    images: int  # training images, as the reply counts them
    received: Tensors = field(default_factory=dict)  # the model that came down
    brief: Tensors = field(default_factory=dict)  # what the method wrote for this client
    survey: Tensors = field(default_factory=dict)  # what the client told before it trained
    state: Tensors = field(default_factory=dict)  # the model that went up
    report: Tensors = field(default_factory=dict)  # what went up beside it
    metrics: Metrics = field(default_factory=dict)

    @property
    def statistics(self) -> Tensors:
        """All that went up beyond the model."""
        return {**self.survey, **self.report}


@dataclass
class Recorder:
    """An engine that delivers by another one, and keeps a copy of what crossed in some rounds."""

    engine: Engine
    folder: Path
    rounds: frozenset[int]
    most_bytes: int = MOST_BYTES

    def clients(self) -> Sequence[ClientId]:
        return self.engine.clients()

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        for reply in self.engine.ask(orders):
            if reply.kind != "evaluate" and reply.round in self.rounds:
                self._write(orders[reply.client], reply)
            yield reply

    def _write(self, order: Order, reply: Reply) -> None:
        tensors = {
            **prefixed("received/", order.state),
            **prefixed("brief/", order.brief),
            **prefixed("state/", reply.state),
            **prefixed("report/", reply.report),
        }
        written = sum(path.stat().st_size for path in self.folder.rglob("*.safetensors"))
        if written + sum(value.nbytes for value in tensors.values()) > self.most_bytes:
            return
        about = {"client": reply.client, "images": reply.num_examples, "metrics": reply.metrics}
        name = f"{quote(reply.client, safe='')}-{reply.kind}.safetensors"
        write_tensors(self.folder / f"{reply.round:06d}" / name, tensors, about)


def recording(open_engine: OpenEngine, folder: Path, rounds: Collection[int]) -> OpenEngine:
    """The same engine, with a recorder around it."""

    @contextlib.contextmanager
    def opened(assembly: Assembly, directory: RunDirectory) -> Iterator[Engine]:
        with open_engine(assembly, directory) as engine:
            yield Recorder(engine, folder, frozenset(rounds))

    return opened


def read_recorded(folder: Path, rounds: Collection[int]) -> list[Exchanged]:
    """What was recorded of some rounds, in the order of rounds and clients."""
    found = []
    for number in sorted(rounds):
        for path in sorted((folder / f"{number:06d}").glob("*-train.safetensors")):
            tensors, about = read_tensors(path)
            asked = path.with_name(path.name.replace("-train.", "-survey."))
            before = read_tensors(asked)[0] if asked.exists() else {}
            found.append(
                Exchanged(
                    client=about["client"],
                    round=number,
                    images=about["images"],
                    # After a survey the model does not travel again.
                    received=unprefixed("received/", tensors) or unprefixed("received/", before),
                    brief=unprefixed("brief/", tensors),
                    survey=unprefixed("report/", before),
                    state=unprefixed("state/", tensors),
                    report=unprefixed("report/", tensors),
                    metrics=about["metrics"],
                )
            )
    return found
