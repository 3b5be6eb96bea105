"""Every method's declaration of what it tells, held against what it really tells, and against what a liar sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from tests.attempts import attempt
from tests.tiny_federation import CLIENTS, Federation, federation, same
from unseen.core.forms import ANYTHING, Asked, Form, Forms, UpTo, form_fault
from unseen.core.types import Order, Reply, Server, Tensors
from unseen.federation.ledger import Ledger
from unseen.federation.server import Round, federate
from unseen.method import Method, compose, overrides
from unseen.registry import parse, registered

METHODS = list(registered())
TELLING = [name for name in METHODS if any(overrides(parse(name), verb) for verb in ("survey", "report"))]
LIAR = "b"


@dataclass
class Replayed:
    """Clients that answered once: their replies come again, those of one client twisted or not at all."""

    told: Mapping[tuple[str, str], Reply]
    twist: Callable[[Reply], Reply | None] = lambda reply: reply
    kind: str = "train"
    orders: list[Mapping[str, Order]] = field(default_factory=list)

    def clients(self) -> Sequence[str]:
        return CLIENTS

    def ask(self, orders: Mapping[str, Order]) -> Iterator[Reply]:
        self.orders.append(orders)
        for client, order in orders.items():
            reply: Reply | None = self.told[client, order.kind]
            assert reply is not None
            if client == LIAR and order.kind == self.kind:
                reply = self.twist(reply)
            if reply is not None:
                yield reply


def told(fed: Federation) -> dict[tuple[str, str], Reply]:
    """One round, with every reply written down."""
    kept: dict[tuple[str, str], Reply] = {}
    honest = fed.runner.reply

    def noted(client: str, order: Order) -> Reply:
        kept[client, order.kind] = reply = honest(client, order)
        return reply

    fed.runner.reply = noted  # type: ignore[method-assign]
    (played,) = fed.run()
    assert not played.refused
    return kept


def replay(fed: Federation, engine: Replayed, start: Tensors) -> tuple[Server, Round]:
    server = Server(dict(start), stepped=fed.server.stepped)
    (played,) = federate(fed.method, fed.share, fed.plan, engine, server, Ledger(), fed.checks(fed.plan))
    return server, played


def first(report: Tensors) -> str:
    return sorted(report)[0]


def spoilt(tensor: torch.Tensor) -> torch.Tensor:
    bad = tensor.clone()
    bad.view(-1)[0] = float("nan")
    return bad


TWISTS: dict[str, Callable[[Tensors], Tensors]] = {
    "is missing": lambda r: {name: value for name, value in r.items() if name != first(r)},
    "has shape": lambda r: {**r, first(r): r[first(r)].unsqueeze(0).unsqueeze(0)},
    "is torch.float16": lambda r: {**r, first(r): r[first(r)].to(torch.float16)},
    "NaN": lambda r: {**r, first(r): spoilt(r[first(r)])},
    "is not declared": lambda r: {**r, "intruder": torch.zeros(2)},
    "has shape (": lambda r: {**r, first(r): torch.zeros(1, dtype=r[first(r)].dtype).expand(10**6, *r[first(r)].shape)},
}


@pytest.mark.parametrize("name", TELLING)
def test_what_it_tells_fits_its_form_and_a_liar_is_refused(name: str, tmp_path: Path) -> None:
    fed = federation(name, tmp_path, rounds=1, local_steps=2)
    start = dict(fed.server.state)
    honest = told(fed)
    kinds = [kind for kind in ("survey", "train") if honest.get((LIAR, kind)) and honest[LIAR, kind].report]
    twists = TWISTS if kinds else {"is not declared": TWISTS["is not declared"]}
    for kind in kinds or ["train"]:
        without, _ = replay(fed, Replayed(honest, lambda reply: None, kind), start)
        for words, change in twists.items():
            engine = Replayed(honest, lambda reply, c=change: replace(reply, report=c(reply.report)), kind)  # type: ignore[misc]
            with attempt("form"):
                server, played = replay(fed, engine, start)
                (sentence,) = played.refused
                assert f'client "{LIAR}"' in sentence and words in sentence, sentence
                assert same(server.state, without.state) and same(dict(server.memory), dict(without.memory))


@pytest.mark.parametrize("name", METHODS)
def test_no_method_of_ours_is_heard_with_whatever_it_tells(name: str, tmp_path: Path) -> None:
    fed = federation(name, tmp_path, rounds=1)
    forms = fed.method.forms(Asked(fed.net, fed.plan, fed.share, 1, 24))
    assert forms.undeclared == ()
    assert bool(forms.report or forms.survey) <= bool(fed.method.about.sends)


def test_parts_declare_in_their_own_scope_and_survey_in_their_own_rounds(tmp_path: Path) -> None:
    fed = federation("scaffold+elcfs", tmp_path, rounds=1)
    one, two = (fed.method.forms(Asked(fed.net, fed.plan, fed.share, r, 24)) for r in (1, 2))
    assert set(one.survey) == {"elcfs/amplitudes"} and not two.survey
    assert one.report.keys() == two.report.keys() and all(name.startswith("scaffold/") for name in one.report)
    assert one.survey["elcfs/amplitudes"].shape[0] == UpTo(3)  # an eighth of 24 images


def test_a_method_of_ones_own_may_say_nothing(tmp_path: Path) -> None:
    class Own(Method):
        name = "own"

        def report(self, work):  # type: ignore[no-untyped-def]
            return {"anything": torch.ones(3)}

    assert Own().forms(None) == ANYTHING  # type: ignore[arg-type]
    assert compose(parse("fedavg"), Own()).forms(Asked(None, None, None, 1, 1)).undeclared == ("own/",)  # type: ignore[arg-type]
    fed = federation(Own(), tmp_path, rounds=1, local_steps=1)
    (played,) = fed.run()
    assert not played.refused and "up/statistics/anything" in fed.ledger.entries


def test_free_axes_and_bounds_by_hand() -> None:
    form = Form((UpTo(2), 3), least=torch.tensor([0.0, float("-inf"), 0.0]), most=9.0)
    assert form.fault(torch.tensor([[0.0, -5.0, 9.0]])) == ""
    assert form.fault(torch.zeros(3, 3)) == "has shape (3, 3), not (1 to 2, 3)"
    assert form.fault(torch.zeros(0, 3)) == "has shape (0, 3), not (1 to 2, 3)"
    assert form.fault(torch.tensor([[0.0, 0.0, -0.1]])) == "holds a number that is too small"
    assert form.fault(torch.tensor([[0.0, 9.5, 0.0]])) == "holds a number that is too large"
    assert form.fault(torch.zeros(1, 3, dtype=torch.int64)) == "is torch.int64, not torch.float32"
    huge = torch.zeros(1).expand(10**9)
    assert "256 MB" in form_fault({}, ("",), {"x": huge}) and "complex" in form_fault({}, ("",), {"x": huge[:1] * 1j})
    assert form_fault({}, ("own/",), {"other/x": huge[:1]}) == '"other/x" of its report is not declared by the method'
    assert Forms(survey={"a": form}).below("p/").survey == {"p/a": form}
