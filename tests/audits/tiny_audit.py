"""A tiny federation, recorded, and what an attacker of it knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tiny_federation import Federation, federation
from tests.tiny_work import random_images, tiny_net
from unseen.audits.attack import Known, Observed, Truth
from unseen.audits.record import Recorder, read_recorded
from unseen.core.types import Batch
from unseen.engines.local import LocalEngine
from unseen.federation.server import federate
from unseen.method import Method


@dataclass
class Audited:
    federation: Federation
    observed: Observed
    known: Known
    truth: Truth


def everything(images: Any) -> Batch:
    return Batch(images.x, images.y, images.domains)


def recorded(fed: Federation, folder: Path, rounds: frozenset[int] = frozenset({1, 2})) -> list[Any]:
    """Run the federation with a recorder around its engine."""
    with LocalEngine(fed.runner, fed.clients) as engine:
        recorder = Recorder(engine, folder, rounds)
        return list(federate(fed.method, fed.share, fed.plan, recorder, fed.server, fed.ledger))


def audited(method: str | Method, folder: Path, effort: float = 1.0, **plan: Any) -> Audited:
    fed = federation(method, folder / "clients", **plan)
    recorded(fed, folder / "recorded")
    observed = Observed(tuple(read_recorded(folder / "recorded", {1, 2})), fed.server.state)
    known = Known(
        method=fed.method,
        build=lambda: tiny_net(fed.method),
        plan=fed.plan,
        augment=lambda x, rng: x,
        public=everything(random_images(64, seed=50)),
        effort=effort,
    )
    return Audited(fed, observed, known, Truth(fed.sites))
