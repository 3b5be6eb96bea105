from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import make_work
from unseen.core.types import Server
from unseen.methods.styleddg import StyleDDG
from unseen.nets.parts.neighbours import NeighbourStyles
from unseen.nets.parts.styles import Style


def test_styles_are_taken_pushed_out_and_mixed_by_hand() -> None:
    torch.manual_seed(0)
    maps, module = torch.randn(6, 2, 4, 4), NeighbourStyles(p=1.0, alpha=0.5, mixing=0.3)
    module.received = torch.tensor([[[5.0, -5.0], [2.0, 3.0], [0.25, 0.0], [0.0, 0.04]]])  # one other client
    state = torch.get_rng_state()
    found = module(maps).numpy()
    torch.set_rng_state(state)  # the same draws, in the same order
    torch.rand(())
    torch.randint(1, ())
    taken, drawn = torch.randperm(6)[:3].numpy(), torch.randn(2, 3, 2).numpy()
    far = torch.randperm(6)[:3].numpy()
    weight = torch.distributions.Beta(0.3, 0.3).sample((6, 1)).numpy()
    other = torch.randperm(6).numpy()

    x = maps.numpy()
    own_mean, own_std = x.mean((2, 3)), np.sqrt(x.var((2, 3)) + 1e-6)
    mean, std = own_mean.copy(), own_std.copy()
    mean[taken] = np.array([5.0, -5.0]) + drawn[0] * np.array([0.5, 0.0])
    std[taken] = np.array([2.0, 3.0]) + drawn[1] * np.array([0.0, 0.2])
    for part in (mean, std):
        part[far] = part[far] + 0.5 * (part[far] - part.mean(0))
    mean, std = (weight * part + (1 - weight) * part[other] for part in (mean, std))
    normed = (x - own_mean[:, :, None, None]) / own_std[:, :, None, None]
    expected = normed * std[:, :, None, None] + mean[:, :, None, None]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert module.eval()(maps) is maps


def test_without_others_styles_are_only_mixed() -> None:
    torch.manual_seed(0)
    module, own = NeighbourStyles(p=1.0, alpha=0.5, mixing=0.3), Style(torch.ones(4, 2), torch.ones(4, 2))
    maps = torch.randn(4, 2, 4, 4)
    maps = (maps - maps.mean((2, 3), keepdim=True)) / maps.std((2, 3), keepdim=True, correction=0) + 1
    torch.testing.assert_close(module(maps), maps, rtol=1e-3, atol=1e-3)  # all styles are alike
    assert float(module.beyond(own).mean.sum()) == pytest.approx(8.0)


def test_a_client_tells_its_styles_and_hears_those_of_all_others(tmp_path: Path) -> None:
    method = StyleDDG(stages=(0, 2))
    work = make_work(method, batch_size=32)
    told = method.survey(work)
    x = work.site.train.batch(torch.arange(32)).x  # all of its images, in one batch
    work.net.eval()
    first = work.net.run_stage(0, x)  # the same modules by running statistics: only shapes are compared
    assert {name: tuple(value.shape) for name, value in told.items()} == {"stage0": (4, 8), "stage2": (4, 16)}
    assert first.shape[1] == 8 and bool((told["stage0"][1:] >= 0).all())
    assert all(module.heard is None for module in work.net.norms(NeighbourStyles))
    surveys = {name: {"stage0": torch.full((4, 8), float(number))} for number, name in enumerate("abc")}
    notes = method.brief(Server({}), surveys, ["a", "c"])
    assert notes["a"]["stage0"][:, 0, 0].tolist() == [1.0, 2.0] and notes["c"]["stage0"][:, 0, 0].tolist() == [0.0, 1.0]
    fed = federation("styleddg", tmp_path, rounds=1, local_steps=1)
    fed.run()
    assert any(key.startswith("up/statistics/") and "stage1" in key for key in fed.ledger.entries)


def test_the_styles_told_are_those_of_training_without_new_styles() -> None:
    method = StyleDDG(stages=(0,), p=1.0)
    work = make_work(method, batch_size=32)
    told = method.survey(work)["stage0"].numpy()
    net = work.net.train()
    with torch.no_grad():
        maps = net._anatomy.run(
            net.backbone, 0, (work.site.train.batch(torch.arange(32)).x - net.pixel_mean) / net.pixel_std
        )
    mean, std = maps.mean((2, 3)).numpy(), np.sqrt(maps.var((2, 3), correction=0).numpy() + 1e-6)
    expected = np.stack([mean.mean(0), std.mean(0), mean.var(0), std.var(0)])
    np.testing.assert_allclose(told, expected, rtol=1e-3, atol=1e-5)
