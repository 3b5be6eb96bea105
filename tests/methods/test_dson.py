from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.tiny_work import PLAN, make_work, random_images, site, tiny_net
from unseen.core.errors import UserError
from unseen.core.tensors import load, snapshot
from unseen.core.types import Reply, Server, Tensors
from unseen.engines.local import LocalEngine
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.federation.ledger import Ledger
from unseen.federation.measure import measure
from unseen.federation.server import evaluate, federate
from unseen.methods.dson import DSON
from unseen.nets.backbones import create_net
from unseen.nets.net import Net
from unseen.nets.norms import layers as norms

ROWS, TAKEN = "extras.branches.rows", "extras.branches.taken"


def built(branches: int = 3) -> Net:
    return DSON(branches=branches).build(create_net("convnet", 3, image_size=32, seed=1))


def train(method: DSON, net: Net, server: Server, client: str, images: int, seed: int) -> Reply:
    """One client's step by hand: load, prepare, step, report."""
    share = method.share(net)
    load(net, {key: server.state[key] for key in share.down})
    work = make_work(method, net=net, site=site(client))
    method.prepare(work)
    net.train()
    method.step(work, random_images(8, seed=seed).batch(torch.arange(8)))
    state = snapshot(net, share.up)
    return Reply(client, "train", 1, images, state=state, report=method.report(work))


