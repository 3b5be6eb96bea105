from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.tiny_work import PLAN, batch, make_work, site, tiny_net
from unseen.core.tensors import load, prefixed, snapshot
from unseen.core.types import Order
from unseen.federation.client import ClientRunner
from unseen.federation.client_state import ClientStates
from unseen.method import compose
from unseen.methods.fedavg import FedAvg
from unseen.methods.fedbn import FedBN
from unseen.methods.moon import Moon, contrast


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


def test_contrast_by_hand() -> None:
    rng = np.random.default_rng(0)
    z, received, previous = rng.normal(size=(3, 4, 5))
    terms = []
    for i in range(4):
        pull, push = np.exp(cosine(z[i], received[i]) / 0.5), np.exp(cosine(z[i], previous[i]) / 0.5)
        terms.append(-np.log(pull / (pull + push)))
    got = contrast(torch.from_numpy(z), torch.from_numpy(received), torch.from_numpy(previous), 0.5)
    np.testing.assert_allclose(got.item(), np.mean(terms), rtol=1e-10)


def test_the_classifier_reads_the_projected_features() -> None:
    net = tiny_net(Moon(projection=16))
    assert net.features(batch().x).shape == (8, 16) and net.feature_size == 16
    assert [tuple(p.shape) for p in net.neck.parameters()] == [(256, 256), (256,), (16, 256), (16,)]
    plain = tiny_net(Moon(projection=0))
    assert set(plain.state_dict()) == set(tiny_net(FedAvg()).state_dict())


def test_no_term_in_the_first_round() -> None:
    method = Moon(projection=16)
    work = make_work(method)
    method.prepare(work)
    assert method.penalty(work, batch(), torch.ones(8, 16)).item() == 0


def test_the_term_is_of_the_received_and_the_previous_model_in_eval_mode() -> None:
    method = Moon(mu=3.0, projection=16)
    work, images = make_work(method), batch()
    previous_net = tiny_net(method, seed=5)
    work.memory.update(prefixed("previous/", snapshot(previous_net, method._extractor_keys(previous_net))))
    received = snapshot(work.net)
    method.prepare(work)
    with torch.no_grad():
        for parameter in work.net.parameters():  # the local model moves on, the frozen ones do not
            parameter.mul_(1.1)
    before = snapshot(work.net)
    features = torch.randn(8, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
    term = method.penalty(work, images, features)
    after = snapshot(work.net)
    assert all(torch.equal(before[key], after[key]) for key in before)  # running statistics too
    assert all(module.training for module in work.net.modules())
    with torch.no_grad():
        of_previous = previous_net.eval().features(images.x)
        load(work.net, received)
        of_received = work.net.eval().features(images.x)
    by_hand = 3.0 * contrast(features, of_received, of_previous, 0.5)
    np.testing.assert_allclose(term.item(), by_hand.item(), rtol=1e-5)
    term.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None and bool(features.grad.abs().sum() > 0)


def test_the_previous_local_model_is_remembered_between_rounds(tmp_path: Path) -> None:
    method = compose(FedBN(), Moon(projection=16))
    sites = {"a": site("a")}
    runner = ClientRunner(
        method, tiny_net(method), PLAN, lambda client: sites[client], ClientStates(tmp_path), lambda x, rng: x
    )
    state = snapshot(runner.net, runner.share.up)
    first = runner.reply("a", Order("train", 1, state))
    assert "loss.contrast" not in first.metrics
    local = snapshot(runner.net)
    _, memory = ClientStates(tmp_path).load("a", 2)
    kept = {key.removeprefix("moon/previous/"): value for key, value in memory.items()}
    assert set(kept) == {key for key in local if not key.startswith("head.")}
    assert all(torch.equal(local[key], value) for key, value in kept.items())
    second = runner.reply("a", Order("train", 2, state))
    assert second.metrics["loss.contrast"] > 0


def test_every_trainable_tensor_gets_a_gradient() -> None:
    work = make_work(Moon(projection=16))
    work.method.prepare(work)
    work.method.step(work, batch())
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in work.net.trainable())
