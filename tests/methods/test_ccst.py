from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_federation import federation
from tests.tiny_work import batch, make_work, tiny_net
from unseen.core.errors import UserError
from unseen.core.files import write_tensors
from unseen.core.types import Server
from unseen.methods.ccst import CCST
from unseen.nets.parts.style_transfer import Restyle, StyleNetwork, overall, style_network, take
from unseen.nets.parts.styles import style_of


def test_overall_style_by_hand() -> None:
    maps = np.random.default_rng(0).normal(size=(5, 3, 4, 4)) * 2 + 1
    got = overall(style_of(torch.tensor(maps)))
    assert got.shape == (1, 2, 3)
    np.testing.assert_allclose(got[0, 0].numpy(), maps.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(got[0, 1].numpy(), np.sqrt(maps.var((0, 2, 3)) + 1e-6), rtol=1e-5)


def test_maps_take_the_style_of_the_bank_by_hand() -> None:
    module = Restyle(share=1.0)
    module.bank = torch.tensor([[[1.0, -2.0], [0.5, 3.0]]])
    maps = np.random.default_rng(1).normal(size=(4, 2, 5, 5))
    mean, std = maps.mean((2, 3), keepdims=True), np.sqrt(maps.var((2, 3), keepdims=True) + 1e-6)
    expected = (maps - mean) / std * np.array([0.5, 3.0])[:, None, None] + np.array([1.0, -2.0])[:, None, None]
    np.testing.assert_allclose(module(torch.tensor(maps)).numpy(), expected, rtol=1e-5, atol=1e-5)
    module.eval()
    assert module(torch.ones(1)) is not None and torch.equal(module(torch.ones(1)), torch.ones(1))


def test_images_keep_their_style_once_in_k_plus_one_times() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, given = take(torch.zeros(3, 2, 4), 4000, 3 / 4, rng)
    assert 2900 < len(rows) < 3100 and given.shape == (len(rows), 2, 4)
    module = Restyle(share=0.0)
    module.bank = torch.ones(1, 2, 3)
    maps = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(module(maps), maps)


def test_survey_and_brief() -> None:
    method = CCST(bank="single", singles=5)
    work = make_work(method)
    work.net.eval()
    with torch.no_grad():
        statistics = method.survey(work)["styles"]
        every = CCST().survey(work)["styles"]
        own = overall(style_of(work.net.run_stage(0, work.site.train.batch(torch.arange(32)).x)))
    assert statistics.shape == (5, 2, 8) and every.shape == (1, 2, 8)
    torch.testing.assert_close(every, own)
    server = Server({})
    notes = method.brief(server, {"a": {"styles": statistics}, "b": {"styles": statistics + 1}}, ["a", "b"])
    assert torch.equal(notes["a"]["styles"], statistics + 1) and torch.equal(notes["b"]["styles"], statistics)
    assert method.brief(Server({}), {"a": {"styles": statistics}}, ["a"]) == {}


def test_the_next_client_does_not_find_the_banks_of_the_last() -> None:
    method = CCST()
    net = tiny_net(method)
    (module,) = net.norms(Restyle)
    method.prepare(make_work(method, net=net, brief={"styles": torch.ones(2, 2, 8)}))
    assert module.bank is not None
    method.prepare(make_work(method, net=net))
    assert module.bank is None
    assert set(net.state_dict()) == set(tiny_net(CCST()).state_dict())


def test_style_network_from_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = StyleNetwork()
    names = [key for key in network.encoder.state_dict() if key.endswith("weight")]
    assert names == [f"{i}.weight" for i in (0, 2, 5, 9, 12, 16, 19, 22, 25, 29)]  # as published
    names = [key for key in network.decoder.state_dict() if key.endswith("weight")]
    assert names == [f"{i}.weight" for i in (1, 5, 8, 11, 14, 18, 21, 25, 28)]
    files = [tmp_path / name for name in ("vgg.safetensors", "decoder.safetensors")]
    extra = {"31.weight": torch.zeros(1)}  # the published encoder goes on
    write_tensors(files[0], network.encoder.state_dict() | extra)
    write_tensors(files[1], network.decoder.state_dict())
    method = CCST(encoder=str(files[0]), decoder=str(files[1]))
    assert [method.surveys(round) for round in (1, 2)] == [True, False]
    work = make_work(method, brief={"styles": torch.ones(1, 2, 512)})
    assert not work.net.norms(Restyle)
    images = batch()
    got = method.augment(work, images)
    rows, given = take(work.brief["styles"], 8, 3 / 4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = style_network(str(files[0]), str(files[1]))(images.x[rows], *given.unbind(1)).clamp(0, 1)
    torch.testing.assert_close(got.x[rows], expected)
    kept = [i for i in range(8) if i not in rows.tolist()]
    assert kept and torch.equal(got.x[kept], images.x[kept]) and torch.equal(got.y, images.y)
    write_tensors(files[1], {"1.weight": torch.zeros(2)})
    style_network.cache_clear()
    with pytest.raises(UserError, match="does not fit"):
        method.build(tiny_net(CCST()))


def test_one_file_of_two_is_an_error() -> None:
    with pytest.raises(UserError, match="two files"):
        tiny_net(CCST(encoder="vgg.safetensors"))


def test_through_the_real_loop(tmp_path: Path) -> None:
    fed = federation("ccst", tmp_path, rounds=2, local_steps=1)
    fed.run()
    assert {client: tuple(value.shape) for client, value in fed.server.memory.items()} == dict.fromkeys(
        "abc", (1, 2, 8)
    )
    assert fed.net.norms(Restyle)[0].bank is not None
