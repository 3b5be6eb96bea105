"""What a method costs beside FedAvg: parameters, bytes, and times of a step and of inference, as ratios measured side
by side.

Methods take turns, several times, on one thread; processor time is measured, and the fastest of each one's measurements
counts: what else the machine does then hits all of them alike. A step's time is that of an order with n + 1 steps less
that of an order with one, by n: loading the state and replying fall out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unseen.core.errors import UserError
from unseen.core.plan import OptimizerPlan, Plan
from unseen.core.tensors import snapshot
from unseen.core.types import ClientId, Order, Reply, Server, Site
from unseen.core.updates import stepped_state
from unseen.data.memory import TensorImages
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.measure import measure
from unseen.federation.server import federate
from unseen.method import check_plan
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.registry import parse, registered
from unseen.runs.run import one_thread

BASELINE = "fedavg"
CLIENTS = ("one", "two")  # two: a method that exchanges something needs another one


@dataclass(frozen=True)
class Cost:
    """One method's numbers; ratios are to FedAvg."""

    method: str
    parameters: int
    step_seconds: float
    inference_seconds: float
    step_ratio: float
    inference_ratio: float
    bytes_up: float
    bytes_down: float
    bytes_up_statistics: float
    passes: float | None  # that explain the step, as the method says; None for a composed one
    remark: str = ""  # how the method differs from the published one, in its own words

    @property
    def per_pass(self) -> float | None:
        """How much dearer a step is than its passes explain: 1 is not at all."""
        return None if self.passes is None else self.step_ratio / self.passes


def noise(count: int, size: int, classes: int) -> TensorImages:
    """Random images of two domains with all classes: of one alone, some methods would be FedAvg."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, size, size, generator=rng).contiguous(memory_format=torch.channels_last)
    rows = torch.arange(count)
    return TensorImages(x, rows % classes, rows // classes % 2)


class Recording:
    """An engine in this process that remembers the last train orders."""

    def __init__(self, runner: ClientRunner) -> None:
        self.runner = runner
        self.orders: dict[ClientId, Order] = {}
        self.surveyed: dict[ClientId, Order] = {}

    def clients(self) -> Sequence[ClientId]:
        return CLIENTS

    def ask(self, orders: Mapping[ClientId, Order]) -> Iterator[Reply]:
        for client, order in orders.items():
            if order.kind == "survey":
                self.surveyed[client] = order
            if order.kind == "train":
                # After a survey the model does not come again; an order that is carried out many times must bring it.
                whole = order.state or self.surveyed[client].state
                self.orders[client] = replace(order, state=whole)
            yield self.runner.reply(client, order)


class Candidate:
    """One method, ready to be measured."""

    def __init__(self, name: str, plan: Plan, folder: Path, images: TensorImages, net_of: Callable[[], Net]) -> None:
        self.name, self.plan, self.images = name, plan, images
        method = parse(name)
        check_plan(method, plan)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = method.build(net_of())
        sites = {client: Site(client, images, images) for client in CLIENTS}
        self.runner = ClientRunner(method, net, plan, sites.__getitem__, ClientStates(folder / name), lambda x, rng: x)
        engine, self.ledger = Recording(self.runner), Ledger()
        share = self.runner.share
        server = Server(snapshot(net, sorted(share.up | share.down)), plan.seed, stepped=stepped_state(net, share))
        for played in federate(method, share, plan, engine, server, self.ledger):
            if played.round < plan.rounds:  # every client was new, and got more than it will later
                self.ledger.entries.clear()
                self.ledger.trips = 0
        self.order = engine.orders[CLIENTS[0]]
        self.best: dict[int, float] = {}  # seconds of an order by its number of steps
        self.inference = float("inf")

    def time_steps(self, steps: int) -> None:
        for count in (1, steps + 1):
            self.runner.plan = replace(self.plan, local_steps=count)
            started = time.process_time()
            self.runner.reply(CLIENTS[0], self.order)
            self.best[count] = min(self.best.get(count, float("inf")), time.process_time() - started)

    @property
    def step(self) -> float:
        """What one more step costs. The best of each length: the best *difference* would be that of a disturbed short one."""
        short, long = sorted(self.best)
        return max(0.0, self.best[long] - self.best[short]) / (long - short)

    def time_inference(self) -> None:
        started = time.process_time()
        measure(self.runner.method.predict, self.runner.net, self.images, self.plan)
        self.inference = min(self.inference, time.process_time() - started)


def measure_costs(
    methods: Sequence[str],
    *,
    backbone: str = "convnet",
    image_size: int = 32,
    batch_size: int = 32,
    classes: int = 7,
    bottleneck: int | None = None,
    steps: int = 3,
    repeats: int = 5,
    said: Callable[[str], None] = lambda sentence: None,
) -> list[Cost]:
    """FedAvg first, then the methods in their order; `["all"]` is every method that fits the net."""
    every = list(methods) == ["all"]
    names = list(dict.fromkeys([BASELINE, *(registered() if every else methods)]))
    plan = Plan(
        rounds=2,
        batch_size=batch_size,
        optimizer=OptimizerPlan(lr=0.001, momentum=0.9),
        seed=0,
        local_epochs=None,
        local_steps=1,
        server_selection="last",
    )
    images = noise(max(2 * batch_size, 2 * classes), image_size, classes)

    def net_of() -> Net:
        return create_net(backbone, classes, image_size=image_size, bottleneck=bottleneck, weights="none", seed=0)

    with tempfile.TemporaryDirectory(prefix="unseen-cost-") as folder, one_thread():
        candidates = []
        for name in names:
            said(f"preparing {name}")
            try:
                candidates.append(Candidate(name, plan, Path(folder), images, net_of))
            except UserError as error:
                if not every:
                    raise
                said(f"left out: {error}")
        for repeat in range(repeats):
            said(f"measuring, {repeat + 1} of {repeats}")
            # Nobody is always first: who is comes from other work, to colder caches.
            turn = repeat % len(candidates)
            for one in candidates[turn:] + candidates[:turn]:
                one.time_steps(steps)
                one.time_inference()
    base = candidates[0]
    return [
        Cost(
            method=one.name,
            parameters=sum(p.numel() for p in one.runner.net.parameters()),
            step_seconds=one.step,
            inference_seconds=one.inference * batch_size / len(images),
            step_ratio=one.step / base.step if base.step else float("nan"),
            inference_ratio=one.inference / base.inference,
            bytes_up=one.ledger.per_trip("up"),
            bytes_down=one.ledger.per_trip("down"),
            bytes_up_statistics=one.ledger.per_trip("up", "statistics"),
            passes=registered()[one.name].passes if one.name in registered() else None,
            remark=one.runner.method.about.remark,
        )
        for one in candidates
    ]
