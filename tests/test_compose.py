"""Composition: order, sums, scopes, owners, clashes."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, cast

import pytest
import torch
from torch import Tensor, nn

from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.types import Batch, Order, Reply, Server, Tensors, Work
from unseen.method import (
    BY_VARIANT,
    Composed,
    Method,
    ScopedMapping,
    Traits,
    Weigh,
    changed_fields,
    compose,
    name_of,
    parts_of,
)
from unseen.methods.fedbn import FedBN
from unseen.methods.fedprox import FedProx
from unseen.methods.silobn import SiloBN
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.registry import parse, registered


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

    def hear(self, server: Server, reply: Reply) -> None:
        server.memory["total"] = server.memory.get("total", torch.tensor(0)) + reply.report["steps"]

    def merge(self, server: Server, replies: Iterable[Reply], weigh: Weigh) -> Tensors:
        replies = list(replies)
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
    traits: ClassVar[Traits] = Traits(ignores=frozenset({"penalty"}))

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


def test_each_part_has_its_own_scope() -> None:
    method = compose(Remembers(), ByReport())
    work = make_work(method)
    method.step(work, batch())
    method.step(work, batch())
    assert set(work.memory) == {"remembers/steps"}
    statistics = method.report(work)
    assert statistics["remembers/steps"].item() == 2 and statistics["byreport/mine"].item() == 5.0
    server = Server({})
    replies = [Reply(c, "train", 1, 3, report=statistics) for c in "ab"]
    for reply in replies:
        method.hear(server, reply)
    state = method.merge(server, iter(replies), lambda r: method.weigh(server, r))
    assert state["weights"].tolist() == [5.0, 5.0]  # the weight is byreport's, from its own scope of the report
    assert server.memory["remembers/total"].item() == 4


@dataclass(frozen=True)
class Side(Method):
    """Has a side network with an optimizer of its own, which is called as in every other such part."""

    name: ClassVar[str] = "side"
    traits: ClassVar[Traits] = Traits(keeps_optimizers=frozenset({"side"}))
    rate: float = 0.5

    def build(self, net: Net) -> Net:
        net.extras[self.name] = nn.Linear(2, 2)
        return net

    def prepare(self, work: Work) -> None:
        own = list(work.net.extras[self.name].parameters())
        work.withdraw(own)
        work.optimizers["side"] = torch.optim.SGD(own, lr=self.rate, momentum=0.9)
        work.scratch["start"] = [p.detach().clone() for p in own]

    def penalty(self, work: Work, batch: Batch, features: Tensor) -> Tensor:
        loss = work.net.extras[self.name](torch.ones(1, 2)).sum()
        self.descend(work, loss, "side")
        return features.new_zeros(())

    def report(self, work: Work) -> Tensors:
        start = cast(list[Tensor], work.scratch["start"])
        now = [p.detach() for p in work.net.extras[self.name].parameters()]
        return {"moved": torch.stack([(a - b).abs().max() for a, b in zip(start, now, strict=True)]).max()}


@dataclass(frozen=True)
class SecondSide(Side):
    name: ClassVar[str] = "second"
    rate: float = 0.125


def test_optimizers_and_scratch_of_one_name_do_not_collide() -> None:
    method = compose(Side(), SecondSide())
    work = make_work(method)
    method.prepare(work)
    assert set(work.optimizers) == {"main", "side/side", "second/side"}
    assert [work.optimizers[f"{name}/side"].param_groups[0]["lr"] for name in ("side", "second")] == [0.5, 0.125]
    method.step(work, batch())
    moved = {name: float(value) for name, value in method.report(work).items()}
    assert moved == {"side/moved": pytest.approx(0.5), "second/moved": pytest.approx(0.125)}


def test_optimizers_of_parts_are_kept_between_rounds(tmp_path: Path) -> None:
    """With momentum .9 and a gradient of one everywhere, the first step of the second round is 1.9 rates long."""
    fed = federation(compose(Side(), SecondSide()), tmp_path, rounds=2, local_steps=1)
    assert fed.method.about.keeps_optimizers == {"side/side", "second/side"}
    first = fed.runner.reply("a", Order("train", 1, fed.server.state))
    second = fed.runner.reply("a", Order("train", 2, fed.server.state))
    assert first.report["side/moved"].item() == pytest.approx(0.5)
    assert second.report["side/moved"].item() == pytest.approx(0.5 * 1.9)
    assert second.report["second/moved"].item() == pytest.approx(0.125 * 1.9)


def test_the_main_optimizer_is_the_same_for_all_parts() -> None:
    whole: dict[str, object] = {"main": 1, "one/side": 2, "other/side": 3}
    part = ScopedMapping(whole, "one/", frozenset({"main"}))
    assert dict(part) == {"main": 1, "side": 2} and len(part) == 2
    part["main"], part["new"] = 4, 5
    assert whole == {"main": 4, "one/side": 2, "other/side": 3, "one/new": 5}
    del part["side"]
    assert "one/side" not in whole


def test_traits_of_parts_become_those_of_the_whole() -> None:
    one = Traits(sends="styles", norms="BIN", counts_images=False, ignores=frozenset({"loss"}))
    two = Traits(sends="heads", remark="ours", needs_full_state=True, keeps_optimizers=frozenset({"main"}))
    assert one + two == Traits(
        sends="styles; heads",
        remark="ours",
        norms="BIN",
        counts_images=False,
        needs_full_state=True,
        keeps_optimizers=frozenset({"main"}),
        ignores=frozenset({"loss"}),
    )
    assert Traits() + one == one + Traits() == one
    assert parse("ga+stablefdg", {"sharing": "none"}).about.sends == parse("ga").about.sends
    assert parse("fedbn+ccst").about.remark == "weight-free, ours"


# --- variants --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Varied(Method):
    name: ClassVar[str] = "varied"
    variants: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "ours": {"rate": 0.0, "deep": False},
        "paper": {"rate": 2.0, "deep": True},
    }

    variant: str = "ours"
    rate: float = BY_VARIANT
    deep: bool = BY_VARIANT
    other: float = 1.0


def test_a_variant_sets_what_was_not_given() -> None:
    assert (Varied().rate, Varied().deep) == (0.0, False)
    assert (Varied("paper").rate, Varied("paper").deep) == (2.0, True)
    assert (Varied("paper", rate=0.0).rate, Varied("paper", deep=False).deep) == (0.0, False)  # what was given wins
    assert Varied("paper") == Varied("paper", 2.0, True)
    with pytest.raises(UserError, match=r'no variant "papr".*Did you mean "paper".*varied has ours, paper'):
        Varied("papr")


def test_changed_fields_are_those_that_the_variant_does_not_set() -> None:
    assert changed_fields(Varied()) == changed_fields(Varied(rate=0.0)) == {}
    assert changed_fields(Varied("paper")) == {"variant": "paper"}
    assert changed_fields(Varied("paper", rate=0.0)) == {"variant": "paper", "rate": 0.0}
    assert changed_fields(Varied(other=2.0)) == {"other": 2.0}


@pytest.mark.parametrize("name", [name for name, kind in registered().items() if kind.variants])
def test_every_variant_sets_the_same_fields_and_is_what_it_is_called(name: str) -> None:
    kind = registered()[name]
    own = {f.name: f.default for f in fields(kind)}
    assert own["variant"] == next(iter(kind.variants))  # the first is the default
    assert typing.get_args(typing.get_type_hints(kind)["variant"]) == tuple(kind.variants)
    filled = {field for field, default in own.items() if default is BY_VARIANT}
    for variant, values in kind.variants.items():
        assert set(values) <= filled and None not in values.values()
        assert set(values) == set(next(iter(kind.variants.values())))
        assert changed_fields(parse(name, {"variant": variant})) == (
            {} if variant == own["variant"] else {"variant": variant}
        )


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
    assert [changed_fields(part) for part in parts_of(method)] == [{}, {"mu": 0.5}]


@pytest.mark.parametrize(
    ("one", "other"), [("bin", "fedfd-a"), ("adapter", "bin"), ("ibn", "fedfd-a"), ("gperxan", "bin"), ("copa", "ibn")]
)
def test_two_parts_that_replace_the_norms_are_refused(one: str, other: str) -> None:
    with pytest.raises(UserError, match=f'"{one}" and "{other}" do not compose: the build of both replaces BatchNorm'):
        parse(f"{one}+{other}")


def test_two_heads_are_refused() -> None:
    with pytest.raises(UserError, match='"moon" and "fedadg" do not compose: the build of both replaces the head, by'):
        parse("moon+fedadg")
    assert name_of(parse("moon+fedadg", {"moon.projection": "0"})) == "moon+fedadg"  # nothing is replaced


# Pairs that were taken and then broke in the first round, or trained something else than both.
@pytest.mark.parametrize(
    ("one", "other", "need"),
    [
        ("fishr", "fedsr", "a linear head"),
        ("guide", "copa", "the server's head at all clients"),
        ("mcgdm", "copa", "the server's head at all clients"),
        ("fediir", "stablefdg", "a head on the net's own features"),
        ("fedlgf", "stablefdg", "a head on the net's own features"),
        ("feddgmoe", "jigen", "a net in which no other part trains something of its own"),
        ("bin", "fedclip", "BatchNorm"),
        ("fedfd", "promptfl", "BatchNorm"),
        ("promptfl", "doprompt", "the only prompt"),
        ("dp", "scaffold", "clients that tell their weights alone"),
        ("dp", "fedbn", "clients that load all that they send"),
    ],
)
def test_a_part_that_needs_what_another_takes_away_is_refused(one: str, other: str, need: str) -> None:
    for name in (f"{one}+{other}", f"{other}+{one}", f"{other}+fedprox+{one}"):
        with pytest.raises(UserError, match=f"do not compose.* needs {re.escape(need)}, which it cannot have beside"):
            parse(name)


def test_needs_follow_the_fields() -> None:
    for name, field, value in (("copa+fedlgf", "far", "0"), ("fedfd+dp", "base", "fedavg")):
        with pytest.raises(UserError):
            parse(name)
        assert name_of(parse(name, {field: value})) == name
    assert name_of(parse("stablefdg+fediir", {"style_only": "true"})) == "stablefdg+fediir"


@pytest.mark.parametrize("name", ["dann+fedsr", "dann+moon", "copa+moon", "jigen+moon"])
def test_who_builds_a_head_builds_first(name: str, tmp_path: Path) -> None:
    """What others build fits the features that the head reads, whatever the order of the names."""
    method = parse(name, {"projection": "24"} if "moon" in name else {"size": "24"})
    assert isinstance(method, Composed)
    net = method.build(create_net("convnet", 3, image_size=16))
    other = compose(*reversed(method.parts)).build(create_net("convnet", 3, image_size=16))
    assert {key: value.shape for key, value in net.state_dict().items()} == {
        key: value.shape for key, value in other.state_dict().items()
    }


def test_norms_that_follow_rules_are_shared() -> None:
    for name in ("fedfd+adapter", "bin+fedfd", "fedfd+dson"):
        assert name_of(parse(name)) == name
    assert name_of(parse("guide+ibn")) == "guide+ibn"


@pytest.mark.parametrize("name", ["fedsr", "fedadg", "fedbn+fedsr", "fedadg+silobn"])
def test_equal_weights_stay_equal_in_any_company(name: str) -> None:
    assert [parse(name).weigh(Server({}), Reply("a", "train", 1, n)) for n in (3, 999)] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["fedsr+ga", "ga+fedadg"])
def test_equal_weights_are_no_claim_to_the_verb(name: str) -> None:
    server = Server({}, memory={"ga/weight/a": torch.tensor(0.75)})
    assert parse(name).weigh(server, Reply("a", "train", 1, 999)) == 0.75
