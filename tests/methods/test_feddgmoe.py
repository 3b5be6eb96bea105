from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tests.methods.test_fediir import softmax
from tests.tiny_federation import federation
from tests.tiny_work import batch, tiny_net
from unseen.core.errors import UserError
from unseen.core.tensors import load
from unseen.methods.feddgmoe import FedDGMoE
from unseen.nets.net import Net
from unseen.nets.parts.experts import Experts, imbalance, mixing, query

METHOD = FedDGMoE(ranks=(1, 3), kronecker=16, sharpness=4.0)


def unit(x: np.ndarray, axis: int) -> np.ndarray:
    shown: np.ndarray = x / np.linalg.norm(x, axis=axis, keepdims=True)
    return shown


def drawn(net: Net, seed: int) -> dict[str, torch.Tensor]:
    """Parameters of a client: the net's trained ones, moved."""
    rng = torch.Generator().manual_seed(seed)
    return {
        key: p.detach() + 0.3 * torch.randn(p.shape, generator=rng)
        for key, p in net.named_parameters()
        if p.requires_grad
    }


def test_a_token_takes_one_expert_of_kronecker_products_by_hand() -> None:
    net = tiny_net(METHOD).eval()
    load(net, {**net.state_dict(), **drawn(net, 1)})
    layers = net.norms(Experts)
    assert len(layers) == (len(list(net.backbone.blocks)) + 1) // 2  # type: ignore[arg-type]
    layer, rule = layers[1], net.backbone.expert_rule
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = layer(x).numpy() - layer.inner(x).numpy()
    left, right = rule.left.detach().numpy(), rule.right.detach().numpy()  # type: ignore[union-attr]
    experts = []
    for one, two in zip(layer.left, layer.right, strict=True):
        factors = [np.outer(left[j], right[j]) for j in range(16)]
        smalls = [one[j].detach().numpy() @ two[j].detach().numpy() for j in range(16)]
        experts.append(sum(np.kron(a, b) for a, b in zip(factors, smalls, strict=True)))
    w, b = (p.detach().numpy() for p in layer.project.parameters())
    for image in range(2):
        for token in range(5):
            here = x[image, token].numpy()
            cosines = unit(w @ here + b, 0) @ unit(layer.likeness.detach().numpy(), 0)
            shares = softmax((cosines * np.exp(min(layer.heat.item(), np.log(100))))[None])[0]
            best = shares.argmax()
            expected = shares[best] * here @ experts[best] + layer.bias.detach().numpy()
            np.testing.assert_allclose(found[image, token], expected, rtol=1e-3, atol=1e-4)
    layer.noise, layer.dropout = 1e-9, 0.0  # training makes whole matrices, to drop parts of them
    with torch.no_grad():
        torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=1e-3, atol=1e-4)


def test_a_mixture_is_the_net_with_the_mean_of_the_clients_parameters() -> None:
    net, x = tiny_net(METHOD).eval(), batch().x
    clients = [drawn(net, seed) for seed in (1, 2, 3)]
    stacked = {key: torch.stack([client[key] for client in clients]) for key in clients[0]}
    weights = torch.softmax(torch.randn(len(x), 3, generator=torch.Generator().manual_seed(5)), dim=1)
    with torch.no_grad(), mixing(net, weights, stacked):
        found = net.features(x)
    for image in range(len(x)):
        mean = {key: torch.einsum("k,k...->...", weights[image], value) for key, value in stacked.items()}
        load(net, {**net.state_dict(), **mean})
        with torch.no_grad():
            torch.testing.assert_close(net.features(x[image : image + 1])[0], found[image], rtol=1e-3, atol=1e-4)


def test_the_nearer_domain_counts_more_and_the_answer_is_by_the_mixture(tmp_path: Path) -> None:
    fed = federation(METHOD, tmp_path, rounds=1, local_steps=2)
    fed.run()
    load(fed.net, {**fed.runner.initial, **fed.server.state})
    net, x = fed.net.eval(), batch().x
    rows = net.extras["domains"].rows.numpy().astype("d")  # type: ignore[union-attr]
    with torch.no_grad():
        features = query(net, x, METHOD.last).numpy().astype("d")
        found = METHOD.weights(net, x).numpy()
        answers = METHOD.predict(net, x)
    cosines = []
    for row in rows:
        width = np.sqrt(row[64:]) + 1e-5
        cosines.append((unit(features / width, 1) * unit(row[:64] / width, 0)).sum(1))
    np.testing.assert_allclose(found, softmax(4.0 * np.stack(cosines, 1)), rtol=1e-3)
    own = net.extras["clients"].each()  # type: ignore[operator, union-attr]
    for image in range(2):
        mean = {key: sum(float(w) * each[key] for w, each in zip(found[image], own, strict=True)) for key in own[0]}
        load(net, {**net.state_dict(), **mean})
        with torch.no_grad():
            torch.testing.assert_close(net(x[image : image + 1])[0], answers[image], rtol=1e-3, atol=1e-4)
    # The server keeps what each client sent as its model: no tensor crosses twice.
    up = {key for key in fed.ledger.entries if key.startswith("up/statistics/")}
    assert {key.rpartition("/")[2] for key in up} == {"mean", "variance"}


def test_imbalance_by_hand() -> None:
    shares = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]], dtype="f")
    needed = np.array([0.75, 0.4], dtype="f")
    load_ = norm.cdf((shares - needed[:, None]) / 0.25).sum(0)
    expected = np.mean([total.var(ddof=1) / total.mean() ** 2 for total in (shares.sum(0), load_)])
    assert imbalance(torch.tensor(shares), torch.tensor(needed), 0.25).item() == pytest.approx(expected, rel=1e-4)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(UserError, match="kronecker is 24"):
        tiny_net(FedDGMoE(kronecker=24))
