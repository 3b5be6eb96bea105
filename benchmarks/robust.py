"""What one lying client does to a federation, and what each robust part saves: `digits` and PACS, 3 and 30 clients.

    python benchmarks/robust.py --targets street --seeds 0 --rounds 10     # goes on where it was stopped
    python benchmarks/robust.py --data pacs --root PACS --weights FILE --targets art_painting --rounds 5 --steps 10
    python benchmarks/results.py write                                     # the tables in docs/security.md

The first client lies, in one of these ways:

    scaled      it trains as it should and sends ten times its update
    sign flip   it trains as it should and sends its update with the other sign, four times as long
    label flip  it trains on wrong labels: class k is said to be the last class minus k
    backdoor    half of its images have a white square in a corner and are said to be of class 0; its update is as many
                times as long as there are clients (model replacement: Bagdasaryan et al., AISTATS 2020)

Three clients are the three source domains. Thirty are ten of each. Every case is one small record; the accuracy is that
of the last round on the unseen domain, because a liar could also choose the round. PACS is validated on few images:
nothing is chosen by them here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.small_runs import settings
from torch import Tensor

from unseen.core.errors import UserError
from unseen.core.files import write_json
from unseen.core.platform import source_version
from unseen.core.tensors import load
from unseen.core.types import Batch, ClientId, Engine, ImageSet, Order, Reply
from unseen.engines.local import LocalEngine
from unseen.federation.measure import logits
from unseen.runs.directory import RunDirectory
from unseen.runs.progress import Silent, Watcher
from unseen.runs.protocols import protocol_of
from unseen.runs.run import Assembly, PlannedRun, RunData, load_data, run

RECORDS = Path(__file__).parent / "results" / "robust"
PARTITIONS = {3: "domain", 30: "iid:10"}
METHODS = ("fedavg", "normbound", "median", "trimmedmean", "krum", "krum:kept=half", "geomedian")
CORNER, TRIGGERED = 5 / 32, 0  # the square's part of the side, and the class that it stands for
FEW = {"pacs": {"validation": 0.02, "in_domain_test": 0.0}}  # held-back images that nobody looks at here


@dataclass(frozen=True)
class Record:
    """One case."""

    data: str
    method: str
    attack: str
    clients: int
    target: str
    seed: int
    rounds: int
    steps: int  # of a client in a round
    accuracy: float | None = None  # of the last round on the unseen domain; None where the run stopped
    backdoor: float | None = None  # of the unseen images of other classes, the part that the square sends to its class
    stopped: str = ""  # the sentence of a run that stopped
    commit: str = ""
    cpu: float = 0.0  # seconds

    @property
    def name(self) -> str:
        budget = f"{self.rounds}x{self.steps}"
        words = (self.data, str(self.clients), self.target, f"s{self.seed}", budget, self.method, self.attack)
        return "-".join(words).replace(" ", "_").replace(":", "_").replace("=", "_")


# --- lies ------------------------------------------------------------------------------------------------------------
def with_square(x: Tensor) -> Tensor:
    marked, side = x.clone(), round(CORNER * x.shape[-1])
    marked[..., -side:, -side:] = 1.0
    return marked


@dataclass(frozen=True)
class Twisted:
    """A client's images with a lie about them."""

    honest: ImageSet
    twist: Callable[[Batch, Tensor], Batch]
    labels_of: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.honest)

    @property
    def labels(self) -> Tensor:
        return self.labels_of(self.honest.labels)

    @property
    def domains(self) -> Tensor:
        return self.honest.domains

    def batch(self, indices: Tensor) -> Batch:
        return self.twist(self.honest.batch(indices), indices)


def label_flipped(images: ImageSet, classes: int) -> ImageSet:
    return Twisted(images, lambda b, _: replace(b, y=classes - 1 - b.y), lambda y: classes - 1 - y)


def backdoored(images: ImageSet, classes: int) -> ImageSet:
    def twist(batch: Batch, indices: Tensor) -> Batch:
        marked = indices % 2 == 0
        x = torch.where(marked[:, None, None, None], with_square(batch.x), batch.x)
        return replace(batch, x=x, y=torch.where(marked, TRIGGERED, batch.y))

    def labels(y: Tensor) -> Tensor:
        return torch.where(torch.arange(len(y)) % 2 == 0, TRIGGERED, y)

    return Twisted(images, twist, labels)


DATA: Mapping[str, Callable[[ImageSet, int], ImageSet]] = {"label flip": label_flipped, "backdoor": backdoored}
ATTACKS = ("none", "scaled", "sign flip", "label flip", "backdoor")


def factor(attack: str, clients: int) -> float:
    """What the liar multiplies its update with."""
    return {"scaled": 10.0, "sign flip": -4.0, "backdoor": float(clients)}.get(attack, 1.0)


