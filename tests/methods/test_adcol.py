from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.methods.test_fediir import softmax
from tests.tiny_federation import federation, same
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.forms import Asked, form_fault
from unseen.core.seeding import torch_generator
from unseen.core.tensors import unprefixed
from unseen.core.types import Reply, Server
from unseen.federation.permission import check_allowed, check_secure
from unseen.methods.adcol import ADCOL, HIDDEN, confusion, discriminate, untrained
from unseen.registry import parse


def given(size: int, clients: int, seed: int = 0) -> dict[str, Tensor]:
    """A discriminator with statistics and affine maps of its own."""
    rng = torch.Generator().manual_seed(seed)
    state = untrained(size, rng)
    state["clients"] = torch.randn(clients, HIDDEN, generator=rng) / 8
    for layer in ("first", "second"):
        for name in ("mean", "variance", "scale", "shift"):
            state[f"{layer}.{name}"] = 0.5 + torch.rand(HIDDEN, generator=rng)
    return state


def numpy_logits(state: dict[str, Tensor], rows: np.ndarray) -> np.ndarray:
    s = {key: value.double().numpy() for key, value in state.items()}
    for layer in ("first", "second"):
        rows = rows @ s[f"{layer}.weight"].T
        rows = (rows - s[f"{layer}.mean"]) / np.sqrt(s[f"{layer}.variance"] + 1e-5)
        rows = np.maximum(rows * s[f"{layer}.scale"] + s[f"{layer}.shift"], 0)
    logits: np.ndarray = rows @ s["clients"].T
    return logits


def told(client: str, rows: Tensor) -> Reply:
    return Reply(client, "train", 1, len(rows), report={"features": rows})


def cloud(centre: float, count: int = 200, seed: int = 0) -> Tensor:
    return centre + torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def test_the_confusion_by_hand() -> None:
    logits = np.array([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5]])
    p = softmax(logits)
    by_hand = (np.log(1 / 3 / p) / 3).sum(1)
    assert by_hand[0] == pytest.approx(0)
    assert confusion(torch.tensor(logits)).item() == pytest.approx(by_hand.mean())
    assert confusion(torch.tensor([[1.0], [-4.0]])).item() == 0  # of a single client there is nothing to tell


def test_the_penalty_by_hand_and_only_the_features_follow_it() -> None:
    state = given(256, 3)
    work, images = make_work(ADCOL(mu=0.3), brief=dict(state)), batch()
    work.method.prepare(work)
    features = torch.randn(8, 256, generator=torch.Generator().manual_seed(2)).requires_grad_()
    term = work.method.penalty(work, images, features)
    p = softmax(numpy_logits(state, features.detach().double().numpy()))
    assert term.item() == pytest.approx(0.3 * np.log(1 / 3 / p).mean(1).mean(), rel=1e-4)
    term.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None and float(features.grad.abs().sum()) > 0
    assert not any(value.requires_grad for value in state.values())
    less = work.method.penalty(work, images, (features - 2 * features.grad).detach())
    assert 0 < less.item() < term.item()
    assert same(dict(work.brief), given(256, 3))  # BatchNorm rests too


def test_a_client_sends_the_features_of_its_last_steps() -> None:
    work, images = make_work(ADCOL(images=12)), batch()
    work.method.prepare(work)
    rows = torch.randn(24, 256, requires_grad=True)
    for step in range(3):
        assert work.method.penalty(work, images, rows[8 * step : 8 * step + 8]).item() == 0  # nobody is told apart yet
    report = work.method.report(work)
    assert torch.equal(report["features"], rows[12:].detach()) and not report["features"].requires_grad
    asked = Asked(work.net, work.plan, work.net.share_all(), 1, 32)
    forms = work.method.forms(asked).report
    assert form_fault(forms, (), report) == ""
    for rows in (torch.zeros(13, 256), torch.zeros(4, 255), torch.full((4, 256), 1e7)):
        assert form_fault(forms, (), {"features": rows})


