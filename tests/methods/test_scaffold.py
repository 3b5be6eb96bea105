from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import PLAN, batch, make_work
from unseen.core.errors import UserError
from unseen.core.types import Reply, Server
from unseen.federation.client_state import ClientStates
from unseen.method import compose
from unseen.methods.fedbn import FedBN
from unseen.methods.scaffold import Scaffold

KEY = "head.weight"


def test_gradient_and_new_control_variate_by_hand() -> None:
    method = Scaffold()
    plan = replace(PLAN.optimizer, lr=0.1, momentum=0.0)
    work = make_work(method, optimizer=plan, local_steps=2)
    rng = torch.Generator().manual_seed(3)
    c = {key: torch.randn(p.shape, generator=rng) * 0.01 for key, p in work.net.named_parameters()}
    own = {key: torch.randn(p.shape, generator=rng) * 0.01 for key, p in work.net.named_parameters()}
    work.brief, work.memory = dict(c), dict(own)
    work.optimizers["main"] = work.optimizer(work.net.trainable())
    method.prepare(work)
    x = work.net.head.weight.detach().numpy().copy()

    for seed in range(2):
        before = work.net.head.weight.detach().clone()
        method.step(work, batch(seed=seed))
        taken = (before - work.net.head.weight.detach()).numpy()
        np.testing.assert_allclose(taken, 0.1 * work.net.head.weight.grad.numpy(), rtol=1e-3, atol=1e-7)
    statistics = method.report(work)
    y = work.net.head.weight.detach().numpy()
    expected = own[KEY].numpy() - c[KEY].numpy() + (x - y) / (2 * 0.1)
    np.testing.assert_allclose(work.memory[KEY].numpy(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(statistics[KEY].numpy(), expected - own[KEY].numpy(), rtol=1e-4, atol=1e-6)


def test_the_gradient_is_edited_by_c_minus_c_i() -> None:
    method = Scaffold()
    work = make_work(method)
    work.brief = {key: torch.full_like(p, 0.5) for key, p in work.net.named_parameters()}
    work.memory = {key: torch.full_like(p, 0.2) for key, p in work.net.named_parameters()}
    method.prepare(work)
    for parameter in work.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    method.gradient(work)
    for parameter in work.net.parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), 1.3, rtol=1e-6)


def test_with_momentum_a_constant_gradient_is_its_own_control_variate() -> None:
    """(x - y) / (K * lr) would be up to ten times the gradient, and the correction ten times too large."""
    method = Scaffold()
    work = make_work(method, local_steps=4)
    method.prepare(work)
    for _ in range(4):
        for parameter in work.net.parameters():
            parameter.grad = torch.full_like(parameter, 0.25)
        work.optimizers["main"].step()
    statistics = method.report(work)
    np.testing.assert_allclose(statistics[KEY].numpy(), 0.25, rtol=1e-4)


def test_the_server_tells_the_mean_of_the_control_variates_of_all_it_met() -> None:
    method = Scaffold()
    server = Server({"w": torch.zeros(1)})

    def hear(**changes: float) -> None:
        for client, change in changes.items():
            method.hear(server, Reply(client, "train", 1, 1, report={"w": torch.tensor([change])}))
        server.met |= set(changes)

    assert method.brief(server, {}, ["a"])["a"] == {}  # nothing is known yet
    hear(a=1.0, b=3.0)
    first = method.brief(server, {}, ["a"])["a"]["w"]
    assert first.item() == pytest.approx(2.0)
    hear(b=2.0, c=6.0)  # a, which was not asked, still has 1; b has 5; c has 6
    assert method.brief(server, {}, ["b"])["b"]["w"].item() == pytest.approx((1 + 5 + 6) / 3)
    assert first.item() == pytest.approx(2.0)  # what was sent before does not change


@pytest.mark.parametrize("name", ["scaffold+copa", "scaffold+ga", "dson+scaffold", "fednova+scaffold"])
def test_composes_with_parts_that_the_server_hears_too(name: str, tmp_path: Path) -> None:
    """Each hears its own report, and it learns: c is the mean of the clients' c_i, whatever the other part does."""
    fed = federation(name, tmp_path, rounds=6, local_steps=4)
    fed.run()
    kept = [ClientStates(tmp_path).load(client, 9)[1] for client in fed.clients]
    totals = {key: value for key, value in fed.server.memory.items() if key.startswith("scaffold/")}
    assert totals
    for key, total in totals.items():
        torch.testing.assert_close(total, sum(memory[key] for memory in kept), rtol=1e-3, atol=1e-5)
    assert fed.accuracy() > 0.6


def test_clients_that_are_not_asked_keep_theirs(tmp_path: Path) -> None:
    fed = federation("scaffold", tmp_path, rounds=2, local_steps=1, participation=1 / 3)
    fed.run()
    kept = {client: ClientStates(tmp_path).load(client, 3)[1] for client in fed.server.met}
    total = sum(memory[KEY] for memory in kept.values())
    torch.testing.assert_close(fed.server.memory[KEY], total, rtol=1e-4, atol=1e-6)


def test_what_a_client_keeps_is_not_corrected_and_not_told() -> None:
    method = compose(FedBN(), Scaffold())
    work = make_work(method)
    method.prepare(work)
    statistics = {key.removeprefix("scaffold/") for key in method.report(work)}
    share = method.share(work.net)
    assert statistics == {key for key, _ in work.net.named_parameters() if key in share.down}
    assert statistics < {key for key, _ in work.net.named_parameters()}


def test_adam_is_refused() -> None:
    method = Scaffold()
    work = make_work(method, optimizer=replace(PLAN.optimizer, name="adam"))
    with pytest.raises(UserError, match="sgd"):
        method.prepare(work)
