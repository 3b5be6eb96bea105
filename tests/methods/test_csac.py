from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work
from unseen.core.errors import UserError
from unseen.core.tensors import prefixed, snapshot
from unseen.method import compose
from unseen.methods.csac import CSAC, fuse
from unseen.methods.ga import GA
from unseen.nets.parts.calibration import Calibration, attention, mmd
from unseen.nets.parts.frozen import frozen_levels, levels


def test_fusion_by_hand() -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 4))
    distances = np.array([np.sqrt(((v - values.mean(0)) ** 2).sum()) for v in values])
    expected = sum(d / distances.sum() * v for d, v in zip(distances, values, strict=True))
    np.testing.assert_allclose(fuse([torch.tensor(v) for v in values]).numpy(), expected, rtol=1e-12)
    assert fuse([torch.tensor(3), torch.tensor(7)]).item() == 7
    same = torch.tensor([1.0, 2.0])
    assert torch.equal(fuse([same, same.clone()]), same)


def test_fusion_of_single_numbers() -> None:
    values = [0.0, 1.0, 5.0]  # mean 2: distances 2, 1, 3
    fused = fuse([torch.tensor(v) for v in values])
    assert fused.shape == () and fused.item() == pytest.approx((2 * 0.0 + 1 * 1.0 + 3 * 5.0) / 6)


def test_with_gperxan_whose_weights_are_single_numbers(tmp_path: Path) -> None:
    fed = federation("csac+gperxan", tmp_path, rounds=2, local_steps=1)
    assert len(fed.run()) == 2
    assert any(key.endswith(".score") and value.dim() == 0 for key, value in fed.server.state.items())


def test_mmd_by_hand() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)) + 1
    rows = np.concatenate([one, two])
    squared = ((rows[:, None] - rows[None]) ** 2).sum(2)
    width = squared.mean()
    k = sum(np.exp(-squared / (2 * 3.0**p * width)) for p in range(-3, 2))
    within = sum(k[i, j] for i in range(4) for j in range(4) if i != j) / 12
    within += sum(k[i, j] for i in range(4, 8) for j in range(4, 8) if i != j) / 12
    expected = within - 2 * k[:4, 4:].mean()
    got = mmd(torch.tensor(one), torch.tensor(two)).item()
    assert got == pytest.approx(expected, rel=1e-5)
    assert mmd(torch.zeros(1, 3), torch.ones(1, 3)).item() == 0


def test_attention_by_hand() -> None:
    rng = np.random.default_rng(2)
    own, other = rng.normal(size=(2, 3, 5, 2, 2)), rng.normal(size=(2, 3, 5, 2, 2))  # levels, B, C, H, W
    expected = np.zeros((2, 2))
    for i in range(2):
        parts = []
        for kind in ("positions", "channels"):
            energies = []
            for j in range(2):
                q, k = own[i].reshape(3, 5, 4), other[j].reshape(3, 5, 4)
                products = np.einsum("bcp,bcq->bpq", q, k) if kind == "positions" else np.einsum("bcp,bdp->bcd", q, k)
                energies.append(products.mean())
            e = np.exp(energies)
            parts.append(e / e.sum())
        expected[i] = np.mean(parts, axis=0)
    got = attention([torch.tensor(m) for m in own], [torch.tensor(m) for m in other])
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-10)


def test_first_alone_then_calibrated_against_its_frozen_model() -> None:
    method = CSAC(pretraining=1, calibration=0.6)
    work, images = make_work(method), batch()
    method.prepare(work)
    plain = method.loss(work, images).item()
    assert plain == pytest.approx(torch.nn.functional.cross_entropy(work.net(images.x), images.y).item(), rel=1e-4)
    method.report(work)
    assert int(work.memory["rounds"]) == 1
    own = {key.removeprefix("own/"): value for key, value in work.memory.items() if key.startswith("own/")}
    assert own.keys() == snapshot(work.net).keys()

    later = make_work(method, memory=dict(work.memory), seed=5)
    method.prepare(later)
    calibration = later.scratch["calibration"]
    assert isinstance(calibration, Calibration)
    loss = method.loss(later, images)
    with torch.no_grad():
        here, there = levels(later.net, images.x), frozen_levels(later.net, own, images.x)
        term = calibration(here.maps[-3:], there.maps[-3:]) + mmd(there.logits, here.logits)
        expected = torch.nn.functional.cross_entropy(here.logits, images.y) + 0.6 * term
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    before = snapshot(calibration)
    method.step(later, images)
    assert any(not torch.equal(before[key], value) for key, value in snapshot(calibration).items())
    method.report(later)
    for key, value in own.items():
        assert torch.equal(later.memory[f"own/{key}"], value)  # frozen


def test_without_levels_only_the_logits_are_calibrated() -> None:
    method = CSAC(levels=0)
    own = {key: value * 0.5 for key, value in snapshot(make_work(method).net).items()}
    work, images = make_work(method, memory={**prefixed("own/", own), "rounds": torch.tensor(1)}), batch()
    method.prepare(work)
    assert "calibration" not in work.scratch
    loss = method.loss(work, images).item()
    with torch.no_grad():
        here, there = levels(work.net, images.x), frozen_levels(work.net, own, images.x)
        expected = torch.nn.functional.cross_entropy(here.logits, images.y) + 0.6 * mmd(there.logits, here.logits)
    assert loss == pytest.approx(expected.item(), rel=1e-4)


def test_while_it_trains_alone_it_goes_on_with_its_own_model() -> None:
    method = CSAC(pretraining=2)
    own = {key: value * 0 for key, value in snapshot(make_work(method).net).items()}
    work = make_work(method, memory={**prefixed("own/", own), "rounds": torch.tensor(1)})
    method.prepare(work)
    assert not work.net.head.weight.detach().any()


def test_frozen_levels_change_nothing() -> None:
    work, images = make_work(CSAC()), batch()
    state = {key: value * 0.5 for key, value in snapshot(work.net).items()}
    before = snapshot(work.net)
    there = frozen_levels(work.net, state, images.x)
    assert all(torch.equal(before[key], value) for key, value in snapshot(work.net).items())
    assert all(module.training for module in work.net.modules())
    assert not there.logits.requires_grad and len(there.maps) == work.net.stages


def test_through_the_real_loop(tmp_path: Path) -> None:
    fed = federation("csac", tmp_path, rounds=2, local_steps=1)
    played = fed.run()
    assert all("loss.calibration" not in metrics for metrics in played[0].metrics.values())
    assert all("loss.calibration" in metrics for metrics in played[1].metrics.values())


def test_weights_of_others_would_be_lost() -> None:
    with pytest.raises(UserError, match="weigh"):
        compose(CSAC(), GA())