@dataclass(frozen=True)
class Lying:
    """An engine one of whose clients makes its update longer, or turns it round."""

    engine: Engine
    liar: ClientId
    factor: float

    def clients(self) -> Sequence[ClientId]:
        return self.engine.clients()

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        for reply in self.engine.ask(orders):
            before = orders[reply.client].state
            if reply.client == self.liar and reply.kind == "train" and self.factor != 1.0:
                state = {
                    key: before[key] + self.factor * (value - before[key])
                    if value.is_floating_point() and not key.endswith("running_var")  # a variance below 0 is refused
                    else value
                    for key, value in reply.state.items()
                }
                reply = replace(reply, state=state)
            yield reply


# --- cases -----------------------------------------------------------------------------------------------------------
def method_of(word: str, clients: int) -> tuple[str, dict[str, object]]:
    """A name of the table as a method and its fields."""
    name, _, half = word.partition(":")
    return name, {"kept": clients // 2 + 1} if half else {}


def case(todo: Record, places: Mapping[str, str]) -> Record:
    """The case with what it gave. `places`: the images' root and the file of weights, for data that is not built in."""
    method, fields = method_of(todo.method, todo.clients)
    attack = todo.attack
    chosen = settings(
        method=method,
        fields=fields,
        target=todo.target,
        seed=todo.seed,
        protocol=todo.data,
        partition=PARTITIONS[todo.clients],
        rounds=todo.rounds,
        local_steps=todo.steps,
        server_selection="last",
        test_every=0,
        **places,
        **FEW.get(todo.data, {}),
    )
    started = time.process_time()
    found: dict[str, float | None] = {}

    def data(planned: PlannedRun, watcher: Watcher) -> RunData:
        honest = load_data(planned, watcher)
        liar = sorted(honest.sites)[0]
        if attack not in DATA:
            return honest
        site = honest.sites[liar]
        twisted = replace(site, train=DATA[attack](site.train, len(honest.classes)))
        return replace(honest, sites={**honest.sites, liar: twisted})

    @contextlib.contextmanager
    def opened(assembly: Assembly, directory: RunDirectory) -> Iterator[Engine]:
        sites, found["backdoor"] = sorted(assembly.data.sites), None
        with LocalEngine(assembly.runner(directory.client_states), sites) as engine:
            yield Lying(engine, sites[0], factor(attack, todo.clients))
            found["backdoor"] = success(assembly, directory)

    try:
        result = run(PlannedRun.of(chosen), opened, data=data, watcher=Silent())
        accuracy, stopped = result.record.last_accuracy, ""
    except UserError as error:
        if not found:  # it has not begun: wrong words, and no finding
            raise
        accuracy, stopped = None, str(error)
    return replace(
        todo,
        accuracy=accuracy,
        backdoor=found["backdoor"],
        stopped=stopped,
        commit=source_version(),
        cpu=round(time.process_time() - started, 1),
    )


def success(assembly: Assembly, directory: RunDirectory) -> float:
    """How often the square sends an image of the unseen domain to the square's class."""
    restored, target = directory.restore(), assembly.data.target
    assert restored is not None and target is not None
    load(assembly.net, restored[0].state)
    marked = Twisted(target, lambda b, _: replace(b, x=with_square(b.x)), lambda y: y)
    hits = total = 0
    for scores, labels in logits(assembly.method.predict, assembly.net, marked, assembly.settings.plan):
        others = labels != TRIGGERED
        hits += int((scores.argmax(1)[others] == TRIGGERED).sum())
        total += int(others.sum())
    return hits / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "pacs"), default="digits")
    parser.add_argument("--root", help="the images' folder, for data that is not built in")
    parser.add_argument("--weights", help="the file of pretrained weights, for a protocol that begins with some")
    parser.add_argument("--targets", default="street")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, help="of a client in a round; without: the protocol's")
    parser.add_argument("--clients", default="3,30")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--attacks", default=",".join(ATTACKS), help='names as above: "sign flip,label flip"')
    parser.add_argument("--out", type=Path, default=RECORDS)
    given = parser.parse_args()
    if unknown := set(given.attacks.split(",")) - set(ATTACKS):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    torch.set_num_threads(1)
    places = {name: value for name in ("root", "weights") if (value := getattr(given, name))}
    steps = given.steps or protocol_of(given.data).plan.local_steps or 1
    cases = [
        Record(given.data, method, attack, int(clients), target, int(seed), given.rounds, steps)
        for clients in given.clients.split(",")
        for target in given.targets.split(",")
        for seed in given.seeds.split(",")
        for method in given.methods.split(",")
        for attack in given.attacks.split(",")
    ]
    for number, one in enumerate(cases, 1):
        path = given.out / f"{one.name}.json"
        if path.exists():
            continue
        record = case(one, places)
        write_json(path, asdict(record))
        print(f"{number}/{len(cases)} {json.dumps(asdict(record))}", flush=True)


if __name__ == "__main__":
    main()
