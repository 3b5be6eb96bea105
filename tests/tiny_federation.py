"""A tiny federation in memory, for tests over every method: three clients, random images that can be learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.tiny_work import PLAN, random_images, site, tiny_net
from unseen.core.plan import Plan
from unseen.core.tensors import load, pick, snapshot
from unseen.core.types import Engine, Server, Tensors
from unseen.core.updates import stepped_state
from unseen.engines.local import LocalEngine
from unseen.federation.checks import Checks
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.measure import measure
from unseen.federation.secure import gather_for, runner_for
from unseen.federation.server import Round, federate
from unseen.method import Method
from unseen.registry import parse

CLIENTS = ("a", "b", "c")


@dataclass
class Federation:
    """One method's net, runner and server."""

    method: Method
    plan: Plan
    folder: Path
    workers: int = 1
    clients: Sequence[str] = CLIENTS

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.net = tiny_net(self.method)
        self.sites = {name: site(name, 24 + 8 * i, seed=i) for i, name in enumerate(self.clients)}
        self.runner = runner_for(self.plan)(
            self.method, self.net, self.plan, self.sites.__getitem__, ClientStates(self.folder), lambda x, rng: x
        )
        self.share = self.runner.share
        state = snapshot(self.net, sorted(self.share.up | self.share.down))
        self.server = Server(state, self.plan.seed, stepped=stepped_state(self.net, self.share))
        self.ledger = Ledger()

    def run(self, rounds: int | None = None) -> list[Round]:
        plan = self.plan if rounds is None else replace(self.plan, rounds=rounds)
        with LocalEngine(self.runner, self.clients, self.workers) as engine:
            return self.run_on(engine, plan)

    def run_on(self, engine: Engine, plan: Plan | None = None) -> list[Round]:
        plan = plan or self.plan
        gather = gather_for(plan, pick(self.server.state, self.share.up))
        checks = self.checks(plan)
        return list(federate(self.method, self.share, plan, engine, self.server, self.ledger, checks, None, gather))

    def checks(self, plan: Plan) -> Checks:
        return Checks.of(self.method, self.net, self.share, plan)

    def accuracy(self) -> float:
        """Of the model that is kept, on new images."""
        load(self.net, {**self.runner.initial, **self.method.evaluated(self.server)})
        return measure(self.method.predict, self.net, random_images(48, seed=77), self.plan).accuracy


def federation(method: str | Method, folder: Path, workers: int = 1, **changes: Any) -> Federation:
    chosen = parse(method) if isinstance(method, str) else method
    return Federation(chosen, replace(PLAN, **changes), folder, workers)


def same(one: Tensors, two: Tensors) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