def test_the_server_learns_to_tell_two_clients_apart() -> None:
    method, server = ADCOL(), Server({}, seed=5)
    assert method.brief(server, {}, ["a", "b"]) == {}
    method.hear(server, told("b", cloud(1.0)))
    method.hear(server, told("a", cloud(-1.0, seed=1)))
    notes = method.brief(server, {}, ["a", "c"])
    assert set(notes) == {"a", "c"} and same(dict(notes["a"]), dict(notes["c"]))
    new = torch.cat([cloud(-1.0, seed=2), cloud(1.0, seed=3)])
    right = discriminate(notes["a"], new).argmax(1) == torch.arange(2).repeat_interleave(200)
    assert right.float().mean() > 0.9
    midway = confusion(discriminate(notes["a"], cloud(0.0, seed=4)))
    assert confusion(discriminate(notes["a"], new)) > 2 * midway
    assert not any(key.startswith("features/") for key in server.memory)
    assert same(dict(method.brief(server, {}, ["a"])["a"]), dict(notes["a"]))  # a round that is tried again


def test_the_first_step_of_the_server_by_hand() -> None:
    """One step of SGD on the last layer: minus rate times the errors times what the hidden layers give."""
    method, server = ADCOL(epochs=1, rate=0.1), Server({}, seed=5)
    rows = {"a": cloud(-1.0, 20), "b": cloud(1.0, 30, seed=1)}  # fewer than a batch
    for client, features in rows.items():
        method.hear(server, told(client, features))
    found = method.brief(server, {}, ["a"])["a"]
    rng = torch_generator(5, round=1, purpose="adcol discriminator")
    state = untrained(6, rng)
    start = (2 * torch.rand(2, HIDDEN, generator=rng) - 1) / HIDDEN**0.5
    x = torch.cat([rows["a"], rows["b"]]).double().numpy()
    for layer in ("first", "second"):
        z = x @ state[f"{layer}.weight"].double().numpy().T
        np.testing.assert_allclose(found[f"{layer}.mean"], 0.1 * z.mean(0), atol=1e-5)
        np.testing.assert_allclose(found[f"{layer}.variance"], 0.9 + 0.1 * z.var(0, ddof=1), rtol=1e-4)
        x = np.maximum((z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5), 0)
    errors = softmax(x @ start.double().numpy().T) - np.eye(2)[np.repeat([0, 1], [20, 30])]
    np.testing.assert_allclose(found["clients"], start.double().numpy() - 0.1 * errors.T @ x / 50, atol=1e-5)


def test_a_client_that_comes_later_gets_a_row_and_the_others_keep_theirs() -> None:
    method, server = ADCOL(rate=1e-9), Server({}, seed=5)
    method.hear(server, told("b", cloud(1.0)))
    before = method.brief(server, {}, ["b"])["b"]["clients"]
    server.round = 1
    for client, centre in (("a", -1.0), ("c", 3.0)):
        method.hear(server, told(client, cloud(centre)))
    after = method.brief(server, {}, ["b"])["b"]["clients"]
    assert before.shape == (1, HIDDEN) and after.shape == (3, HIDDEN)
    torch.testing.assert_close(after[:1], before)
    assert {key: int(seat) for key, seat in unprefixed("seat/", server.memory).items()} == {"b": 0, "a": 1, "c": 2}


def test_the_first_round_is_fedavgs_and_later_ones_are_not(tmp_path: Path) -> None:
    ours = federation(ADCOL(mu=5.0), tmp_path / "ours")
    without, fedavg = (federation(ADCOL(mu=0.0), tmp_path / "0"), federation("fedavg", tmp_path / "fedavg"))
    for fed in (ours, without, fedavg):
        fed.run(rounds=1)
    assert same(ours.server.state, fedavg.server.state)
    for fed in (ours, without, fedavg):
        fed.run()
    assert same(without.server.state, fedavg.server.state)
    assert not same(ours.server.state, fedavg.server.state)
    assert unprefixed("discriminator/", ours.server.memory)["clients"].shape == (3, HIDDEN)
    assert set(ours.server.state) == set(tiny_net(parse("fedavg")).state_dict())  # it is no part of the model


def test_what_it_tells_is_refused_where_only_weights_may_leave() -> None:
    with pytest.raises(UserError, match='"adcol" does not go with --secure'):
        check_secure(ADCOL())
    with pytest.raises(UserError, match='"adcol" sends more than weights'):
        check_allowed(ADCOL(), "weights")
    with pytest.raises(UserError, match='"dp" needs clients that tell their weights alone'):
        parse("adcol+dp")


@pytest.mark.parametrize("field", ["images", "epochs"])
def test_nothing_to_learn_from_is_refused(field: str) -> None:
    with pytest.raises(UserError, match=f"adcol: {field} is 0; give 1 or more"):
        parse("adcol", {field: "0"})
