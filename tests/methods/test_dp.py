"""Local and central differential privacy: clipping and noise by hand, the account against known numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation, same
from tests.tiny_work import make_work
from unseen.core.accountant import delta_of, epsilon_of, multiplier_of
from unseen.core.errors import UserError
from unseen.core.tensors import prefixed
from unseen.core.types import Reply, Server, Share
from unseen.method import Method, compose
from unseen.methods.centraldp import CentralDP
from unseen.methods.dp import DP
from unseen.methods.fedprox import FedProx
from unseen.nets.net import Net
from unseen.registry import parse


# --- the account -------------------------------------------------------------------------------------------------------
# epsilon for delta = 1e-5 by the PLDAccountant of dp-accounting 0.6.0, which is exact up to its grid
@pytest.mark.parametrize(
    ("multiplier", "rounds", "epsilon"),
    [(3.7304, 1, 1.0000682), (1.0, 30, 37.6224569), (5.0, 30, 4.8660828), (0.5, 6, 32.1766796)],
)
def test_epsilon_of_a_run_is_that_of_dp_accounting(multiplier: float, rounds: int, epsilon: float) -> None:
    assert epsilon_of(1e-5, multiplier, rounds) == pytest.approx(epsilon, rel=1e-6)
    assert multiplier_of(epsilon, 1e-5, rounds) == pytest.approx(multiplier, rel=1e-6)


def test_delta_is_the_integral_that_defines_it() -> None:
    """delta = integral of max(0, p - e^epsilon q), for normals that are one sensitivity apart."""
    x = np.linspace(-40, 40, 400_001)
    density = [np.exp(-((x - m) ** 2) / (2 * 2.0**2)) / math.sqrt(2 * math.pi * 2.0**2) for m in (1.0, 0.0)]
    integral = np.maximum(0, density[0] - math.exp(0.7) * density[1]).sum() * (x[1] - x[0])
    assert delta_of(0.7, 2.0, 1) == pytest.approx(integral, rel=1e-6)
    assert epsilon_of(1e-5, 0.0, 1) == math.inf


def test_a_composed_method_tells_the_epsilon_of_the_run() -> None:
    method = compose(FedProx(), DP(noise=5.0))
    assert method.about.epsilon(30) == pytest.approx(4.8660828, rel=1e-6)
    assert compose(FedProx(), DP(noise=0)).about.epsilon(30) is None  # clipping alone is no privacy
    assert FedProx().about.epsilon(30) is None


# --- local -------------------------------------------------------------------------------------------------------------
def test_a_change_is_clipped_to_the_norm() -> None:
    work = make_work(DP(clip=0.5, noise=0))
    with torch.no_grad():
        for parameter in work.net.parameters():
            parameter.add_(0.1)
    moved = {name: value.clone() for name, value in work.net.state_dict().items()}
    work.method.report(work)
    change = {
        n: v.double() - work.received[n].double() for n, v in work.net.state_dict().items() if v.is_floating_point()
    }
    assert math.sqrt(sum(float(v.square().sum()) for v in change.values())) == pytest.approx(0.5, rel=1e-4)
    whole = moved["head.bias"].double() - work.received["head.bias"].double()
    cosine = torch.nn.functional.cosine_similarity(change["head.bias"], whole, dim=0)
    assert cosine == pytest.approx(1.0, abs=1e-5)


def test_noise_has_the_spread_of_the_sensitivity() -> None:
    work = make_work(DP(clip=0.5, noise=0.3))
    work.method.report(work)  # it has not moved: all that is left is noise
    change = torch.cat(
        [(value.double() - work.received[name].double()).flatten() for name, value in work.net.named_parameters()]
    )
    assert float(change.detach().std()) == pytest.approx(2 * 0.5 * 0.3, rel=0.03)
    assert float(work.net.state_dict()["backbone.blocks.0.1.running_var"].min()) > 0
    assert int(work.net.state_dict()["backbone.blocks.0.1.num_batches_tracked"]) == 0


def test_noise_is_the_same_for_the_same_seed_and_another_with_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unseen.core import seeding

    one, two = (federation(DP(noise=0.01), tmp_path / name, rounds=1) for name in ("one", "two"))
    one.run()
    two.run()
    assert same(one.server.state, two.server.state)
    monkeypatch.setattr(seeding, "_SECRET", ["only this site knows"])
    three = federation(DP(noise=0.01), tmp_path / "three", rounds=1)
    three.run()
    assert not same(one.server.state, three.server.state)


@pytest.mark.parametrize("other", ["stablefdg", "fedbn"])
def test_what_is_not_covered_is_refused(other: str) -> None:
    with pytest.raises(UserError, match='"dp" needs clients that'):
        parse(f"{other}+dp")


@dataclass(frozen=True)
class KeepsTheHead(Method):
    """A method of one's own that does not say so in its traits."""

    name: ClassVar[str] = "keepsthehead"

    def share(self, net: Net) -> Share:
        return net.share_all().keeping(frozenset(prefixed("head.", net.head.state_dict())))


def test_what_is_kept_at_a_client_is_seen_in_the_first_round_at_the_latest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keeps a part of it at the client"):
        federation(compose(KeepsTheHead(), DP()), tmp_path, rounds=1).run()


# --- central -----------------------------------------------------------------------------------------------------------
def test_central_mean_by_hand() -> None:
    """Changes (3, 4) and (0, 1), clipped to 1: (0.6, 0.8) and (0, 1); their plain mean, whatever the images."""
    server = Server({"w": torch.zeros(2), "n": torch.tensor(3)})
    replies = [
        Reply("a", "train", 1, 10, {"w": torch.tensor([3.0, 4.0]), "n": torch.tensor(9)}),
        Reply("b", "train", 1, 1, {"w": torch.tensor([0.0, 1.0]), "n": torch.tensor(9)}),
    ]
    state = CentralDP(clip=1.0, noise=0).merge(server, replies, lambda reply: 1.0)
    assert state["w"].tolist() == pytest.approx([0.3, 0.9])
    assert int(state["n"]) == 3


def test_central_noise_has_the_spread_of_the_sensitivity() -> None:
    server = Server({"w": torch.zeros(20_000)})
    replies = [Reply(c, "train", 1, 1, {"w": torch.zeros(20_000)}) for c in "abcd"]
    state = CentralDP(clip=2.0, noise=0.5).merge(server, replies, lambda reply: 1.0)
    assert float(state["w"].std()) == pytest.approx(2 * 2.0 * 0.5 / 4, rel=0.03)


def test_central_dp_refuses_a_part_that_weighs() -> None:
    with pytest.raises(UserError, match="weigh"):
        parse("centraldp+ga")
