"""Local privacy that a site sets for itself: the part `dp` at this site alone, with the noise for the whole run."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from tests.tiny_work import make_work
from unseen.core.accountant import epsilon_of
from unseen.core.errors import UserError
from unseen.engines.flower.privacy import LocalPrivacy
from unseen.engines.flower.site import SiteConfig
from unseen.federation.permission import check_allowed
from unseen.method import name_of, parts_of
from unseen.methods.dp import DP
from unseen.registry import parse

SITE = {"site": "east", "folder": "/nowhere"}


def test_a_site_adds_the_part_dp_with_the_noise_of_the_whole_run() -> None:
    method = LocalPrivacy(epsilon=4.0, delta=1e-5, clip=0.5).added_to(parse("fedprox+mixstyle"), rounds=30)
    assert name_of(method) == "fedprox+mixstyle+dp"
    part = parts_of(method)[-1]
    assert isinstance(part, DP) and part.clip == 0.5
    assert epsilon_of(1e-5, part.noise, 30) == pytest.approx(4.0, rel=1e-9)
    assert method.about.epsilon(30) == pytest.approx(4.0, rel=1e-9)


def test_what_leaves_is_noisy_and_says_its_epsilon() -> None:
    method = LocalPrivacy(2.0, 1e-5, 0.5).added_to(parse("fedavg"), rounds=2)
    work = make_work(method)
    method.prepare(work)
    assert method.report(work) == {}  # it has not moved: all that is left is noise
    noise = torch.cat([(v.detach() - work.received[n]).flatten().double() for n, v in work.net.named_parameters()])
    part = parts_of(method)[-1]
    assert isinstance(part, DP)
    assert float(noise.std()) == pytest.approx(2 * 0.5 * part.noise, rel=0.03)
    assert work.notes["dp.epsilon"] == [pytest.approx(2.0, rel=1e-9)]


def test_nothing_beyond_weights_leaves_a_private_site() -> None:
    own = SiteConfig.read({**SITE, "epsilon": 1.0, "allow": "weights,statistics"})
    assert own.allow == "weights"
    with pytest.raises(UserError, match="only weights are allowed"):
        check_allowed(parse("stablefdg"), own.allow)  # before its survey, which no noise would cover


def test_noise_is_not_added_twice() -> None:
    with pytest.raises(UserError, match="adds noise by itself"):
        LocalPrivacy(1.0, 1e-5, 1.0).added_to(parse("fedprox+dp"), 2)


def test_the_node_config_says_it() -> None:
    assert LocalPrivacy.read(SITE) is None and SiteConfig.read(SITE).allow == "weights,statistics"
    assert LocalPrivacy.read({"epsilon": 3, "clip": 2}) == LocalPrivacy(3.0, 1e-5, 2.0)
    with pytest.raises(UserError, match="epsilon"):
        LocalPrivacy.read({"epsilon": 0})
    assert SiteConfig.read({**SITE, "secure": True}).secure
    with pytest.raises(UserError, match="true or false"):
        SiteConfig.read({**SITE, "secure": "perhaps"})
