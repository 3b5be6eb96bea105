"""Local privacy with Flower's own mod: what leaves the site is clipped and noisy, and nothing else leaves."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install unseen[flower]")

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from unseen.core.errors import UserError
from unseen.core.tensors import snapshot
from unseen.core.types import Order, Reply, Tensors
from unseen.engines.flower.privacy import LocalPrivacy, guarded
from unseen.nets.backbones import create_net
from unseen.nets.net import Net

CONTEXT = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only in a process that has a task."""
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1, raising=False)


def small_net() -> Net:
    return create_net("convnet", 3, image_size=16, bottleneck=None, weights="none", seed=0)


def moved(net: Net, before: Tensors, by: float) -> Tensors:
    """Every parameter changed by a constant, and the running statistics too."""
    return {name: value + by if value.is_floating_point() else value + 1 for name, value in before.items()}


def sent(net: Net, before: Tensors, privacy: LocalPrivacy, by: float = 0.5) -> Tensors:
    reply = Reply("east", "train", 1, 10, moved(net, before, by))
    return guarded(reply, Order("train", 1, before), privacy, net, CONTEXT).state


def test_an_update_is_clipped_to_the_norm() -> None:
    net = small_net()
    before = snapshot(net)
    quiet = LocalPrivacy(epsilon=1e9, delta=1e-5, clip=2.0)  # next to no noise: the clipping alone is seen
    after = sent(net, before, quiet)
    parameters = [name for name, _ in net.named_parameters()]
    squares = sum(float((after[n] - before[n]).double().pow(2).sum()) for n in parameters)
    assert math.sqrt(squares) == pytest.approx(2.0, rel=1e-3)


def test_the_noise_is_the_gaussian_mechanisms() -> None:
    net = small_net()
    before = snapshot(net)
    privacy = LocalPrivacy(epsilon=2.0, delta=1e-5, clip=0.5)
    after = sent(net, before, privacy, by=1e-6)  # Flower divides by the update's norm
    noise = torch.cat([(after[n] - before[n]).flatten().double() for n, _ in net.named_parameters()])
    # Two updates within the clip are at most 2 * clip apart.
    expected = 2 * 0.5 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 2.0
    assert float(noise.std()) == pytest.approx(expected, rel=0.03)
    assert abs(float(noise.mean())) < 5 * expected / math.sqrt(len(noise))


def test_running_statistics_and_counters_go_back_as_they_came() -> None:
    net = small_net()
    before = snapshot(net)
    after = sent(net, before, LocalPrivacy(1.0, 1e-5, 1.0))
    buffers = set(before) - {name for name, _ in net.named_parameters()}
    assert buffers
    for name in buffers:
        assert torch.equal(after[name], before[name]), name


def test_statistics_beyond_the_model_are_refused() -> None:
    net = small_net()
    before = snapshot(net)
    for kind in ("survey", "train"):
        reply = Reply("east", kind, 1, 10, dict(before), {"style": torch.ones(2)})  # type: ignore[arg-type]
        with pytest.raises(UserError, match="style"):
            guarded(reply, Order(kind, 1, before), LocalPrivacy(1.0, 1e-5, 1.0), net, CONTEXT)  # type: ignore[arg-type]


def test_what_calibrates_the_model_stays_at_a_private_site() -> None:
    net = small_net()
    reply = Reply("east", "evaluate", 1, 10, report={"loss": torch.ones(31)}, metrics={"received.accuracy": 0.5})
    sent = guarded(reply, Order("evaluate", 1, {}, calibrate=True), LocalPrivacy(1.0, 1e-5, 1.0), net, CONTEXT)
    assert sent.report == {} and sent.metrics == reply.metrics


def test_what_the_server_did_not_send_cannot_be_clipped() -> None:
    net = small_net()
    before = snapshot(net)
    lacking = dict(list(before.items())[1:])
    with pytest.raises(UserError, match=next(iter(before))):
        guarded(
            Reply("east", "train", 1, 10, dict(before)),
            Order("train", 1, lacking),
            LocalPrivacy(1, 1e-5, 1),
            net,
            CONTEXT,
        )


def test_the_node_config_says_it() -> None:
    assert LocalPrivacy.read({"site": "east"}) is None
    assert LocalPrivacy.read({"epsilon": 3, "clip": 2}) == LocalPrivacy(3.0, 1e-5, 2.0)
    with pytest.raises(UserError, match="epsilon"):
        LocalPrivacy.read({"epsilon": 0})
