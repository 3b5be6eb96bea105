"""Composition: order, sums, corners, owners, clashes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.types import Batch, Reply, Server, Tensors, Work
from unseen.method import Composed, Method, Weigh, compose, name_of
from unseen.methods.fedbn import FedBN
from unseen.methods.fedprox import FedProx
from unseen.methods.silobn import SiloBN
from unseen.registry import parse


@dataclass(frozen=True)
class Adds(Method):
    name: ClassVar[str] = "adds"
    amount: float = 2.0

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        return features.new_tensor(self.amount)


@dataclass(frozen=True)
class Remembers(Method):
    name: ClassVar[str] = "remembers"

    def step(self, work: Work, batch: Batch) -> None:
        work.memory["steps"] = work.memory.get("steps", torch.tensor(0)) + 1
        super().step(work, batch)

    def report(self, work: Work) -> Tensors:
        return {"steps": work.memory["steps"]}

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        replies = list(replies)
        server.memory["total"] = torch.stack([r.report["steps"] for r in replies]).sum()
        return {**server.state, "weights": torch.tensor([weigh(r) for r in replies])}


@dataclass(frozen=True)
class ByReport(Method):
    name: ClassVar[str] = "byreport"

    def report(self, work: Work) -> Tensors:
        return {"mine": torch.tensor(5.0)}

    def weigh(self, server: Server, reply: Reply) -> float:
        return reply.report["mine"].item()


@dataclass(frozen=True)
class Alone(Method):
    name: ClassVar[str] = "alone"
    ignores: ClassVar[frozenset[str]] = frozenset({"penalty"})

    def loss(self, work: Work, batch: Batch) -> Tensor:
        return work.net(batch.x).sum() * 0


@dataclass(frozen=True)
class Other(Alone):
    name: ClassVar[str] = "other"


def test_one_part_is_itself() -> None:
    assert compose(FedBN()) == FedBN()


def test_share_is_the_intersection() -> None:
    method = compose(FedBN(), SiloBN())
    net = tiny_net(method)
    assert method.share(net) == FedBN().share(net)


def test_penalties_are_summed_into_the_loss() -> None:
    plain, both = make_work(Method()), make_work(compose(Adds(), FedProx(mu=0.0)))
    assert both.method.loss(both, batch()).item() == pytest.approx(plain.method.loss(plain, batch()).item() + 2.0)


def test_each_part_has_its_own_corner() -> None:
    method = compose(Remembers(), ByReport())
    work = make_work(method)
    method.step(work, batch())
    method.step(work, batch())
    assert set(work.memory) == {"remembers/steps"}
    told = method.report(work)
    assert told["remembers/steps"].item() == 2 and told["byreport/mine"].item() == 5.0
    server = Server({})
    replies = [Reply(c, "train", 1, 3, report=told) for c in "ab"]
    state = method.merge(server, iter(replies), lambda r: method.weigh(server, r))
    assert state["weights"].tolist() == [5.0, 5.0]  # the weight is byreport's, from its own corner of the report
    assert server.memory["remembers/total"].item() == 4


def test_two_owners_of_a_verb_clash_by_name() -> None:
    with pytest.raises(UserError, match='"alone" and "other" do not compose: both define loss'):
        compose(Alone(), Other())


def test_a_verb_that_would_be_lost_is_a_clash() -> None:
    with pytest.raises(UserError, match='the penalty of "adds" would be lost'):
        compose(Alone(), Adds())


def test_a_part_twice_is_an_error() -> None:
    with pytest.raises(UserError, match="named twice"):
        compose(FedBN(), FedBN())


def test_names_and_fields() -> None:
    method = compose(FedBN(), FedProx(mu=0.5))
    assert isinstance(method, Composed)
    assert name_of(method) == "fedbn+fedprox"
    assert method.describe() == {"fedbn": {}, "fedprox": {"mu": 0.5}}


@pytest.mark.parametrize(
    ("one", "other"), [("bin", "fedfd"), ("fedfd", "dson"), ("ibn", "fedfd-a"), ("gperxan", "bin"), ("copa", "ibn")]
)
def test_two_parts_that_replace_the_norms_are_refused(one: str, other: str) -> None:
    with pytest.raises(UserError, match=f'"{one}" and "{other}" do not compose: the build of both replaces BatchNorm'):
        parse(f"{one}+{other}")


def test_norms_that_follow_rules_are_shared() -> None:
    assert name_of(parse("fedfd+adapter")) == "fedfd+adapter"
    assert name_of(parse("guide+ibn")) == "guide+ibn"


@pytest.mark.parametrize("name", ["fedsr", "fedadg", "fedbn+fedsr", "fedadg+silobn"])
def test_equal_weights_stay_equal_in_any_company(name: str) -> None:
    assert [parse(name).weigh(Server({}), Reply("a", "train", 1, n)) for n in (3, 999)] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["fedsr+ga", "ga+fedadg"])
def test_equal_weights_are_no_claim_to_the_verb(name: str) -> None:
    server = Server({}, memory={"ga/weight/a": torch.tensor(0.75)})
    assert parse(name).weigh(server, Reply("a", "train", 1, 999)) == 0.75