def numpy_dson(
    x: np.ndarray, mix: np.ndarray, mean_C: np.ndarray, var_C: np.ndarray, gamma: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    a, b = 1 / (1 + np.exp(-mix))  # of the batch
    mean = (1 - a) * x.mean((2, 3), keepdims=True) + a * mean_C[None, :, None, None]
    var = (1 - b) * x.var((2, 3), keepdims=True) + b * var_C[None, :, None, None]
    return gamma[None, :, None, None] * (x - mean) / np.sqrt(var + 1e-5) + beta[None, :, None, None]


def norm_and_maps() -> tuple[norms.DSON, torch.Tensor]:
    torch.manual_seed(0)
    norm = norms.DSON(4)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.mix.copy_(torch.tensor([0.7, -1.5]))
    return norm, torch.randn(5, 4, 6, 3) * 2 + 1


@pytest.mark.parametrize("training", [True, False])
def test_layer_against_numpy(training: bool) -> None:
    norm, x = norm_and_maps()
    norm.train(training)
    maps = x.numpy().astype(np.float64)
    before_mean, before_var = norm.running_mean.numpy().copy(), norm.running_var.numpy().copy()
    mean_C = maps.mean((0, 2, 3)) if training else before_mean
    var_C = maps.var((0, 2, 3)) if training else before_var
    expected = numpy_dson(
        maps,
        norm.mix.detach().numpy(),
        mean_C,
        var_C,
        norm.weight.detach().numpy(),
        norm.bias.detach().numpy(),
    )
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    if training:
        np.testing.assert_allclose(norm.running_mean.numpy(), 0.9 * before_mean + 0.1 * mean_C, rtol=1e-4, atol=1e-6)
        unbiased = maps.var((0, 2, 3), ddof=1)
        np.testing.assert_allclose(norm.running_var.numpy(), 0.9 * before_var + 0.1 * unbiased, rtol=1e-4)
    else:
        np.testing.assert_array_equal(norm.running_mean.numpy(), before_mean)


def test_all_batch_and_all_instance_are_the_usual_layers() -> None:
    norm, x = norm_and_maps()
    with torch.no_grad():
        norm.mix.fill_(40.0)
    norm.eval()
    torch.testing.assert_close(norm(x), nn.BatchNorm2d.forward(norm, x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        norm.mix.fill_(-40.0)
    instance = nn.functional.instance_norm(x, weight=norm.weight, bias=norm.bias)
    torch.testing.assert_close(norm(x), instance, rtol=1e-4, atol=1e-5)


def test_pretrained_norms_are_taken_over() -> None:
    net = create_net("convnet", 3, image_size=32, seed=1)
    with torch.no_grad():
        for bn in net.norms(nn.BatchNorm2d):
            bn.weight.fill_(1.5)
            bn.running_var.fill_(2.5)
    DSON().build(net)
    for norm in net.norms(norms.DSON):
        assert bool((norm.weight == 1.5).all()) and bool((norm.running_var == 2.5).all())


def test_share_a_branch_is_private_and_the_room_only_comes_down() -> None:
    net = built()
    share = DSON().share(net)
    branch = net.state_of(norms.DSON)
    assert branch and not branch & (share.up | share.down)
    assert {ROWS, TAKEN} == share.down - share.up
    assert share.up < share.down


def federation(method: DSON, net: Net) -> tuple[Server, dict[str, Tensors]]:
    """Two clients, one round; each client's branch as it was when it replied."""
    server = Server(snapshot(net))
    method.brief(server, {}, ["a", "b"])  # seats
    replies, branches = [], {}
    initial = snapshot(net)
    for seed, (client, images) in enumerate([("a", 10), ("b", 30)]):
        load(net, initial)
        replies.append(train(method, net, server, client, images, seed))
        branches[client] = snapshot(net, net.state_of(norms.DSON))
    before = dict(server.state)
    for reply in replies:
        method.hear(server, reply)
    assert int(before[TAKEN].sum()) == 0  # tensors that orders and `Round.before` hold are not changed in place
    server.state = method.merge(server, iter(replies), lambda reply: method.weigh(server, reply))
    mean = 0.25 * replies[0].state["head.weight"] + 0.75 * replies[1].state["head.weight"]
    torch.testing.assert_close(server.state["head.weight"], mean)
    return server, branches


def test_prediction_is_the_mean_of_the_branches_probabilities() -> None:
    method, net = DSON(), built()
    server, branches = federation(method, net)
    x = random_images(4, seed=9).batch(torch.arange(4)).x
    net.eval()
    with torch.no_grad():
        probabilities = []
        for branch in branches.values():
            load(net, {**server.state, **branch})
            probabilities.append(net(x).softmax(1).numpy())
        assert not np.allclose(probabilities[0], probabilities[1])
        load(net, server.state)
        predicted = method.predict(net, x)
        alone = torch.cat([method.predict(net, x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_allclose(predicted.exp().numpy(), np.mean(probabilities, axis=0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(alone, predicted, rtol=1e-4, atol=1e-5)
    assert server.state[TAKEN].tolist() == [1, 1, 0]


def test_clients_keep_their_seat_and_others_stay() -> None:
    method, net = DSON(), built()
    server, _ = federation(method, net)
    rows = server.state[ROWS].clone()
    reply = train(method, net, server, "b", 30, seed=5)
    method.hear(server, reply)
    torch.testing.assert_close(server.state[ROWS][0], rows[0], rtol=0, atol=0)
    assert not torch.equal(server.state[ROWS][1], rows[1])
    assert server.state[TAKEN].tolist() == [1, 1, 0]


def test_while_it_trains_a_client_is_its_own_branch() -> None:
    method, net = DSON(), built()
    server, _ = federation(method, net)
    load(net, {key: server.state[key] for key in method.share(net).down})
    method.prepare(make_work(method, net=net))
    net.eval()
    x = random_images(3).batch(torch.arange(3)).x
    torch.testing.assert_close(method.predict(net, x), net(x), rtol=0, atol=0)


def test_more_clients_than_room_is_an_error_before_training() -> None:
    server = Server(snapshot(built(2)))
    assert DSON(branches=2).brief(server, {}, ["a", "b"]) == {}
    with pytest.raises(UserError, match="--set branches"):
        DSON(branches=2).brief(server, {}, ["a", "b", "c"])


def test_through_the_real_loop_with_partial_participation(tmp_path: Path) -> None:
    method = DSON()
    net = tiny_net(method)
    share = method.share(net)
    plan = replace(PLAN, rounds=4, participation=2)
    sites = {name: site(name, seed=seed) for seed, name in enumerate("abc")}
    runner = ClientRunner(method, net, plan, sites.__getitem__, ClientStates(tmp_path), lambda x, rng: x)
    server = Server(snapshot(net, sorted(share.up | share.down)))
    engine = LocalEngine(runner, list(sites))
    accuracies: dict[int, dict[str, float]] = {}
    for played in federate(method, share, plan, engine, server, Ledger()):
        if played.evaluation is not None:
            accuracies[played.evaluation.round] = {c: s.accuracy for c, s in played.evaluation.clients.items()}
    assert server.state[TAKEN].tolist() == [1, 1, 1]
    assert set(accuracies) == {1, 2, 3} and all(set(of) == set(sites) for of in accuracies.values())
    # What clients measured is the ensemble that a fresh net makes of the server's state alone.
    last = evaluate(engine, server.state, 4, Ledger())
    fresh = tiny_net(method, seed=5)
    load(fresh, server.state)
    for name, here in sites.items():
        score = measure(method.predict, fresh, here.validation, plan)
        assert score.correct == last.clients[name].correct
        assert score.loss == pytest.approx(last.clients[name].loss, rel=1e-5)
