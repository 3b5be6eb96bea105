"""`--allow weights`: a method that sends more is refused before the run, and a reply that carries more when it comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.federation.test_server import SHARE, STATE, Scripted, trained
from tests.small_runs import run_local, settings
from tests.tiny_work import PLAN
from unseen.core.errors import UserError
from unseen.core.types import Server
from unseen.federation.ledger import Ledger
from unseen.federation.server import federate
from unseen.method import Method


def test_a_method_that_sends_more_is_refused_before_the_run() -> None:
    for name in ("stablefdg", "fedadg", "fedprox+elcfs"):
        with pytest.raises(UserError, match="sends more than weights"):
            run_local(settings(method=name, allow="weights"))


def test_a_reply_that_carries_more_is_not_merged() -> None:
    more = {"a": {}, "b": {"styles": torch.ones(1)}}
    engine = Scripted("ab", lambda c, o: trained(c, o, 1.0 if c == "a" else 5.0, report=more[c]))
    for allow, expected in (("weights", 1.0), ("weights,statistics", 3.0)):
        server = Server(dict(STATE))
        plan = replace(PLAN, rounds=1, allow=allow)
        (played,) = federate(Method(), SHARE, plan, engine, server, Ledger())
        assert server.state["w"].tolist() == [expected, expected]
        assert bool(played.refused) is (allow == "weights")
        assert all('"styles" beyond the weights' in sentence for sentence in played.refused)


def test_the_word_is_checked_and_leaves_the_names_of_runs_alone() -> None:
    with pytest.raises(UserError, match="weights,statistics"):
        settings(allow="nothing")
    assert settings().digest() == settings(allow="weights,statistics").digest() != settings(allow="weights").digest()
    assert type(settings()).from_json(settings(allow="weights").to_json()).plan.allow == "weights"


def test_a_flower_site_has_a_word_of_its_own() -> None:
    pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")
    from unseen.engines.flower.site import SiteConfig

    own = {"site": "east", "folder": "/nowhere"}
    assert SiteConfig.read(own).allow == "weights,statistics"
    assert SiteConfig.read({**own, "allow": "weights"}).allow == "weights"
    with pytest.raises(UserError, match="no choice for allow"):
        SiteConfig.read({**own, "allow": "everything"})
